"""Cables, twins, addresses, GIDs and MTU: each fault is reported for its node, and for no other."""

from __future__ import annotations

import pytest

from sparkcluster.checks.check import DISRUPTIVE
from sparkcluster.facts.base import Unread
from sparkcluster.findings import REMEDY_LABELS
from sparkcluster.setup.steps import STEPS

from .conftest import PORT_0, rails, reported, running_rank

PORT_1 = ("enp1s0f1np1", "enP2p1s0f1np1")
BOTH = ("alpha", "beta")
NUMBER = {"alpha": 11, "beta": 12}


def interface(node, name, **changes):
    """Interfaces of a node with one changed."""
    return tuple(
        interface.model_copy(update=changes) if interface.name == name else interface for interface in node.interfaces
    )


def hca(node, netdev, **changes):
    return tuple(hca.model_copy(update=changes) if hca.netdev == netdev else hca for hca in node.hcas)


@pytest.fixture
def node(spark):
    return lambda name: spark(rails(NUMBER[name]), management=f"192.168.86.{NUMBER[name]}/24")


def down(own, name):
    """A node with one rail without carrier."""
    return {
        "interfaces": interface(own, name, operstate="down", carrier=False),
        "hcas": hca(own, name, state="DOWN"),
    }


@pytest.mark.parametrize("name", BOTH)
def test_a_twin_that_is_down_is_reported_only_for_its_node(see, node, name):
    (finding,) = see({name: down(node(name), PORT_0[1])})
    assert reported([finding]) == [("NET-004", "warning", name)]
    assert f"{PORT_0[1]} is down" in finding.seen
    assert finding.remedy[0] == f"sudo ip link set {PORT_0[1]} up"


def test_a_rail_of_the_inventory_that_is_down_stops_the_launch(see, node):
    findings = see({"beta": down(node("beta"), PORT_0[0])}, interconnect={"rails": FOUR_RAILS[:2]})
    assert reported(findings) == [("NET-002", "error", "beta")]


@pytest.mark.parametrize("name", BOTH)
def test_a_twin_without_an_address_is_reported_with_the_subnet_of_the_others(see, node, name):
    own = node(name)
    (finding,) = see({name: {"interfaces": interface(own, PORT_0[1], addresses=())}})
    assert reported([finding]) == [("NET-004", "warning", name)]
    assert finding.remedy[0].startswith(f"give {PORT_0[1]} an address in the same subnet as its twins")
    assert finding.remedy[-1] == "sudo netplan apply"


def test_a_twin_that_disappeared_from_the_bus_is_reported(see, node):
    own = node("beta")
    shed = {
        "interfaces": tuple(interface for interface in own.interfaces if interface.name != PORT_0[1]),
        "hcas": tuple(hca for hca in own.hcas if hca.netdev != PORT_0[1]),
    }
    (finding,) = see({"beta": shed})
    assert reported([finding]) == [("NET-004", "warning", "beta")]
    assert finding.seen == f"only {PORT_0[0]} exists"


def test_a_twin_in_a_different_subnet_than_the_others_is_reported_for_its_node(see, node):
    astray = interface(node("beta"), PORT_0[1], addresses=("192.168.200.12/24",))
    (finding,) = see({"beta": {"interfaces": astray}})
    assert reported([finding]) == [("NET-004", "warning", "beta")]
    assert "alpha has 192.168.178.0/24" in finding.seen
    assert "192.168.178.0/24" in finding.remedy[0]


def test_an_inventory_that_omits_a_twin_is_reported(see):
    findings = see(interconnect={"rails": ["192.168.177.0/24"]})
    assert reported(findings) == [("NET-004", "warning", "alpha"), ("NET-004", "warning", "beta")]
    assert findings[0].seen == f"{PORT_0[1]} (192.168.178.11/24) is not in the inventory"


FOUR_RAILS = ["192.168.177.0/24", "192.168.178.0/24", "10.1.0.0/24", "10.2.0.0/24"]


@pytest.mark.parametrize("name", BOTH)
def test_differing_numbers_of_hcas_are_reported_for_the_node_with_fewer(see, spark, name):
    described = {
        finding: {"rails": {**rails(number), PORT_1[0]: f"10.1.0.{number}/24", PORT_1[1]: f"10.2.0.{number}/24"}}
        for finding, number in NUMBER.items()
    }
    lacking = tuple(hca for hca in spark(**described[name]).hcas if hca.netdev not in PORT_1)
    assert see(described=described, interconnect={"rails": FOUR_RAILS}) == []
    (finding,) = see({name: {"hcas": lacking}}, described=described, interconnect={"rails": FOUR_RAILS})
    assert reported([finding]) == [("NET-004", "warning", name)]
    assert f"2 on {name}, 4 on" in finding.seen
    # Automatic discovery uses the common twins, without a finding.
    assert see({name: {"hcas": lacking}}, described=described) == []


