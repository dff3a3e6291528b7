"""``enable`` and ``disable``, and the effect of records and other commands on guards."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sparkcluster.errors import ConsentMissing, LaunchError, LeaseHeld, NotServing, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.collect import Collected
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import assess, see
from sparkcluster.release import enabled
from sparkcluster.release.down import down
from sparkcluster.report import Report
from sparkcluster.runtime.ranks import start_steps
from sparkcluster.spec.load import load_all

from .conftest import served

KEY = {"key": {"env": "THE_KEY"}}
GUARD = {"runs": True}
PAIR = Path(__file__).parents[3] / "inventory/models-pair.yaml"
ANSWER = {"done": {"content": "204", "usage": None, "ttft_s": 0.1, "total_s": 0.2}}
INSTALLED = {
    "unit": "/home/nvidia/.config/systemd/user/sparkcluster-atlas.service",
    "command": ["/usr/bin/python3", "guard.py"],
}


def fleet_of(world, **programs):
    """Nodes that answer for ``world``, and grant every lease."""
    hosts = {}
    for name, facts in world.facts.items():
        hosts[name] = FakeHost(name).program("probe", facts.model_dump(mode="json")).program("ask", ANSWER)
        hosts[name].program("lease", [{"epoch": 4}, {"granted": 5}]).program("unit", {})
        release = read(facts.release)
        hosts[name].program("releases", {"records": [release.record] if release else []})
        hosts[name].program("agent", lambda request: {"results": [INSTALLED for _ in request["steps"]]})
        for program, answer in programs.items():
            hosts[name].program(program, answer)
    return Fleet(hosts)


def steps(fleet, name):
    """The steps sent to the agent of a node, in order."""
    requests = fleet.hosts[name].requests
    return [step for module, request in requests if module == "agent" for step in request["steps"]]


def test_a_guard_restarts_a_rank_with_the_steps_of_its_start(world):
    cluster = world(api=KEY)
    view = assess(cluster.spec, Collected(cluster.facts, {}), cluster.facts)
    plan = view.ready()[1]
    hashes = {"default": {"salt": "s", "hashes": {"VLLM_API_KEY": "h"}}}
    found = enabled.start_documents(view, ["default"], hashes, failed=[], ready_timeout_s=600)
    assert set(found) == {"alpha", "beta"}
    for name, document in found.items():
        evict, *again = document["steps"]
        assert evict["do"] == "evict"
        entry = next(step["content"] for step in again if str(step.get("path")).endswith("entry.py"))
        started = start_steps(
            plan.nodes[name], entry=entry, secrets=dict.fromkeys(plan.nodes[name].secrets, "v"),
            hashes=hashes["default"],
        )  # fmt: skip
        secret = [step for step in started if str(step.get("path")).endswith("secrets.env")]
        assert [step for step in again if step["do"] != "restore-secrets"] == [
            step for step in started if step not in secret
        ]
        assert [step["path"] for step in again if step["do"] == "restore-secrets"] == [secret[0]["path"]]
        assert document["ranks"] == [rank.name for rank in plan.nodes[name].containers]
        assert document["ready_timeout_s"] == 600
    alpha, beta = found["alpha"], found["beta"]
    assert (alpha["head"], beta["head"]) == (True, False)
    assert alpha["peers"] == {"beta": beta["address"]}
    assert beta["peers"] == {"alpha": alpha["address"]}
    assert alpha["address"].startswith("192.168.177.")  # the interconnect, not the network of the operator
    assert beta["ask"] is None
    assert alpha["ask"]["max_tokens"] == 1
    assert alpha["ask"]["counters"]["generated"]


def test_a_guard_with_several_models_gets_the_memory_that_its_rank_needs(world):
    """Half of the weights, 65 GB, on each of two Sparks, and the engine's additional memory."""
    cluster = world()
    view = assess(cluster.spec, Collected(cluster.facts, {}), cluster.facts)
    alone = enabled.start_documents(view, ["default"], {}, failed=[], ready_timeout_s=600)
    assert not any("planned_bytes" in document for document in alone.values())
    large = next(spec for spec in load_all(PAIR) if spec.model == "gpt-oss-120b")
    view.spec = dataclasses.replace(view.spec, siblings=("small",), playbook=large.playbook)
    beside = enabled.start_documents(view, ["default"], {}, failed=[], ready_timeout_s=600)
    assert all(32e9 < document["planned_bytes"] < 120e9 for document in beside.values())


def test_the_guards_document_has_on_event_if_the_inventory_has_it(world):
    for more in ({}, {"on_event": "notify --now"}):
        cluster = served(world(**more))
        fleet = fleet_of(cluster)
        enabled.enable(fleet, cluster.spec, Report(), yes=True)
        found = steps(fleet, "alpha")[0]["config"]
        assert found.get("on_event") == (["notify", "--now"] if more else None)


def test_enable_installs_the_same_token_on_every_node_and_in_no_command_line(world):
    cluster = served(world())
    fleet = fleet_of(cluster)
    release, nodes = enabled.enable(fleet, cluster.spec, Report(), yes=False)
    assert (release, set(nodes)) == (3, {"alpha", "beta"})
    sent = {name: steps(fleet, name) for name in fleet.hosts}
    assert [[step["do"] for step in each] for each in sent.values()] == [["enable"], ["enable"]]
    tokens = {each[0]["config"]["token"] for each in sent.values()}
    assert len(tokens) == 1
    assert len(tokens.copy().pop()) == 64
    assert not any(
        token in " ".join(argv) for token in tokens for host in fleet.hosts.values() for argv, _ in host.calls
    )
    assert {each[0]["config"]["node"] for each in sent.values()} == {"alpha", "beta"}
    again = fleet_of(cluster)
    enabled.enable(again, cluster.spec, Report(), yes=False)
    assert steps(again, "alpha")[0]["config"]["token"] not in tokens


