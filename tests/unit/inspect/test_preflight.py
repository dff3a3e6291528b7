"""``preflight`` on nodes that answer as scripted: what is examined when others fail, and what is never done."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading

import pytest

from sparkcluster.errors import HostTimeout, LeaseHeld, UsageError
from sparkcluster.facts.measured import Measured
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import preflight as module
from sparkcluster.report import Report


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def found(monkeypatch):
    """``found(world, …)``: the preflight of hosts that answer the world's facts, or raise; ``found.hosts`` holds them."""

    def run(world, *, failing=None, options=None):
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
        fleet = Fleet(run.hosts)
        return module.preflight(fleet, world.spec, options or module.Options(), Report())

    return run


def codes(found, severity="error"):
    return sorted((one.code, one.node) for one in found.findings if one.severity == severity)


def silent(name):
    return HostTimeout(f"{name}: sshd said nothing for 10 s", node=name)


def test_nodes_in_order_are_ready(found, world):
    one = found(world())
    assert codes(one) == []
    assert one.ok
    assert one.topology is not None
    assert one.checks > 20


@pytest.mark.parametrize(("gone", "left"), [("alpha", "beta"), ("beta", "alpha")])
def test_a_node_that_does_not_answer_is_one_finding_and_the_other_is_still_examined(gone, left, found, world):
    world_ = world()
    document = world_.facts[left].model_dump()
    document["hcas"][0]["state"] = "DOWN"
    world_.change(left, hcas=document["hcas"])

    one = found(world_, failing={gone: silent(gone)})

    assert codes(one) == sorted([("SSH-003", gone), ("NET-007", left)])
    assert set(one.topology.members) == {left}
    assert one.as_json()["nodes"][gone] == {"unread": f"{gone}: sshd said nothing for 10 s"}


def test_the_others_are_compared_with_one_another(found, world):
    world_ = world("alpha beta gamma")
    document = world_.facts["beta"].model_dump()
    for interface in document["interfaces"]:
        if interface["name"] == "enp1s0f0np0":
            interface["mtu"] = 1500
    world_.change("beta", interfaces=document["interfaces"])

    one = found(world_, failing={"alpha": silent("alpha")})

    assert codes(one) == [("NET-006", "beta"), ("SSH-003", "alpha")]


def test_what_up_refuses_is_not_called_ready(found, world, monkeypatch):
    """A key that is not set ends `up` before it begins."""
    monkeypatch.delenv("PAIR_KEY", raising=False)
    one = world(api={"key": {"env": "PAIR_KEY"}})
    without = found(one)
    assert (codes(without), without.ok) == ([("SPEC-010", None)], False)
    assert "export PAIR_KEY=" in without.findings[0].remedy[0]
    monkeypatch.setenv("PAIR_KEY", "sk-0123456789")
    assert found(one).ok


def test_the_addresses_of_the_example_are_named_where_nobody_answers(found, world, tmp_path):
    one = world()
    host = one.spec.inventory.nodes[0].host
    one.spec = dataclasses.replace(one.spec, inventory_path=tmp_path / "inventory.yaml")
    one.spec.inventory_path.write_text(f"nodes:\n  - host: {host}            # CHANGE: LAN address or name\n")
    gone = found(one, failing={"alpha": HostTimeout("no", node="alpha"), "beta": HostTimeout("no", node="beta")})
    assert ("SPEC-011", "alpha") in codes(gone)
    assert ("SPEC-011", "beta") not in codes(gone)
    assert not {code for code, _ in codes(found(one))} & {"SPEC-011"}


def test_a_machine_that_is_listed_twice_is_one_error_without_those_that_follow(found, world):
    """Its addresses are no conflict: giving "each" of them others would break the network."""
    world_ = world()
    world_.change("alpha", machine="ab" * 32)
    world_.facts["beta"] = world_.facts["alpha"]

    one = found(world_)

    assert codes(one) == [("SSH-011", "beta")]
    told = next(each for each in one.findings if each.code == "SSH-011")
    assert told.summary == "beta (host: 192.168.86.12) is the same machine as alpha (host: 192.168.86.11)"
    assert told.remedy == ("remove one of them from nodes in INVENTORY, or correct its host",)
    assert not any(each.code.startswith("NET") and "beta" in each.summary for each in one.findings)


