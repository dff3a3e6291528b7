"""``preflight`` on nodes with scripted answers: what is checked if others fail, and what is never done."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from types import SimpleNamespace

import pytest

from sparkcluster.errors import HostTimeout, LeaseHeld, UsageError
from sparkcluster.facts.between import Measured
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import preflight as module
from sparkcluster.report import Report
from tests.unit.conftest import accepted


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def found(tmp_path):
    """``found(world, …)``: the preflight of hosts that answer the world's facts, or raise; ``found.hosts`` are these hosts."""

    def run(world, *, failing=None, **options):
        run.hosts = {}
        for name, facts in world.facts.items():
            host = run.hosts[name] = FakeHost(name)
            error = (failing or {}).get(name)
            if error is not None:
                host.run = lambda *_, error=error, **__: (_ for _ in ()).throw(error)
                host.stream = host.run
            else:
                host.program("probe", json.loads(facts.model_dump_json()))
                inside = {"python": "/usr/bin/python3", "python_version": "3.12.11", "platform": "linux_aarch64",
                          "version": "0.18.0", "ray_version": "2.53.0", "family": "upstream"}  # fmt: skip
                host.program("image", inside)
        spec = accepted(world.spec)
        if not spec.inventory_path.exists():
            spec = dataclasses.replace(spec, inventory_path=tmp_path / "inventory.yaml")
            spec.inventory_path.touch()
        return module.preflight(Fleet(run.hosts), spec, Report(), **options)

    return run


def codes(found, severity="error"):
    return sorted((one.code, one.node) for one in found.findings if one.severity == severity)


def silent(name):
    return HostTimeout(f"{name}: sshd said nothing for 10 s", node=name)


def test_healthy_nodes_are_ready(found, world):
    one = found(world())
    assert codes(one) == []
    assert one.ok
    assert one.view.topology is not None
    assert one.checks > 20


@pytest.mark.parametrize(("gone", "left"), [("alpha", "beta"), ("beta", "alpha")])
def test_a_node_that_does_not_answer_is_one_finding_and_the_other_is_checked(gone, left, found, world):
    world_ = world()
    document = world_.facts[left].model_dump()
    document["hcas"][0]["state"] = "DOWN"
    world_.change(left, hcas=document["hcas"])

    one = found(world_, failing={gone: silent(gone)})

    assert codes(one) == sorted([("SSH-003", gone), ("NET-002", left)])
    assert set(one.view.topology.members) == {left}
    assert one.as_json()["nodes"][gone] == {"unread": f"{gone}: sshd said nothing for 10 s"}


def test_a_cluster_that_up_refuses_is_not_reported_as_ready(found, world, monkeypatch):
    """An unset key ends `up` before it begins."""
    monkeypatch.delenv("PAIR_KEY", raising=False)
    one = world(api={"key": {"env": "PAIR_KEY"}})
    without = found(one)
    assert (codes(without), without.ok) == ([("SPEC-010", None)], False)
    assert "export PAIR_KEY=" in without.findings[0].remedy[0]
    assert found(one, ignore=("SPEC-010",)).ok
    monkeypatch.setenv("PAIR_KEY", "sk-0123456789")
    assert found(one).ok


def test_the_example_addresses_are_named_if_no_node_answers(found, world, tmp_path):
    one = world()
    host = one.spec.inventory.nodes[0].host
    one.spec = dataclasses.replace(one.spec, inventory_path=tmp_path / "inventory.yaml")
    one.spec.inventory_path.write_text(f"nodes:\n  - host: {host}            # CHANGE: LAN address or name\n")
    gone = found(one, failing={"alpha": HostTimeout("no", node="alpha"), "beta": HostTimeout("no", node="beta")})
    assert ("SPEC-011", None) in codes(gone, "warning")
    assert ("SPEC-011", None) not in codes(found(one), "warning")


def test_a_machine_listed_twice_is_a_single_error_without_its_consequences(found, world):
    """Its addresses are not a conflict: changing them on "each" node would break the network."""
    world_ = world()
    world_.change("alpha", machine="ab" * 32)
    world_.facts["beta"] = world_.facts["alpha"]

    one = found(world_)

    assert codes(one) == [("SSH-011", "beta")]
    assert not any(each.code.startswith("NET") and "beta" in each.summary for each in one.findings)