def test_enable_requires_a_serving_release(world):
    cluster = world()
    for one in (cluster, served(world()).change("beta", ranks=[])):
        fleet = fleet_of(one)
        with pytest.raises(UsageError) as caught:
            enabled.enable(fleet, one.spec, Report(), yes=False)
        assert caught.value.hint == "sparkcluster up INVENTORY, then sparkcluster enable INVENTORY"
        assert all(steps(fleet, name) == [] for name in fleet.hosts)


def test_a_guard_is_not_installed_for_a_record_not_accepted_on_this_machine(world):
    cluster = served(world(playbook={"setup": ["pip install x"]}))
    release = read(cluster.facts["alpha"].release)
    edited = json.loads(json.dumps(release.record).replace("pip install x", "pip install y"))
    cluster.change("alpha", release={"number": 3, "plan_hash": release.plan_hash, "record": edited})
    fleet = fleet_of(cluster)
    with pytest.raises(ConsentMissing, match="not accepted yet: setup"):
        enabled.enable(fleet, cluster.spec, Report(), yes=False)
    assert all(steps(fleet, name) == [] for name in fleet.hosts)
    enabled.enable(fleet, cluster.spec, Report(), yes=True)
    assert steps(fleet, "alpha")


def held(operation):
    return {"epoch": 4, "held": True, "operator": "the guard on alpha", "operation": operation, "since": 1.0}


def test_disable_ends_a_guard_that_holds_the_lease_and_waits_for_any_operator(world):
    cluster = served(world()).change("alpha", lease=held("restart"), enabled=GUARD)
    fleet = fleet_of(cluster)
    assert enabled.disable(fleet, cluster.spec, Report()) == ["alpha"]
    assert [module for module, _ in fleet.hosts["beta"].requests if module in {"unit", "lease", "agent"}] == [
        *("unit", "lease", "agent"),
    ]
    assert [step["do"] for step in steps(fleet, "alpha")] == ["disable"]
    other = fleet_of(cluster.change("alpha", lease=held("up")), lease=[{"held": held("up")}])
    with pytest.raises(LeaseHeld):
        enabled.disable(other, cluster.spec, Report())
    assert not any(module in {"unit", "agent"} for host in other.hosts.values() for module, _ in host.requests)


def test_down_notifies_the_guards_before_it_stops_a_rank(world):
    cluster = served(world()).change("alpha", enabled=GUARD)
    fleet = fleet_of(cluster, memory={"done": {"waited_s": 0, "missing_bytes": 0}})
    down(fleet, cluster.spec, Report(), reach=lambda _: Fleet({}))
    assert [step["do"] for step in steps(fleet, "alpha")] == ["stay-down", "stop", "delete", "delete"]
    assert [step["do"] for step in steps(fleet, "beta")] == ["stop", "delete", "delete"]


def test_up_waits_for_a_guard_that_is_restarting_a_group(up, world):
    cluster = served(world())
    refused = {"alpha": {"problem": "refused", "message": "nothing listens", "text": ""}}
    with pytest.raises(NotServing):
        up(cluster, answers=refused)
    assert "lease" not in up.done
    cluster.change("alpha", lease=held("restart"))

    def in_use(kind):
        raise LeaseHeld("the guard on alpha is running restart on atlas")

    up.held = in_use
    with pytest.raises(LeaseHeld) as caught:
        up(cluster, answers=refused)
    assert caught.value.exit_code == 3
    assert not any(act.startswith(("stop", "launch")) for act in up.done)


@pytest.mark.parametrize(
    ("alpha", "beta", "is_enabled", "guards"),
    [
        (GUARD, GUARD, True, {}),
        (GUARD, None, False, {}),
        ({"runs": False}, GUARD, True, {"alpha": "it is not running"}),
        ({"runs": True, "waits": "it gave up: 5 starts"}, GUARD, True, {"alpha": "it gave up: 5 starts"}),
    ],
)
def test_status_shows_whether_the_cluster_is_started_after_a_reboot(world, alpha, beta, is_enabled, guards):
    cluster = served(world()).change("alpha", enabled=alpha).change("beta", enabled=beta)
    document = enabled.status(fleet_of(cluster), see(fleet_of(cluster), cluster.spec))
    assert (document["enabled"], document["guards"]) == (is_enabled, guards)
    assert json.dumps(document)


def test_a_model_on_demand_is_enabled_as_such_and_then_stopped_without_recording_an_operators_stop(world, monkeypatch):
    cluster = served(world())
    cluster.spec = dataclasses.replace(cluster.spec, model="m", gateway_node="alpha", idle_s=600.0)
    for name in cluster.facts:
        cluster.change(name, enabled=GUARD)
    fleet = fleet_of(cluster, watch={}, memory={})
    enabled.load_on_demand(fleet, cluster.spec, Report(), yes=True)
    sent = steps(fleet, "alpha")
    assert [step["do"] for step in sent][:2] == ["enable", "stop"]
    assert sent[0]["config"]["on_demand"] is True
    assert "stay-down" not in [step["do"] for step in sent]
    monkeypatch.setattr(enabled, "RUNS_S", 0)
    for name in cluster.facts:
        cluster.change(name, enabled={"runs": False})
    with pytest.raises(LaunchError, match="the guard of atlas on alpha does not run") as caught:
        enabled.load_on_demand(fleet_of(cluster), cluster.spec, Report(), yes=True)
    assert "on alpha: /usr/bin/python3 guard.py" in caught.value.hint