def test_machines_that_were_cloned_from_one_disk_are_two(found, world):
    """They share the machine ID, and the hardware address of a bridge, but no network interface."""
    world_ = world()
    document = world_.facts["beta"].model_dump()
    for interface in document["interfaces"]:
        if not interface["name"].startswith("docker"):
            interface["mac"] = "0" + interface["mac"][1:]
    world_.change("beta", interfaces=document["interfaces"])
    for name in ("alpha", "beta"):
        world_.change(name, machine="ab" * 32)

    assert codes(found(world_)) == []


def test_nobody_answers(found, world):
    one = found(world(), failing={name: silent(name) for name in ("alpha", "beta")})
    assert codes(one) == [("SSH-003", "alpha"), ("SSH-003", "beta")]
    assert one.topology is None
    assert one.reach is None


def test_a_node_without_a_seat_is_named_and_the_others_are_examined(found, world):
    world_ = world("alpha beta gamma", interconnect={"rails": ["192.168.177.0/24", "192.168.178.0/24"]})
    document = world_.facts["gamma"].model_dump()
    for interface in document["interfaces"]:
        if interface["name"].startswith(("enp1", "enP2")):
            interface["addresses"] = []
    world_.change("gamma", interfaces=document["interfaces"])

    one = found(world_)

    assert (module.UNPLANNED, "gamma") in codes(one)
    assert set(one.topology.members) == {"alpha", "beta"}


def test_before_image_and_weights_are_there_it_says_what_it_could_not_ask(found, world):
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


def test_an_image_that_was_never_asked_is_asked_and_nothing_is_kept_on_the_node(found, world, cache):
    def fresh():
        one = world()
        for name in one.facts:
            image = one.facts[name].image.model_dump() | {"inside": None}
            one.change(name, image=image)
        return one

    first = found(fresh())
    assert first.facts["alpha"].image.inside.version == "0.18.0"
    asked = [request for host in found.hosts.values() for program, request in host.requests if program == "image"]
    # one, or both where they were asked before either had answered
    assert {request["keep"] for request in asked} == {False}
    assert list((cache / "images").iterdir())

    second = found(fresh())
    assert second.facts["beta"].image.inside.version == "0.18.0"
    assert not any(program == "image" for host in found.hosts.values() for program, _ in host.requests)


def test_an_answer_that_was_cut_short_is_asked_for_again(found, world, cache):
    one = world()
    image = one.facts["alpha"].image.model_dump() | {"inside": None}
    found(one.change("alpha", image=image))
    for file in (cache / "images").iterdir():
        file.write_text('{"python": ')
    assert found(one).facts["alpha"].image.inside.version == "0.18.0"


def test_what_is_ignored_is_a_warning(found, world):
    world_ = world()
    world_.change("beta", infiniband_devices=False)
    assert codes(found(world_)) == [("NET-010", "beta")]

    one = found(world_, options=module.Options(ignore=("net-010",)))

    assert one.ok
    assert ("NET-010", "beta") in codes(one, "warning")
    assert "ignored here by request" in next(finding.why for finding in one.findings if finding.code == "NET-010")


def test_what_the_inventory_ignores_is_a_warning_too(found, world):
    world_ = world(ignore=["NET-010"])
    one = found(world_.change("beta", infiniband_devices=False))
    assert one.ok
    assert ("NET-010", "beta") in codes(one, "warning")


def test_a_code_that_there_is_not_is_told_with_the_nearest_and_nobody_is_asked(found, world):
    with pytest.raises(UsageError) as caught:
        found(world(), options=module.Options(ignore=("NET-01",)))
    assert caught.value.hint.startswith("did you mean NET-0")
    assert caught.value.exit_code == 2
    assert not any(host.calls for host in found.hosts.values())


