"""All changes of nodes go through one function: its results per node, and which error has precedence."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster.errors import CommandFailed, HostLost, LeaseLost
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.runtime import Changer

STEP = {"do": "mkdir", "path": "/x"}
PRUNE = {"do": "prune", "roots": ["/x"]}

EPOCHS = {"alpha": 3, "beta": 4, "gamma": 5}


def results(request):
    return {"results": [{"freed": {"/x": 7}} for _ in request["steps"]]}


@pytest.fixture
def nodes():
    return {name: FakeHost(name).program("agent", results) for name in EPOCHS}


@pytest.fixture
def changer(nodes):
    return Changer(Fleet(nodes), cluster="atlas", state_dir="~/s", epochs=EPOCHS)


def asked(host):
    return [request for module, request in host.requests if module == "agent"]


def test_every_node_gets_its_steps_and_nodes_without_steps_are_not_contacted(changer, nodes):
    done = changer.apply({"alpha": [STEP], "beta": [STEP, STEP], "gamma": []})
    assert {name: len(results) for name, results in done.items()} == {"alpha": 1, "beta": 2}
    request = asked(nodes["alpha"])[0]
    assert (request["cluster"], request["state_dir"], request["epoch"]) == ("atlas", "~/s", 3)
    assert [request["epoch"] for request in asked(nodes["beta"])] == [4]
    assert [len(request["steps"]) for request in asked(nodes["beta"])] == [2]
    assert asked(nodes["gamma"]) == []


def test_a_failed_step_is_reported_with_its_node(changer, nodes):
    nodes["beta"].program("agent", {"failed": {"step": "start-container", "message": "no such image"}})
    with pytest.raises(CommandFailed, match="start-container failed on beta: no such image") as caught:
        changer.apply({"alpha": [STEP], "beta": [STEP]})
    assert (caught.value.node, caught.value.step) == ("beta", "start-container")
    assert len(asked(nodes["alpha"])) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {}, {"results": None}, {"results": []}, {"results": [{}] * 3}, {"results": {"0": {}}}, {"results": [None, {}]},
        {"results": [[], {}]}, {"results": [{}, {}]}, {"results": [{}, {"freed": None}]}, {"results": [{}, {"freed": []}]},
        {"results": [{}, {"freed": {"/x": "much"}}]}, {"results": [{}, {"freed": {"/x": -1}}]},
        {"results": [{}, {"freed": {"/x\n/y": 1}}]}, {"results": [{}, {"freed": {"/x": [1]}}]}, {"failed": "why"},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_results_are_errors_of_that_node(changer, nodes, odd):
    nodes["beta"].program("agent", odd)
    with pytest.raises(CommandFailed, match="beta sent a malformed answer to prune") as caught:
        changer.apply({"alpha": [STEP, PRUNE], "beta": [STEP, PRUNE]})
    assert caught.value.node == "beta"


def test_a_change_on_a_silent_node_is_sent_once_and_the_command_that_continues_it_is_named(changer, nodes):
    def lost(request):
        raise HostLost("connection to beta broke", node="beta")

    nodes["beta"].program("agent", lost)
    with pytest.raises(HostLost, match="connection to beta broke") as caught:
        dataclasses.replace(changer, operation="upgrade").apply({"alpha": [STEP], "beta": [STEP]})
    assert caught.value.hint.startswith("sparkcluster upgrade INVENTORY --resume ")
    assert len(asked(nodes["beta"])) == 1


def test_a_lost_lease_precedes_other_errors(changer, nodes):
    def lost(request):
        raise HostLost("connection to alpha broke", node="alpha")

    nodes["alpha"].program("agent", lost)
    nodes["beta"].program("agent", {"refused": "epoch 3 is over"})
    with pytest.raises(LeaseLost, match="beta refused the change: epoch 3 is over") as caught:
        changer.apply({"alpha": [STEP], "beta": [STEP]})
    assert caught.value.hint
