"""A check sends no node two concurrent queries, requests a token only when due, and reports no false problem."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sparkcluster.errors import CommandFailed, HostLost, HostRefused
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.telemetry import check as checking
from sparkcluster.telemetry.check import Checker
from tests.unit.vitals_samples import sampled

DONE = {"done": {"content": "x", "usage": None, "ttft_s": 0.1, "total_s": 0.2}}
DEAD = {"error": {"status": 500, "kind": "engine-dead", "message": "EngineDeadError"}}
KEY = "atlas/default"


def served(one):
    plan = one.plan(3)
    return one.run(plan).record(plan, 3)


class CheckedCluster:
    """Checks of ``one``, with answers of nodes and engine set by a test, and sampled data."""

    def __init__(self, *worlds, lost=()):
        self.answer: Any = DONE
        self.worlds, self.lost = worlds, {name: HostLost("it sends nothing", node=name) for name in lost}
        self.hosts = {}
        for name in worlds[0].facts:
            host = self.hosts[name] = FakeHost(name)
            host.program("ask", lambda _: self.answer).program("probe", lambda asked, n=name: self.probe(n, asked))
        self.sampler = SimpleNamespace(samples={name: [] for name in self.hosts}, now_s=lambda: 100.0)
        self.checker = Checker(Fleet(self.hosts), [one.spec for one in worlds])  # type: ignore[arg-type]

    def probe(self, name, asked):
        facts = [one.facts[name].model_dump(mode="json") for one in self.worlds]
        return {**facts[0], "also": facts} if asked["also"] else facts[0]

    def engine(self, generated, running=0.0):
        self.sampler.samples["alpha"] = [sampled(99.0, engine={"generated": generated, "running": running}, key=KEY)]

    def again(self):
        return self.checker.check(*self.checker.see(self.lost), self.sampler)  # type: ignore[arg-type]

    def tokens(self):
        return sum(program == "ask" for host in self.hosts.values() for program, _ in host.requests)


def codes(result, cluster="atlas"):
    return {(each.code, each.node) for each in result.findings[cluster] if each.severity != "info"}


def test_a_healthy_cluster_has_no_finding_although_no_log_is_read(world):
    found = CheckedCluster(served(world())).again()
    assert codes(found) == set()
    assert found.replies["atlas"]["default"].ttft_s == 0.1


def test_a_test_request_is_repeated_only_for_an_engine_that_generated_no_token(world):
    looks = CheckedCluster(served(world()))
    looks.again()
    for generated in (10.0, 20.0, 30.0):  # others are served
        looks.engine(generated, running=2.0)
        looks.again()
    assert looks.tokens() == 1
    for asked in (2, 3):  # it is idle, or a request gets no token
        looks.engine(30.0, running=asked - 2.0)
        looks.again()
        assert looks.tokens() == asked


def test_unanswered_requests_are_repeated_at_each_check_and_so_are_new_ranks(world):
    one = served(world())
    looks = CheckedCluster(one)
    looks.answer = DEAD
    found = looks.again()
    assert codes(found) == {("RUN-016", "alpha")}
    looks.engine(5.0)
    looks.again()
    looks.answer = DONE
    assert codes(looks.again()) == set()
    assert looks.tokens() == 3
    looks.engine(6.0)
    looks.again()
    assert looks.tokens() == 3
    restarted = [rank.model_copy(update={"started_at": "2026-11-26T04:10:00Z"}) for rank in one.facts["beta"].ranks]
    one.change("beta", ranks=[rank.model_dump() for rank in restarted])
    looks.again()
    assert looks.tokens() == 4


def test_a_hanging_node_gets_no_second_concurrent_query(world, monkeypatch):
    monkeypatch.setattr(checking, "PROBE_S", 0.2)
    looks, hangs = CheckedCluster(served(world())), threading.Event()
    answers = looks.hosts["beta"]._programs["probe"]
    looks.hosts["beta"].program("probe", lambda asked: hangs.wait(30) and answers(asked))
    for _ in range(3):
        found = looks.again()
        assert {code for code, node in codes(found) if node == "beta"} == {"SSH-003"}
    assert [program for program, _ in looks.hosts["beta"].requests] == ["probe"]
    hangs.set()
    while looks.checker._probes["beta"].pending():
        pass
    assert codes(looks.again()) == set()


def test_a_node_lost_by_the_sampler_is_not_queried_and_has_the_newest_cause(world):
    looks = CheckedCluster(served(world()))
    looks.lost = {"beta": HostLost("connection to beta broke during vitals", node="beta")}
    (found,) = (each for each in looks.again().findings["atlas"] if each.node == "beta" and each.severity == "error")
    assert (found.code, found.remedy) == ("SSH-003", ("ping 192.168.86.12, and check its power",))
    looks.lost = {"beta": HostRefused("beta: connection refused", node="beta")}
    assert ("SSH-002", "beta") in codes(looks.again())
    assert not looks.hosts["beta"].requests


def test_a_node_that_lost_only_its_samples_is_queried_and_serves(world):
    looks = CheckedCluster(served(world()))
    looks.lost = {"alpha": CommandFailed("vitals failed on alpha: Killed", node="alpha")}
    assert codes(looks.again()) == set()
    assert looks.hosts["alpha"].requests


def test_an_exited_rank_is_found_with_the_command_to_read_its_log(world):
    one = served(world())
    ended = [rank.model_copy(update={"state": "exited", "exit_code": 1}) for rank in one.facts["beta"].ranks]
    one.change("beta", ranks=[rank.model_dump() for rank in ended])
    (found,) = (each for each in CheckedCluster(one).again().findings["atlas"] if each.code == "RUN-005")
    assert (found.node, found.remedy[0].split("   ")[0]) == ("beta", "sparkcluster doctor INVENTORY")


@pytest.fixture
def several(world):
    """Two models on the same nodes, the second one down."""
    one, two = served(world()), world()
    one.spec = dataclasses.replace(one.spec, model="chat")
    inventory = two.spec.inventory.model_copy(update={"cluster": "atlas-code"})
    two.spec = dataclasses.replace(two.spec, inventory=inventory, model="code")
    return one, two


def test_a_problem_of_a_node_with_two_models_is_reported_once(several):
    one, two = several
    kernel = ["2026-11-26T04:10:00 NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."]
    for each in several:
        each.change("beta", kernel_log=kernel)
    looks = CheckedCluster(one, two)
    found = looks.again()
    assert ("RUN-013", "beta") in codes(found)
    assert codes(found, "atlas-code") == {("RUN-001", None)}
    assert [program for program, _ in looks.hosts["beta"].requests] == ["probe"]
    assert {name: view.spec.model for name, view in found.views.items()} == {"atlas": "chat", "atlas-code": "code"}


def test_of_a_node_with_several_models_each_gets_its_error(several):
    looks = CheckedCluster(*several)
    looks.lost = {"beta": HostLost("beta sent nothing", node="beta")}
    found = looks.again()
    assert all(set(view.collected.errors) == {"beta"} for view in found.views.values())
    assert set(found.views["atlas-code"].facts) == {"alpha"}
