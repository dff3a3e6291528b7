"""``doctor``: one observation, one real answer, everything within its limit; a failing node does not hide the others."""

from __future__ import annotations

import threading
import time

import pytest

from sparkcluster.errors import HostTimeout
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.doctor import doctor
from sparkcluster.report import Report

DONE = {"content": "12 * 17 is 204.", "reasoning": "", "finish_reason": "stop", "usage": {"completion_tokens": 9},
        "ttft_s": 0.2, "total_s": 0.6, "status": 200}  # fmt: skip


def observation_of(one, name, **changes):
    """The observe program's answer of a node with the ranks of ``one``."""
    ranks = [
        {"name": rank.name, "state": rank.state, "labels": rank.labels, "log": ["Application startup complete."],
         "launcher": {"role": "head" if name == "alpha" else "worker", "members": ["192.168.177.11", "192.168.177.12"],
                      "group": "default", "engine": ["vllm", "serve", "m"]}}
        for rank in one.facts[name].ranks
    ]  # fmt: skip
    head = {"health": 200, "ray": {"192.168.177.11": True, "192.168.177.12": True}} if name == "alpha" else {}
    return {"ranks": ranks, "gpus": [], "traffic": [], **head, **changes}


@pytest.fixture
def diagnosis(world):
    """``diagnosis(world, ask=…, programs={node: {program: answer}})``: the diagnosis."""

    def run(one, *, answer=None, programs=None, timeout_s=30.0):
        hosts = {}
        for name, facts in one.facts.items():
            hosts[name] = FakeHost(name)
            probed = facts.model_dump(mode="json")
            own = {
                "probe": lambda _, said=probed: {**said, "clock_s": time.time()},
                "observe": observation_of(one, name),
                "ask": answer or [{"text": "12 * 17"}, {"done": DONE}],
                **(programs or {}).get(name, {}),
            }
            for program, said in own.items():
                hosts[name].program(program, said if callable(said) else lambda _, s=said: s)
        found = doctor(Fleet(hosts), one.spec, timeout_s, Report())
        return found, hosts

    return run


def served(one):
    plan = one.plan(3)
    return one.run(plan).record(plan, 3)


def codes(found):
    return {(one.code, one.node) for one in found.findings if one.severity != "info"}


def test_a_healthy_cluster_is_reported_in_one_line(diagnosis, world):
    found, hosts = diagnosis(served(world()))
    assert (found.ok, codes(found)) == (True, set())
    assert found.verdict().startswith(
        "atlas serves Qwen/Qwen3-8B, 9 tokens, first after 0.20 s, 20.0 tokens/s, 2 nodes, "
    )
    document = found.as_json()
    assert document["ok"] is True
    assert set(document["nodes"]) == {"alpha", "beta"}
    assert document["running"]["replies"]["default"]["text"] == DONE["content"]
    assert document["running"]["nodes"]["alpha"]["ranks"][0]["log_lines"] == 1
    # The commands change nothing on the nodes.
    assert {program for host in hosts.values() for program, _ in host.requests} == {"probe", "observe", "ask"}


def lost(error):
    def fail(_request):
        raise error

    return fail


def test_an_unreachable_node_is_one_finding_and_the_others_are_queried(diagnosis, world):
    gone = lost(HostTimeout("beta: no answer within 10 s", node="beta"))
    found, hosts = diagnosis(served(world()), programs={"beta": {"probe": gone}})
    assert codes(found) == {("SSH-003", "beta")}
    assert found.running.replies["default"].ttft_s == 0.2
    assert [program for program, _ in hosts["beta"].requests] == ["probe"]
    assert "unread" in found.as_json()["nodes"]["beta"]


def test_a_frozen_engine_delays_the_command_no_longer_than_the_limit(diagnosis, world):
    frozen = threading.Event()
    found, _ = diagnosis(served(world()), programs={"alpha": {"ask": lambda _: frozen.wait(30) and {}}}, timeout_s=2)
    assert codes(found) == {("RUN-002", "alpha")}
    assert found.running.replies["default"].problem == "timeout"
    assert set(found.running.observations) == {"alpha", "beta"}
    frozen.set()


def test_no_running_ranks(diagnosis, world):
    found, hosts = diagnosis(world())
    assert codes(found) == {("RUN-001", None)}
    assert not found.ok
    assert found.verdict().startswith("atlas is down, ")
    assert "ask" not in {program for host in hosts.values() for program, _ in host.requests}


def test_an_invalid_observation_is_a_finding(diagnosis, world):
    found, _ = diagnosis(served(world()), programs={"beta": {"observe": {"ranks": 7}}})
    assert codes(found) == {("RUN-022", "beta")}
