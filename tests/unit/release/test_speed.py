"""The speed that a switch compares: three short answers in prose, sampled as clients are told to."""

from __future__ import annotations

from sparkcluster.endpoint.find import Endpoint
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.release.replacement import measure_speed as measure
from sparkcluster.spec.playbook import Verify

AT = Endpoint("default", "alpha", "http://127.0.0.1:8000/v1", "m", None)


def test_the_speed_is_the_median_of_answers_to_several_prompts():
    """One text three times, or a count, would be the best case of a drafter: it has seen the text before."""
    asked = []

    def answer(request):
        asked.append(request)
        end = {"content": "x", "usage": {"completion_tokens": 101}, "ttft_s": 1.0, "total_s": 1.0 + len(asked)}
        return [{"done": end}]

    verify = Verify(temperature=0.7, chat_template_kwargs={"enable_thinking": False})
    found = measure(FakeHost("alpha").program("ask", answer), AT, verify, "vllm")
    assert (found.tokens_per_s, found.busy) == (50.0, False)
    assert len({request["messages"][0]["content"] for request in asked}) == len(asked) == 3
    assert {(request["max_tokens"], request["temperature"]) for request in asked} == {(128, 0.7)}