def test_machines_cloned_from_one_disk_are_two(found, world):
    """They share the machine ID and the MAC address of a bridge, but no network interface."""
    world_ = world()
    document = world_.facts["beta"].model_dump()
    for interface in document["interfaces"]:
        if not interface["name"].startswith("docker"):
            interface["mac"] = "0" + interface["mac"][1:]
    world_.change("beta", interfaces=document["interfaces"])
    for name in ("alpha", "beta"):
        world_.change(name, machine="ab" * 32)

    assert codes(found(world_)) == []


def test_before_staging_preflight_lists_the_checks_that_it_could_not_run(found, world):
    world_ = world()
    world_.change("beta", image=None, weights={"path": None})

    one = found(world_)

    assert {(ask.node, ask.what) for ask in one.unasked} >= {
        ("beta", "the image's content"),
        ("beta", "whether the weights are complete"),
    }
    assert codes(one) == []
    asked = {program for host in found.hosts.values() for program, _ in host.requests}
    assert asked <= {"probe", "image", "reach"}


def test_an_ignored_error_is_a_warning(found, world):
    world_ = world()
    world_.change("beta", infiniband_devices=False)
    assert codes(found(world_)) == [("NET-010", "beta")]

    one = found(world_, ignore=("net-010",))

    assert one.ok
    assert ("NET-010", "beta") in codes(one, "warning")
    assert "ignored by request" in next(finding.why for finding in one.findings if finding.code == "NET-010")


def test_an_unknown_code_is_an_error_with_the_nearest_before_any_node_is_contacted(found, world):
    with pytest.raises(UsageError) as caught:
        found(world(), ignore=("NET-01",))
    assert caught.value.hint.startswith("did you mean NET-0")
    assert caught.value.exit_code == 2
    assert not any(host.calls for host in found.hosts.values())


@pytest.fixture
def measured(monkeypatch):
    """Arguments of ``deep``: the lease's epochs and kinds, and whether containers are started.

    ``held`` is the kind of lease that is refused.
    """
    seen = {"leases": 0}
    taken = []

    class Held:
        def __init__(self, _fleet, _inventory, _operation, kind="cluster"):
            seen["leases"] += 1
            self.kind = kind
            epochs = {"alpha": 7, "beta": 8} if kind == "cluster" else {"alpha": 1, "beta": 1}
            self.changer = SimpleNamespace(epochs=epochs)

        @contextlib.contextmanager
        def acquire(self, names):
            if seen.get("held") == self.kind:
                raise LeaseHeld("bob@desk holds the lease of atlas")
            taken.append(self.kind)
            try:
                yield self
            finally:
                taken.remove(self.kind)

    def deep(fleet, spec, facts, topology, report, *, epochs, refused):
        seen.update(epochs=epochs, collective=refused is None, taken=list(taken))
        return Measured(())

    monkeypatch.setattr(module, "Lease", Held)
    monkeypatch.setattr("sparkcluster.inspect.deep.deep", deep)
    return seen


def test_a_measurement_takes_the_lease(found, world, measured):
    one = found(world(), deep=True)
    assert (measured["epochs"], measured["collective"]) == ({"alpha": 7, "beta": 8}, True)
    assert measured["taken"] == ["cluster", "staging"]  # in the order in which up takes them
    assert json.loads(json.dumps(one.as_json()))["measured"]["rates"] == []


@pytest.mark.parametrize("kind", ["cluster", "staging"])
def test_without_both_leases_links_are_measured_and_not_recorded(found, world, measured, kind):
    measured["held"] = kind
    found(world(), deep=True)
    assert (measured["epochs"], measured["collective"], measured["taken"]) == ({}, False, [])


def test_no_container_is_started_to_measure_while_there_are_errors(found, world, measured):
    found(world().change("beta", infiniband_devices=False), deep=True)
    assert (measured["leases"], measured["epochs"], measured["collective"]) == (0, {}, False)
