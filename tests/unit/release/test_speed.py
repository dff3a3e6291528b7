"""The speed that a switch compares: three short prose answers, sampled with the parameters for clients."""

from __future__ import annotations

from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.plan.release_record import recorded_groups
from sparkcluster.release.replacement import measure_speed as measure


def test_the_speed_is_the_median_of_answers_to_several_prompts(world):
    """One text three times, or counting, would be the best case of a drafter, which has seen the text before."""
    asked = []

    def answer(request):
        asked.append(request)
        end = {"content": "x", "usage": {"completion_tokens": 101}, "ttft_s": 1.0, "total_s": 1.0 + len(asked)}
        return [{"done": end}]

    cluster = world(playbook={"verify": {"temperature": 0.7, "chat_template_kwargs": {"enable_thinking": False}}})
    (group,) = recorded_groups(cluster.document(cluster.plan(), 1)).values()
    found = measure(Fleet({"alpha": FakeHost("alpha").program("ask", answer)}), group)
    assert found == 50.0
    assert len({request["messages"][0]["content"] for request in asked}) == len(asked) == 3
    assert {(request["max_tokens"], request["temperature"]) for request in asked} == {(128, 0.7)}
