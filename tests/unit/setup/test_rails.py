"""Addresses of the twins: for every shape, for configured nodes, and against false claims of a node."""

from __future__ import annotations

import hashlib
import ipaddress
import itertools

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.setup import cabling, rails
from sparkcluster.topology.netplan import NETPLAN
from tests.unit.setup.test_cabling import random_cablings
from tests.unit.setup.wired import (
    ONE,
    PAIRS,
    RING,
    TWINS,
    documents,
    hears,
    parsed,
    sparks,
)  # fmt: skip


def proposed(surveys, order=None):
    return rails.proposal(cabling.cabling(surveys), surveys, order or list(surveys))


def addresses(found):
    return {node: {name: str(each) for name, each in own.items()} for node, own in found.addresses.items()}


def port(name, number, *thirds):
    return {twin: f"192.168.{third}.{number}/24" for twin, third in zip(TWINS[name], thirds, strict=True)}


def test_one_cable_has_two_rails():
    found = proposed(sparks(ONE))
    assert addresses(found) == {"a": port("p1", 11, 177, 178), "b": port("p1", 12, 177, 178)}
    assert yaml.safe_load(found.texts["b"])["network"]["ethernets"]["enP2p1s0f1np1"] == {
        "addresses": ["192.168.178.12/24"],
        "dhcp4": False,
        "link-local": [],
        "mtu": 9000,
    }
    assert not found.troubles
    assert set(found.texts) == {"a", "b"}


def test_a_ring_has_six_rails():
    found = proposed(sparks(RING))
    assert addresses(found) == {
        "a": {**port("p1", 11, 177, 178), **port("p0", 11, 179, 180)},
        "b": {**port("p0", 12, 177, 178), **port("p1", 12, 181, 182)},
        "c": {**port("p1", 13, 179, 180), **port("p0", 13, 181, 182)},
    }
    assert [str(rail.subnet) for rail in found.rails] == [f"192.168.{third}.0/24" for third in range(177, 183)]


def test_subnets_in_use_elsewhere_are_skipped():
    found = documents(ONE)
    found["b"]["interfaces"][0]["addresses"] = ["192.168.178.5/24"]
    found["a"]["interfaces"][1]["addresses"] = ["192.168.180.1/23"]
    assert addresses(proposed(parsed(found)))["a"] == port("p1", 11, 177, 179)


# ------------------------------------------------------------------------------------------------- what is there


SET_UP = {node: port("p1", number, 177, 178) for number, node in enumerate("abcd", 11)}


def files(text, **others):
    return {
        path: {"text": each, "sha256": hashlib.sha256(each.encode()).hexdigest(), "mode": 0o600, "owner": "root"}
        for path, each in {NETPLAN: text, **others}.items()
        if each is not None
    }


def test_correct_addresses_are_kept_and_nothing_is_written():
    surveys = sparks([[(node, "p1") for node in "abcd"]], addresses=SET_UP, mtu=9000)
    found = proposed(surveys)
    assert addresses(found) == SET_UP
    assert set(found.texts) == set("abcd")
    surveys = {
        name: survey.model_validate({**survey.model_dump(), "files": files(found.texts[name])})
        for name, survey in surveys.items()
    }
    found = proposed(surveys)
    assert found.texts == {}


def test_the_live_state_is_compared_as_well_as_the_file():
    found = documents(ONE, addresses=SET_UP, mtu=9000)
    found["a"]["files"] = files(proposed(parsed(found)).texts["a"])
    assert "a" not in proposed(parsed(found)).texts
    next(each for each in found["a"]["interfaces"] if each["name"] == "enp1s0f1np1")["mtu"] = 1500
    assert "a" in proposed(parsed(found)).texts


@pytest.mark.parametrize("root", [True, False], ids=["root", "login"])
def test_a_file_readable_only_by_root_is_judged_by_roots_journal(root):
    """The login may write its own journal."""
    found = documents(ONE, addresses=SET_UP, mtu=9000)
    entry = {"number": 1, "at": 1.0, "operator": "me@laptop", "step": "netplan", "kind": "file", "target": NETPLAN}
    found["a"]["files"] = {NETPLAN: {"unread": "permission denied"}}
    found["a"]["journal"] = [{**entry, "before": "absent", "after": "0" * 64, "root": root}]
    assert ("a" in proposed(parsed(found)).texts) is not root


def test_addresses_set_by_other_files_are_kept():
    found = documents(ONE, addresses=SET_UP, mtu=9000)
    settings = [f"{name}: {{addresses: [{address}], mtu: 9000}}" for name, address in SET_UP["a"].items()]
    other = f"network: {{version: 2, ethernets: {{{', '.join(settings)}}}}}"
    found["a"]["files"] = files(None, **{"/etc/netplan/50-mine.yaml": other})
    assert set(proposed(parsed(found)).texts) == {"b"}
    found["a"]["files"] = files(None, **{"/etc/netplan/50-mine.yaml": other.replace("mtu: 9000", "mtu: 1500")})
    assert "a" in proposed(parsed(found)).texts