@pytest.mark.parametrize("name", BOTH)
def test_a_node_without_a_cable_is_named(see, name):
    (finding,) = see(described={name: {"rails": {}}})
    assert reported([finding]) == [("NET-001", "error", name)]
    assert f"{name}: no HCA" in finding.seen


def test_unreadable_hcas_are_not_reported_as_an_unplugged_cable(see):
    findings = see({"beta": {"hcas": Unread(unread="permission denied")}})
    assert ("FACT-001", "warning", "beta") in reported(findings)
    error = next(finding for finding in findings if finding.code == "NET-001")
    assert error.node == "beta"
    assert "could not be read (permission denied)" in error.seen


def test_an_unplugged_cable_is_distinguished_from_a_missing_address(see, node):
    own = node("beta")
    bare = tuple(each.model_copy(update={"addresses": ()}) if each.driver else each for each in own.interfaces)
    unplugged = tuple(each.model_copy(update={"state": "DOWN"}) for each in own.hcas)
    assert "enp1s0f0np0 without address" in see({"beta": {"interfaces": bare}})[0].seen
    assert "the cable is not connected" in see({"beta": {"interfaces": bare, "hcas": unplugged}})[0].seen


def test_a_gid_index_set_by_hand_must_be_right(see):
    findings = see(nodes={"beta": {"interconnect": {"interfaces": list(PORT_0), "gid_index": 1}}})
    assert {(finding.code, finding.node) for finding in findings} == {("NET-003", "beta")}
    assert "index 3" in findings[0].seen


def test_an_api_address_that_is_not_the_heads(see):
    errors = [finding for finding in see(api={"host": "10.9.9.9"}) if finding.severity == "error"]
    assert reported(errors) == [("NET-012", "error", "alpha")]


@pytest.mark.parametrize("gid", [3, 11])
def test_any_gid_index_common_to_both_is_right(see, gid):
    assert see(described={"beta": {"gid": gid}}) == []


def test_a_gid_of_another_address_is_not_mistaken_for_the_rails(see, spark):
    stale = spark(rails(99), management="192.168.86.12/24").hcas
    findings = see({"beta": {"hcas": stale}})
    assert {(finding.code, finding.node) for finding in findings} == {("NET-003", "beta")}
    assert len(findings) == 2


def test_a_small_mtu_on_all_nodes_is_one_info_finding(see):
    small = {name: {"mtu": 1500} for name in BOTH}
    (finding,) = see(described=small)
    assert reported([finding]) == [("NET-006", "info", None)]


def test_a_small_mtu_on_one_node_is_an_error_without_an_info_finding(see):
    findings = see(described={"beta": {"mtu": 1500}})
    assert {(finding.code, finding.severity, finding.node) for finding in findings} == {("NET-006", "error", "beta")}
    (finding,) = findings
    both = [f"sudo ip link set {name} mtu 9000" for name in PORT_0]
    assert finding.remedy == (" && ".join(both),)


def test_no_remedy_begins_with_a_setup_step_that_running_ranks_block(see, node):
    """While the cluster serves, an MTU can be set; other steps wait until it is down."""
    serving = {"ranks": (running_rank("atlas"),)}
    (mtu,) = see({"beta": serving}, described={"beta": {"mtu": 1500}})
    (twin,) = see({"beta": {**down(node("beta"), PORT_0[1]), **serving}})
    again = "sparkcluster down INVENTORY && sparkcluster setup INVENTORY --only netplan && sparkcluster up INVENTORY"
    remedies = {each.code: [text for label, text in each.details() if label in REMEDY_LABELS] for each in (mtu, twin)}
    assert remedies["NET-006"][0].startswith("on beta: sudo ip link set")
    assert remedies["NET-006"][1:] == [f"{again}   permanent fix"]
    assert remedies["NET-004"][0] == again
    assert twin.step == mtu.step == "netplan"
    assert not twin.fixed_by_setup
    assert {step.name for step in STEPS if step.disruptive} == DISRUPTIVE


def test_half_the_link_speed_is_reported_for_its_interface(see, node):
    slow = interface(node("alpha"), PORT_0[0], speed_mbps=100_000)
    (finding,) = see({"alpha": {"interfaces": slow}})
    assert reported([finding]) == [("NET-009", "warning", "alpha")]
    assert PORT_0[0] in finding.summary


def test_a_port_that_is_down_although_the_link_is_up_is_not_active(see, node):
    odd = hca(node("beta"), PORT_0[0], state="DOWN", phys_state="LINK_UP")
    assert reported(see({"beta": {"hcas": odd}})) == [("NET-002", "error", "beta")]


def test_a_duplicate_address_is_reported(see):
    findings = see(described={"beta": {"rails": rails(11)}})
    assert {(finding.code, finding.node) for finding in findings} == {("NET-011", None)}
    assert "alpha and beta both have" in findings[0].summary


def test_two_simultaneous_faults_are_both_reported(see):
    findings = see({"alpha": {"infiniband_devices": False}}, described={"beta": {"mtu": 1500}})
    assert {(finding.code, finding.node) for finding in findings} == {("NET-010", "alpha"), ("NET-006", "beta")}
