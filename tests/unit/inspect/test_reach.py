"""Which nodes test each other, and two real programs that do, on the loopback of this machine."""

from __future__ import annotations

import collections
import dataclasses
import json
import socket

import pytest

from sparkcluster.facts.base import Unread
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.model import LeaseFact
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import stream
from sparkcluster.inspect.reach import pairs, reach
from sparkcluster.report import Report
from tests.unit.inspect.conftest import NET

HEAD = f"{NET}.77.11"


@pytest.fixture
def two(loopback):
    return loopback("alpha", "beta")


def ask(lab, **options):
    return reach(lab.fleet, lab.spec, lab.facts, lab.topology, Report(), **options)


def kinds(found):
    return collections.Counter(path.kind for path in found.paths)


# source and target


def test_every_ordered_pair_tests_every_rail_and_the_ports_of_the_head(loopback):
    lab = loopback("alpha", "beta", "gamma")
    planned = pairs(lab.spec, lab.facts, lab.topology)
    assert len(planned) == 3 * 2 * 2
    assert {pair.size_bytes for pair in planned} == {9000}
    assert {(pair.source, pair.target, pair.target_address, pair.ports) for pair in planned if pair.ports} == {
        ("beta", "alpha", HEAD, ((6379, "Ray"),)),
        ("gamma", "alpha", HEAD, ((6379, "Ray"),)),
    }


def test_native_ranks_connect_to_the_master_port(loopback):
    lab = loopback("alpha", "beta", playbook={"executor": "native"})
    ports = {pair.ports for pair in pairs(lab.spec, lab.facts, lab.topology) if pair.ports}
    assert ports == {((29501, "the engine's rendezvous"),)}


def test_a_path_that_another_check_reports_is_not_tested(two):
    before = pairs(two.spec, two.facts, two.topology)
    interfaces = tuple(
        interface.model_copy(update={"carrier": False}) if interface.name == "enP2p1s0f1np1" else interface
        for interface in two.facts["beta"].interfaces
    )
    two.change("beta", interfaces=interfaces)
    after = pairs(two.spec, two.facts, two.topology)
    assert {pair.subnet for pair in before} - {pair.subnet for pair in after} == {f"{NET}.78.0/24"}


def test_no_large_packet_is_sent_if_the_mtu_of_the_ends_differs(loopback, spark):
    lab = loopback("alpha", "beta")
    lab.facts["beta"] = spark(
        {"enp1s0f1np1": f"{NET}.77.12/24", "enP2p1s0f1np1": f"{NET}.78.12/24"}, mtu={"enp1s0f1np1": 1500}
    )
    lab = type(lab)(lab.spec, lab.facts)
    sizes = {(pair.source, pair.subnet): pair.size_bytes for pair in pairs(lab.spec, lab.facts, lab.topology)}
    assert sizes["alpha", f"{NET}.77.0/24"] is None
    assert sizes["beta", f"{NET}.77.0/24"] is None
    assert sizes["alpha", f"{NET}.78.0/24"] == 9000


# real programs


def test_two_healthy_nodes_reach_each_other_in_every_way_and_leave_no_socket(two):
    found = ask(two)
    assert found.unasked == {}
    assert kinds(found) == {"ping": 4, "jumbo": 4, "ephemeral": 4, "port": 1}
    assert all(path.ok for path in found.paths), found
    assert all(path.rtt_ms is not None for path in found.paths if path.kind == "ping")
    with socket.create_server((HEAD, 6379)):
        pass
    assert json.loads(json.dumps(dataclasses.asdict(found)))["paths"][0]["ok"] is True


def test_a_used_port_is_left_to_the_check_of_ports(two):
    with socket.create_server((HEAD, 6379)):
        assert kinds(ask(two))["port"] == 0


def test_a_running_start_is_not_disturbed(two):
    two.change("alpha", lease=LeaseFact(epoch=7, held=True))
    assert kinds(ask(two))["port"] == 0
    assert kinds(ask(two, epochs={"alpha": 6, "beta": 6}))["port"] == 0
    assert kinds(ask(two, epochs={"alpha": 7, "beta": 7}))["port"] == 1
    two.change("alpha", lease=LeaseFact(epoch=7, held=False))
    assert kinds(ask(two))["port"] == 1


def test_ports_are_not_tested_while_a_rank_runs(two):
    two.change("alpha", ranks=(Rank(name="sparkcluster-atlas-1-alpha", state="running"),))
    assert kinds(ask(two))["port"] == 0
    two.change("alpha", ranks=Unread(unread="no docker"))
    assert kinds(ask(two))["port"] == 1


def test_a_missing_address_is_reported_for_its_node(two):
    (group,) = two.topology.groups
    alpha, beta = group.members
    first, second = beta.links
    moved = dataclasses.replace(first, address="203.0.113.12")
    beta = dataclasses.replace(beta, address=moved.address, links=(moved, second))
    two.topology = dataclasses.replace(two.topology, groups=(dataclasses.replace(group, members=(alpha, beta)),))
    found = ask(two)
    assert found.unasked["beta"].startswith("cannot listen on 203.0.113.12: ")
    assert {path.subnet for path in found.paths} == {f"{NET}.78.0/24"}


def test_a_node_with_invalid_answers_is_reported_and_the_others_continue(loopback):
    lab = loopback("alpha", "beta", "gamma")
    lab.fleet.hosts["beta"] = FakeHost("beta").program("reach", ["Last login: today"])
    found = ask(lab)
    assert list(found.unasked) == ["beta"]
    assert {(path.source, path.target) for path in found.paths} == {("alpha", "gamma"), ("gamma", "alpha")}
    assert all(path.ok for path in found.paths)


def test_the_program_ends_when_its_input_closes():
    running = stream(
        LocalHost("alpha"),
        "reach",
        {"addresses": ["127.0.0.1"], "fixed": [], "token": "00" * 16},
    )
    next(running.lines(10))
    assert running.finish().ok