def test_the_document_holds_what_other_programs_rely_on(found, world):
    world_ = world()
    document = json.loads(json.dumps(found(world_.change("beta", infiniband_devices=False)).as_json()))
    assert document["ok"] is False
    (finding,) = [one for one in document["findings"] if one["severity"] == "error"]
    assert finding["code"] == "NET-010"
    assert {"code", "severity", "node", "file", "line", "summary", "seen", "why", "remedy"} <= set(finding)
    assert isinstance(finding["remedy"], list)
    assert set(document["nodes"]) == {"alpha", "beta"}
    assert document["nodes"]["alpha"]["driver"]
    assert [group["name"] for group in document["topology"]["groups"]] == ["default"]
    assert document["seconds"] >= 0


def test_all_nodes_are_asked_at_once(found, world, monkeypatch):
    """Both hold the other back until it was asked, too."""
    both = threading.Barrier(2, timeout=20)
    world_ = world()
    original = FakeHost.run

    def run(self, argv, *, stdin=b"", timeout_s=30):
        if not self.calls:
            both.wait()
        return original(self, argv, stdin=stdin, timeout_s=timeout_s)

    monkeypatch.setattr(FakeHost, "run", run)
    assert found(world_).errors == {}


@pytest.fixture
def measured(monkeypatch):
    """What ``deep`` was called with: the lease's epochs and kinds, and whether containers are started.

    ``held`` is the kind of lease that is refused.
    """
    seen = {"leases": 0}
    taken = []

    class Held:
        def __init__(self, *_, kind="cluster", **__):
            seen["leases"] += 1
            self.kind = kind
            self.epochs = {"alpha": 7, "beta": 8} if kind == "cluster" else {"alpha": 1, "beta": 1}

        @contextlib.contextmanager
        def acquire(self, names):
            if seen.get("held") == self.kind:
                raise LeaseHeld("bob@desk holds the lease of atlas")
            taken.append(self.kind)
            try:
                yield self
            finally:
                taken.remove(self.kind)

    def deep(fleet, spec, facts, topology, report, *, epochs, options):
        seen.update(epochs=epochs, collective=options.collective, taken=list(taken))
        return Measured(())

    monkeypatch.setattr(module, "Lease", Held)
    monkeypatch.setattr("sparkcluster.diagnose.deep.deep", deep)
    return seen


def test_measuring_takes_the_lease(found, world, measured):
    one = found(world(), options=module.Options(deep=True))
    assert (measured["epochs"], measured["collective"]) == ({"alpha": 7, "beta": 8}, True)
    assert measured["taken"] == ["cluster", "staging"]  # in the order in which up takes them
    assert "deep" in one.stages
    assert json.loads(json.dumps(one.as_json()))["measured"]["rates"] == []


@pytest.mark.parametrize("kind", ["cluster", "staging"])
def test_without_both_leases_links_are_measured_all_the_same_and_none_is_kept(found, world, measured, kind):
    measured["held"] = kind
    found(world(), options=module.Options(deep=True))
    assert (measured["epochs"], measured["taken"]) == (None, [])


def test_where_something_is_wrong_no_container_is_started_to_measure(found, world, measured):
    found(world().change("beta", infiniband_devices=False), options=module.Options(deep=True))
    assert (measured["leases"], measured["epochs"], measured["collective"]) == (0, None, False)


def test_one_node_needs_no_lease_to_be_measured(found, world, measured):
    found(world("alpha"), options=module.Options(deep=True))
    assert measured["leases"] == 0


def test_nothing_is_measured_or_hashed_unless_it_is_asked_for(found, world, measured):
    one = found(world())
    assert "epochs" not in measured
    assert (one.measured, one.hashes) == (None, None)
    assert "deep" not in one.stages
