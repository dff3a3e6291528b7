"""A group's API: its address, a streamed completion, and the check of the answer."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from sparkcluster.endpoint import ask as endpoint_ask
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.dead import Movement, busy, dead, shows_life, stall_limit_s
from sparkcluster.endpoint.find import Endpoint, endpoints
from sparkcluster.endpoint.judge import TOOL, judge_content, judge_reasoning, judge_tools
from sparkcluster.errors import CommandTimeout, HostLost
from sparkcluster.facts.running import Done, Reply
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.fake import FakeHost, FakeStream
from sparkcluster.spec.playbook import Verify

DONE = {"content": "12 * 17 is 204.", "reasoning": "", "finish_reason": "stop", "usage": {"completion_tokens": 9},
        "ttft_s": 0.2, "total_s": 0.6, "status": 200}  # fmt: skip


def said(text):
    return Reply("default", "alpha", text=text)


AT = Endpoint("default", "alpha", "http://127.0.0.1:8000/v1", "m", None)


def plan(*engine, secrets=(), env_file=None):
    containers = [{"launcher": {"engine": list(engine)}, "env_file": env_file}]
    head = {"group": "g0", "role": "head", "secrets": list(secrets), "containers": containers}
    return {"model": "m", "nodes": {"alpha": head, "beta": {**head, "role": "worker"}}}


@pytest.mark.parametrize(
    ("engine", "url"),
    [
        (("vllm", "serve", "m"), "http://127.0.0.1:8000/v1"),
        (("vllm", "serve", "m", "--host", "0.0.0.0", "--port", "9000"), "http://127.0.0.1:9000/v1"),
        (("vllm", "serve", "m", "--host", "192.168.177.11"), "http://192.168.177.11:8000/v1"),
    ],
)
def test_the_head_queries_its_api_at_its_listening_address(engine, url):
    assert endpoints(plan(*engine), "vllm") == {"g0": Endpoint("g0", "alpha", url, "m", None)}


def test_the_key_file_is_the_heads_if_the_api_has_a_key():
    assert endpoints(plan("vllm", env_file="/r/secrets.env"), "vllm")["g0"].key_file is None
    keyed = plan("vllm", env_file="/r/secrets.env", secrets=["VLLM_API_KEY"])
    assert endpoints(keyed, "vllm")["g0"].key_file == "/r/secrets.env"


@pytest.mark.parametrize(
    ("lines", "ttft", "problem", "text"),
    [
        ([{"reasoning": "hm"}, {"done": {**DONE, "content": "", "reasoning": "hm"}}], True, None, "hm"),
        ([{"done": {**DONE, "content": "", "tool_calls": [{"name": "f"}]}}], True, None, ""),
        ([{"done": {**DONE, "content": "", "ttft_s": None}}], False, None, ""),
        ([{"text": "one "}, {"error": {"kind": "timeout", "message": "late"}}], True, "timeout", "one "),
        ([{"error": {"kind": "engine-dead", "message": "500"}}], False, "engine-dead", ""),
        ([{"text": "one "}], True, "lost", "one "),
        ([7], False, "malformed", ""),
    ],
)
def test_the_first_token_in_any_field_is_a_sign_of_life(lines, ttft, problem, text):
    host = FakeHost("alpha").program("ask", lambda _: lines)
    reply = ask(host, AT, Verify(), limit_s=5)
    assert (reply.ttft_s is not None, reply.problem, reply.text) == (ttft, problem, text)


@pytest.mark.parametrize("error", [CommandTimeout("no output for 30 s"), HostLost("gone")])
def test_a_node_that_cannot_be_queried_gives_a_reply_too(error):
    def fail(_request):
        raise error

    reply = ask(FakeHost("alpha").program("ask", fail), AT, Verify(), limit_s=5)
    assert (reply.problem, reply.message) == ("unreachable", error.message)


def test_an_engine_with_an_endless_answer_is_not_a_silent_connection(monkeypatch):
    """Otherwise the request would be repeated, and a node could delay up for hours."""
    limits = []

    class Endless(FakeStream):
        def lines(self, silence_s, *, line_bytes, within_s):
            limits.append(within_s)
            yield b'{"text": "la "}'
            clock[0] += within_s
            raise CommandTimeout("ask on alpha did not end within its limit")

    clock = [0.0]
    monkeypatch.setattr(endpoint_ask.time, "monotonic", lambda: clock[0])
    host = FakeHost("alpha")
    host.stream = lambda argv, stdin=b"": Endless(Result(0, b"", b""))
    reply = ask(host, AT, Verify(timeout_s=180, max_tokens=2048), first_s=900)
    assert reply.problem == "timeout"
    assert limits == [900 + 180 + 2048 + endpoint_ask.SLACK_S]


def test_speed_is_decoding_speed_and_unknown_for_an_answer_in_one_piece():
    at_once = {**DONE, "total_s": 0.2}
    for done, speed in ((DONE, 20.0), (at_once, None)):
        reply = ask(FakeHost("alpha").program("ask", {"done": done}), AT, Verify())
        assert reply.tokens_per_s == (pytest.approx(speed) if speed else None)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("204", None),
        ("It is 204.", None),
        ("", "empty"),
        ("42", "does not match '204'"),
        ("!" * 32, "garbage"),
        ("the " * 20, "garbage"),
        ("204" * 16, "garbage"),
    ],
)
def test_answers_are_judged_by_their_content(text, wrong):
    found = judge_content(said(text), Verify(expect="204"))
    assert found is None if wrong is None else wrong in found


def test_reasoning_alone_is_a_sign_of_life_and_not_an_answer():
    """A small token limit leaves ``content: null``, which passed as an answer if the reasoning had the number."""
    thought = {**DONE, "content": "", "reasoning": "17 times 12 makes 204, so", "finish_reason": "length"}
    reply = ask(
        FakeHost("alpha").program("ask", [{"reasoning": thought["reasoning"]}, {"done": thought}]), AT, Verify()
    )
    assert judge_content(reply, Verify(expect="204")).startswith("the answer is empty: 9 tokens")
    assert shows_life(reply)
    for problem, alive in (("timeout", True), ("engine-dead", False)):
        assert shows_life(dataclasses.replace(reply, problem=problem)) is alive


def call(name="get_weather", arguments='{"city": "Paris"}'):
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


@pytest.mark.parametrize(
    ("done", "wrong"),
    [
        (call(), None),
        ({**call(), "content": "Let me see.", "reasoning": "A tool."}, None),
        ({"content": '{"name": "get_weather"}'}, 'asked to use a tool but called none: \'{"name": "get_weather"}\''),
        (call(name="get_time"), "not offered: 'get_time'"),
        (call(arguments='{"city": "Par'), 'not what the tool takes: \'{"city": "Par\''),
        (call(arguments='{"town": "Paris"}'), "not what the tool takes"),
        (call(arguments="[" * 60_000), "not what the tool takes"),
    ],
)
def test_a_tool_call_names_an_offered_tool_with_its_arguments(done, wrong):
    found = judge_tools(Done.model_validate(done))
    assert (found is None) if wrong is None else (wrong in found)
    assert len(found or "") < 300


@pytest.mark.parametrize(
    ("done", "wrong"),
    [
        ({"content": "204", "reasoning": "12 * 17 is"}, None),
        ({"content": "204", "reasoning": " \n"}, "no reasoning was streamed"),
        ({"content": "<think>12 * 17 is"}, "is part of the answer: '<think>12"),
        ({"content": "12 * 17 is 204.</think>204", "reasoning": "x"}, "is part of the answer"),
    ],
)
def test_reasoning_is_separate_from_the_answer(done, wrong):
    found = judge_reasoning(Done.model_validate(done))
    assert (found is None) if wrong is None else (wrong in found)


def test_tools_are_offered_only_if_the_playbook_tests_them():
    asked = []
    host = FakeHost("alpha").program("ask", lambda request: asked.append(request) or [{"done": DONE}])
    ask(host, AT, Verify())
    reply = ask(host, AT, Verify(), tools=[TOOL])
    assert [request.get("tools") for request in asked] == [None, [TOOL]]
    assert reply.problem is None


def test_an_exponential_expression_is_an_error_after_two_seconds_of_cpu_time():
    """A playbook or the record of a node may contain it; a search blocks all threads, including Ctrl-C."""
    found = judge_content(said(f"It is {'a' * 40}!"), Verify(expect="(a+)+$"))
    assert found == "searching for verify.expect takes more than 2 s or too much memory: '(a+)+$'"


def test_the_memory_of_an_expression_is_limited():
    """Without the limit it takes 1.7 GiB within two seconds."""
    program = (
        "import resource; from sparkcluster.endpoint.judge import judge_content; "
        "from sparkcluster.facts.running import Reply; from sparkcluster.spec.playbook import Verify; "
        "reply = Reply('g', 'h', text='It is 204. ' * 700_000); "
        "print(judge_content(reply, Verify(expect='((((((((((.?)?)?)?)?)?)?)?)?)*?)+c'))[:33]); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1.1 * (1 << 20))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "searching for verify.expect takes\nTrue\n"


@pytest.mark.parametrize("expect", ["(" * 900, "a" * 1001, "x{99999999999}", "["])
def test_an_expression_that_cannot_be_compiled_is_refused(expect):
    with pytest.raises(ValidationError):
        Verify(expect=expect)


# ------------------------------------------------------------------------------------------- dead or busy

ASKED = Reply("default", "alpha", limit_s=180)


@pytest.mark.parametrize(
    ("context", "limit_s"),
    [(1024, 60), (4096, 60), (12_000, 60), (32_768, 163.84), (262_144, 1310.72), (None, 1310.72)],
)
def test_a_prompt_of_full_context_may_prefill_without_progress(context, limit_s):
    assert stall_limit_s(context) == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("gone", "reply", "is_dead"),
    [
        (["pair-3-beta"], None, True),
        ([], None, False),
        ([], {}, False),
        ([], {"problem": "engine-dead", "message": "500"}, True),
        ([], {"problem": "timeout", "stalled_s": 59.0, "context": 1024}, False),
        ([], {"problem": "timeout", "stalled_s": 60.0, "context": 1024}, True),
        ([], {"problem": "timeout", "stalled_s": 600.0, "context": 262_144}, False),
        ([], {"problem": "timeout", "stalled_s": 1311.0, "context": 262_144}, True),
        ([], {"problem": "refused"}, False),
        ([], {"problem": "lost"}, False),
    ],
)
def test_dead_means_a_missing_rank_a_reported_death_or_no_progress_for_longer_than_a_prefill(gone, reply, is_dead):
    found = dead(gone, None if reply is None else dataclasses.replace(ASKED, **reply))
    assert (found is not None) is is_dead


@pytest.mark.parametrize(
    ("reply", "is_busy"),
    [
        ({"problem": "timeout", "stalled_s": 2.0, "moved": True}, True),
        ({"problem": "timeout", "stalled_s": 20.0, "moved": True}, False),
        ({"problem": "timeout"}, False),
        ({"problem": "refused", "stalled_s": 2.0, "moved": True}, False),
        ({}, False),
    ],
)
def test_an_engine_seen_working_is_busy(reply, is_busy):
    assert busy(dataclasses.replace(ASKED, **reply)) is is_busy


def test_progress_is_any_changing_counter_and_missing_metrics_are_not_a_standstill():
    movement = Movement()
    assert movement.stalled_s(1) is None
    movement.feed(1, {})
    assert movement.stalled_s(9) is None, "no counter has been read"
    movement.feed(10, {"generated": 5, "kv_cache": 0.1})
    movement.feed(20, {"generated": 5, "kv_cache": 0.1})
    assert movement.stalled_s(20) == 10
    movement.feed(22, {"generated": 5, "kv_cache": 0.2})
    movement.feed(30, {})
    assert movement.stalled_s(30) is None, "counters that cannot be read are no evidence"
    movement.feed(36, {"generated": 5, "kv_cache": 0.2})
    assert movement.stalled_s(36) == 14, "they did not change in the meantime"


@pytest.mark.parametrize(
    ("before", "after", "is_dead"), [(7, 7, True), (7, 9, False), (None, 7, True), (7, None, True)]
)
def test_an_engine_that_answers_between_two_errors_is_not_dead(before, after, is_dead):
    def answer(_request):
        generated = answers.pop(0)
        counted = [{"counters": {} if generated is None else {"generated": generated}, "context": None}]
        return [*counted, {"error": {"kind": "engine-dead", "message": "500"}}]

    answers = [before, after]
    host = FakeHost("alpha").program("ask", answer)
    earlier, reply = (ask(host, AT, Verify(), counters={"generated": ["x"]}) for _ in range(2))
    assert (dead([], reply, earlier) is not None) is is_dead


class Clocked(FakeStream):
    """An ask program that reports counters every 2 s of the test's clock."""

    def __init__(self, counted, clock):
        super().__init__(Result(0, b"", b""))
        self.counted, self.clock = counted, clock

    def lines(self, silence_s, **limits):
        for value in self.counted:
            self.clock[0] += 2
            counters = {} if value is None else {"generated": value}
            yield json.dumps({"counters": counters, "context": 16_000}).encode()


@pytest.mark.parametrize(
    ("counted", "waited_s", "stalled_s"),
    [([*range(1000)], 30, 0), ([7] * 1000, 82, 80), ([*[7] * 25, *range(1000)], 52, 0)],
)
def test_a_stalled_engine_is_waited_for_until_it_continues_or_counts_as_dead(monkeypatch, counted, waited_s, stalled_s):
    clock = [0.0]
    monkeypatch.setattr("sparkcluster.endpoint.ask.time", type("T", (), {"monotonic": lambda: clock[0]}))
    host = FakeHost("alpha")
    host.stream = lambda argv, stdin=b"": Clocked(counted, clock)
    notes = []
    reply = ask(host, AT, Verify(timeout_s=30), counters={"generated": ["x"]}, until_dead=True, progress=notes.append)
    assert (reply.problem, clock[0], reply.stalled_s) == ("timeout", waited_s, stalled_s)
    assert (dead([], reply) is not None) is (stalled_s == 80)
    assert bool(notes) is (waited_s > 30)