def test_a_file_that_adds_another_address_is_reported():
    found = documents(ONE)
    other = "network: {ethernets: {enp1s0f1np1: {addresses: [10.1.1.1/24: {label: x}]}}}"
    found["a"]["files"] = files(None, **{"/etc/netplan/50-mine.yaml": other})
    found["b"]["files"] = files(other)
    (trouble,) = proposed(parsed(found)).troubles
    assert (trouble.name, trouble.node) == ("other-file", "a")
    assert trouble.text.startswith("/etc/netplan/50-mine.yaml of a gives enp1s0f1np1 the address 10.1.1.1/24")


def test_adding_a_fifth_node_to_a_switch_changes_only_that_node():
    found = documents([[(node, "p1") for node in "eabcd"]], addresses=SET_UP, mtu=9000)
    result = proposed(parsed(found))
    assert addresses(result) == {**SET_UP, "e": port("p1", 15, 177, 178)}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        # NVIDIA's guide for switches leaves both twins in one subnet
        (("192.168.100.11/24", "192.168.100.61/24"), ("192.168.100.11/24", "192.168.177.11/24")),
        (("10.77.0.99/24", "10.9.9.9/24"), ("192.168.177.11/24", "10.9.9.9/24")),
    ],
)
def test_wrong_addresses_are_replaced(own, expected):
    found = documents(ONE, addresses={"a": dict(zip(TWINS["p1"], own, strict=True))})
    result = proposed(parsed(found))
    assert tuple(map(str, result.addresses["a"].values())) == expected
    assert [str(rail.subnet) for rail in result.rails] == [
        str(ipaddress.IPv4Interface(each).network) for each in expected
    ]


# ----------------------------------------------------------------------------------------------------- hostile


def test_a_false_claim_does_not_change_the_subnets_of_other_nodes():
    """Two pairs, one of them set up: a node that claims to hear all others renumbers none, and gets no address."""
    set_up = {node: SET_UP[node] for node in "ab"}
    found = documents([*PAIRS, [("e", "p0")], [("e", "p1")]], addresses=set_up)
    honest = addresses(proposed(parsed({node: found[node] for node in "abcd"})))
    for port_ in ("p0", "p1"):
        hears(found, ("e", port_), *(end for segment in PAIRS for end in segment))
    assert addresses(proposed(parsed(found))) == honest


def test_subnets_claimed_by_a_node_are_not_taken_from_others():
    claimed = "192.168.0.0/16"
    found = documents([*ONE, [("c", "p1")]])
    found["c"]["interfaces"][1]["addresses"] = [claimed]
    assert set(addresses(proposed(parsed(found)))) == {"a", "b"}
    set_up = documents([*ONE, [("c", "p1")]], addresses=SET_UP)
    set_up["c"]["interfaces"][1]["addresses"] = [claimed]
    assert {node: addresses(proposed(parsed(set_up)))[node] for node in "ab"} == {node: SET_UP[node] for node in "ab"}


@pytest.mark.parametrize("text", ["{" * 1000, "network: {ethernets: [1]}", "network: !!python/object:os.system {}"])
def test_the_remaining_rails_are_proposed_whatever_a_netplan_file_contains(text):
    found = documents(ONE)
    found["a"]["files"] = files(None, **{"/etc/netplan/01-x.yaml": text})
    assert addresses(proposed(parsed(found)))["a"] == port("p1", 11, 177, 178)


@settings(max_examples=30)
@given(random_cablings(), st.data())
def test_every_rail_has_a_separate_subnet_and_a_second_run_changes_nothing(segments, data):
    surveys = sparks(segments)
    found = proposed(surveys)
    for one, other in itertools.combinations(found.rails, 2):
        assert not one.subnet.overlaps(other.subnet)
    given_ = [each for own in found.addresses.values() for each in own.values()]
    assert len(set(given_)) == len(given_)
    for rail in found.rails:
        assert all(found.addresses[node][twin.name] in rail.subnet for node, twin in rail.ends.items())
    # Some are set up as proposed: the proposal for the others does not change.
    some = data.draw(st.sets(st.sampled_from(sorted(surveys))))
    documents_ = documents(segments)
    for node in some & set(found.addresses):
        for interface in documents_[node]["interfaces"]:
            if interface["name"] in found.addresses[node]:
                interface["addresses"] = [str(found.addresses[node][interface["name"]])]
    again = proposed(parsed(documents_))
    assert {node: again.addresses[node] for node in some & set(found.addresses)} == {
        node: found.addresses[node] for node in some & set(found.addresses)
    }


@pytest.mark.parametrize("claimed", ["8.8.8.1/8", "10.0.0.1/8", "224.0.0.1/24"])
def test_public_or_wide_subnets_of_a_node_are_not_assigned_to_others(claimed):
    found = sparks(ONE, addresses={"a": {"enp1s0f1np1": claimed}})
    assert addresses(proposed(found))["b"] == port("p1", 12, 177, 178)
