"""Which port is cabled to which: every shape, what was set up before, and machines that say what is not so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkcluster.facts.network import same_machine
from sparkcluster.facts.survey import Survey
from sparkcluster.setup.cabling import cabling
from tests.unit.setup.wired import (
    BOTH_ON_SWITCH,
    CROSSED,
    ONE,
    PAIRS,
    RING,
    SWITCH,
    TWINS,
    TWO,
    documents,
    hear_each_other,
    hears,
    mac,
    parsed,
    sparks,
    survey,
)  # fmt: skip


def ends(found):
    return [[port.key for port in segment.ports] for segment in found.segments]


def names(found):
    return [(trouble.name, trouble.node) for trouble in found.troubles]


@pytest.mark.parametrize(
    ("segments", "kind"),
    [
        (ONE, "one cable"),
        (TWO, "two cables"),
        ([[("a", "p0"), ("b", "p1")]], "one cable"),
        (RING, "ring"),
        ([[("a", "p0"), ("b", "p0")], [("b", "p1"), ("c", "p0")], [("c", "p1"), ("a", "p1")]], "ring"),
        (SWITCH, "switch"),
        (BOTH_ON_SWITCH, "switch"),
        ([[(node, "p0") for node in "abc"], [(node, "p1") for node in "abc"]], "switch"),
    ],
)
def test_every_shape_is_told_from_who_hears_whom(segments, kind):
    found = cabling(sparks(segments))
    assert [fabric.kind for fabric in found.fabrics] == [kind]
    assert {frozenset(each) for each in ends(found)} == {frozenset(each) for each in segments}
    assert not found.troubles
    assert not found.loose
    assert not found.empty


def test_the_cables_of_a_ring_are_in_the_order_of_the_nodes():
    """Cable c is between node c and the next, as the lab numbers its rails."""
    assert ends(cabling(sparks(RING[::-1], names=["a", "b", "c"]))) == [
        [("a", "p1"), ("b", "p0")],
        [("b", "p1"), ("c", "p0")],
        [("a", "p0"), ("c", "p1")],
    ]


def test_two_cables_are_in_the_order_of_the_first_nodes_ports():
    assert [each[0] for each in ends(cabling(sparks(TWO[::-1])))] == [("a", "p0"), ("a", "p1")]


def test_separate_pairs_are_separate():
    found = cabling(sparks(PAIRS))
    assert [(fabric.nodes, fabric.kind) for fabric in found.fabrics] == [
        (("a", "b"), "one cable"),
        (("c", "d"), "one cable"),
    ]
    assert not found.troubles


def test_crossed_cables_name_the_node_at_which_to_swap_them():
    found = cabling(sparks(CROSSED))
    assert found.swapped == ("b",)
    (trouble,) = found.troubles
    assert (trouble.name, trouble.node) == ("swapped-cables", "b")
    assert trouble.hint == "swap the two cables at b, p0 with p1"


def test_of_three_on_two_switches_the_odd_one_is_named():
    segments = [[("a", "p1"), ("b", "p0"), ("c", "p0")], [("a", "p0"), ("b", "p1"), ("c", "p1")]]
    assert cabling(sparks(segments)).swapped == ("a",)


def test_three_in_a_line_lack_one_cable():
    found = cabling(sparks(RING[:2]))
    assert [fabric.kind for fabric in found.fabrics] == ["line"]
    (trouble,) = found.troubles
    assert trouble.name == "not-connected"
    assert trouble.hint == "connect p0 of a with p1 of c: three Sparks make a ring"


def test_four_by_cables_need_a_switch():
    segments = [
        [("a", "p1"), ("b", "p0")],
        [("b", "p1"), ("c", "p0")],
        [("c", "p1"), ("d", "p0")],
        [("d", "p1"), ("a", "p0")],
    ]
    found = cabling(sparks(segments))
    assert [fabric.kind for fabric in found.fabrics] == ["mixed"]
    assert "switch" in found.troubles[0].hint


def test_a_node_without_a_cable_is_empty_and_one_alone_needs_none():
    found = cabling(sparks(ONE, names=["a", "b", "c"]))
    assert found.empty == ("c",)
    assert names(found) == [("no-cable", "c")]
    assert "absent from PCI" in found.troubles[0].text
    alone = cabling(sparks([], names=["a"]))
    assert alone.empty == ("a",)
    assert not alone.troubles


def test_ports_without_a_link_are_another_fault_than_no_card():
    found = documents(ONE, names=["a", "b", "c"])
    found["c"] = survey("c", 2, {"p0"})
    for interface in found["c"]["interfaces"]:
        interface["carrier"] = False
    (trouble,) = cabling(parsed(found)).troubles
    assert trouble.text == "no QSFP port of c has a link"


def test_who_answers_beyond_the_nodes_is_kept_for_discover():
    found = documents(ONE)
    found["a"]["neighbours"] = [
        {"interface": TWINS["p1"][0], "mac": "aa:bb:cc:00:00:02", "address": "fe80::2", "name": "leaf-1"}
    ]
    found["b"]["neighbours"] = []
    result = cabling(parsed(found))
    assert [(str(each.port), [seen.name for seen in each.seen]) for each in result.loose] == [
        ("p1 of a", ["leaf-1"]),
        ("p1 of b", []),
    ]
    assert names(result) == [("unknown-end", "a"), ("unknown-end", "b")]
    assert "leaf-1 (aa:bb:cc:00:00:02)" in result.troubles[0].text


def test_a_port_without_any_address_is_told_from_a_cable_that_leads_nowhere():
    """NetworkManager takes the link-local address away as well, where no DHCP server answered four times."""
    found = documents(ONE)
    for document in found.values():
        document["neighbours"] = []
    found["a"]["unaddressed"] = list(TWINS["p1"])
    found["b"]["unaddressed"] = [TWINS["p1"][1]]  # its other twin can be heard
    first, second = cabling(parsed(found)).troubles
    assert (first.name, first.node, second.name) == ("no-address", "a", "unknown-end")
    assert first.text == (
        "p1 of a has a link, but no address, so that no machine is heard there: "
        "NetworkManager leaves a port without one after 3 minutes in which no DHCP server answered"
    )
    assert first.hint == (
        "sudo nmcli --wait 0 device connect enp1s0f1np1   on a and likewise at the other end, "
        "or take the cable out and in; then this again within 3 minutes"
    )


def test_a_port_without_address_that_hears_others_lacks_nothing():
    found = documents(ONE)
    for document in found.values():
        document["unaddressed"] = list(TWINS["p1"])
    assert not cabling(parsed(found)).troubles
    found["b"]["neighbours"] = []
    found["a"]["neighbours"] = [{"interface": TWINS["p1"][0], "mac": "aa:bb:cc:00:00:02", "name": "leaf-1"}]
    assert names(cabling(parsed(found))) == [("unknown-end", "a"), ("no-address", "b")]


def test_a_machine_that_was_not_surveyed_makes_a_switch_of_a_cable():
    found = documents(ONE)
    found["b"]["neighbours"].append({"interface": TWINS["p1"][0], "mac": "aa:bb:cc:00:00:02", "address": "fe80::2"})
    (segment,) = cabling(parsed(found)).segments
    assert segment.kind == "switch"
    assert [other.mac for other in segment.others] == ["aa:bb:cc:00:00:02"]


def test_one_pair_of_twins_that_hear_each_other_is_enough():
    found = documents(SWITCH)
    for document in found.values():
        document["neighbours"] = []
    for end in SWITCH[0][:3]:
        hear_each_other(found, end, ("d", "p0"))
    assert {frozenset(each) for each in ends(cabling(parsed(found)))} == {frozenset(SWITCH[0])}
    assert not cabling(parsed(found)).one_sided


def test_what_one_end_alone_reports_is_no_cable():
    found = documents(SWITCH)
    for name in "abc":
        found[name]["neighbours"] = []
    result = cabling(parsed(found))
    assert not result.segments
    assert [str(each.port) for each in result.one_sided] == ["p0 of d"]
    assert names(result) == [("one-sided", "d"), *(("unknown-end", node) for node in "abc")]
    assert result.troubles[0].text == (
        "p0 of d reports p0 of a, p1 of b, p1 of c at its other end, which is not confirmed there: "
        "it does not count as a cable"
    )
    assert result.troubles[0].hint == (
        "sudo ip neigh flush dev enp1s0f0np0; sudo ip neigh flush dev enP2p1s0f0np0   on d, then run this again; "
        "if it comes back, follow the cable at p0 of d"
    )


def test_on_a_switch_not_every_pair_has_to_be_confirmed():
    found = documents(SWITCH)
    found["a"]["neighbours"] = [
        each for each in found["a"]["neighbours"] if each["mac"].startswith(mac(1, TWINS["p1"][0])[:-2])
    ]
    result = cabling(parsed(found))
    assert {frozenset(each) for each in ends(result)} == {frozenset(SWITCH[0])}
    assert not result.troubles


RAILS = {
    node: {TWINS["p1"][0]: f"192.168.177.{number}/24", TWINS["p1"][1]: f"192.168.178.{number}/24"}
    for number, node in enumerate("abcd", 11)
}


def test_what_was_set_up_is_told_by_its_subnets():
    """Ports that were set up have no IPv6 address, so that none hears another."""
    segments = [[(node, "p1") for node in "abcd"]]
    found = sparks(segments, addresses=RAILS)
    assert not any(survey.neighbours for survey in found.values())
    assert {frozenset(each) for each in ends(cabling(found))} == {frozenset(segments[0])}


def test_link_local_and_management_subnets_connect_nothing():
    drawn = {node: {TWINS["p1"][0]: f"169.254.0.{number}/16"} for number, node in enumerate("ab", 11)}
    office = {node: {TWINS["p1"][0]: f"10.77.0.{number}/24"} for number, node in enumerate("ab", 101)}
    for addresses in (drawn, office):
        found = documents(ONE, addresses=addresses)
        for document in found.values():
            document["neighbours"] = []
        assert len(cabling(parsed(found)).loose) == 2


def test_pairs_with_the_same_addresses_are_not_taken_for_one_network():
    addresses = {node: RAILS["ab"[place % 2]] for place, node in enumerate("abcd")}
    segments = [[("a", "p1"), ("b", "p1")], [("c", "p1"), ("d", "p1")]]
    found = documents(segments, addresses=addresses)
    assert len(cabling(parsed(found)).loose) == 4
    for one, other in ("ab", "cd"):
        hear_each_other(found, (one, "p1"), (other, "p1"))
    assert [fabric.nodes for fabric in cabling(parsed(found)).fabrics] == [("a", "b"), ("c", "d")]


def test_a_port_whose_subnet_is_in_two_places_stays_alone():
    addresses = {node: {TWINS["p1"][0]: f"192.168.177.{number}/24"} for number, node in enumerate("abcde", 11)}
    segments = [[("a", "p1"), ("b", "p1")], [("c", "p1"), ("d", "p1")], [("e", "p1")]]
    found = documents(segments, addresses=addresses)
    assert [str(each.port) for each in cabling(parsed(found)).loose] == ["p1 of e"]


def test_a_new_one_on_a_switch_joins_those_that_it_hears_and_that_hear_it():
    found = documents([[(node, "p1") for node in "abcde"]], addresses=RAILS)
    hears(found, ("e", "p1"), ("c", "p1"))
    assert cabling(parsed(found)).segments[0].nodes == ("a", "b", "c", "d")
    hears(found, ("c", "p1"), ("e", "p1"))
    (segment,) = cabling(parsed(found)).segments
    assert segment.nodes == ("a", "b", "c", "d", "e")


def test_a_twin_that_is_down_or_absent_is_named():
    found = documents(ONE)
    twins = [each for each in found["b"]["interfaces"] if each["name"] in TWINS["p1"]]
    twins[1].update(operstate="down", carrier=False)
    (trouble,) = cabling(parsed(found)).troubles
    assert (trouble.name, trouble.node) == ("twin-down", "b")
    assert trouble.hint == "sudo ip link set enP2p1s0f1np1 up   on b"
    found["b"]["interfaces"].remove(twins[1])
    assert names(cabling(parsed(found))) == [("twin-absent", "b")]


def test_one_machine_under_two_names_counts_once():
    found = documents(ONE)
    found["again"] = found["b"]
    result = cabling(parsed(found))
    assert result.nodes == ("a", "b")
    assert names(result) == [("same-machine", "again")]
    assert ends(result) == [[("a", "p1"), ("b", "p1")]]


def test_machines_installed_from_one_image_are_two():
    found = parsed(documents(ONE))
    copy = found["b"].model_copy(update={"machine": found["a"].machine})
    assert not same_machine(found["a"], copy)
    assert same_machine(found["a"], found["a"])
    assert len(cabling({**found, "b": copy}).segments) == 1


# ---------------------------------------------------------------------------------------------------- hostile


def test_hardware_addresses_that_two_nodes_claim_say_nothing():
    found = documents([*ONE, [("c", "p1")]])
    for interface, other in zip(found["c"]["interfaces"], found["b"]["interfaces"], strict=True):
        interface["mac"] = other["mac"]
    result = cabling(parsed(found))
    assert {trouble.name for trouble in result.troubles} == {"same-mac", "one-sided", "unknown-end"}
    assert not any("c" in segment.nodes for segment in result.segments)


def test_a_false_claim_to_hear_others_connects_nobody():
    found = documents([*PAIRS, [("e", "p1")]])
    hears(found, ("e", "p1"), *(key for segment in PAIRS for key in segment))
    result = cabling(parsed(found))
    assert [fabric.nodes for fabric in result.fabrics] == [("a", "b"), ("c", "d")]
    assert names(result) == [("one-sided", "e")]
    assert "p1 of a, p1 of b, p0 of c and 1 more" in result.troubles[0].text


@pytest.mark.parametrize("claimed", [("177.15", "179.15"), ("179.15", "178.15"), ("178.15", "177.15")])
def test_a_false_claim_to_subnets_of_others_connects_nobody(claimed):
    """Two pairs that were set up, and hear nobody; one more node claims a subnet of each, or those of a pair crosswise."""
    rails = {node: zip(TWINS["p1"], (177, 178) if node in "ab" else (179, 180), strict=True) for node in "abcd"}
    addresses = {
        node: {twin: f"192.168.{third}.{11 + place}/24" for twin, third in rails[node]}
        for place, node in enumerate("abcd")
    }
    addresses["e"] = {twin: f"192.168.{each}/24" for twin, each in zip(TWINS["p1"], claimed, strict=True)}
    segments = [[("a", "p1"), ("b", "p1")], [("c", "p1"), ("d", "p1")], [("e", "p1")]]
    found = sparks(segments, addresses=addresses)
    assert [fabric.nodes for fabric in cabling(found).fabrics] == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("address", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01"])
def test_addresses_of_no_interface_connect_nothing(address):
    found = documents([[("a", "p1")], [("b", "p1")]])
    for document in found.values():
        for interface in document["interfaces"]:
            interface["mac"] = address
        document["neighbours"] = [{"interface": TWINS["p1"][0], "mac": address}]
    result = cabling(parsed(found))
    assert len(result.loose) == 2
    assert not any(each.seen for each in result.loose)


def test_what_a_port_hears_of_its_own_machine_is_no_cable():
    found = documents([[("a", "p0")], [("a", "p1")]])
    found["a"]["neighbours"] = [
        {"interface": TWINS["p0"][0], "mac": mac(0, twin)} for port in TWINS.values() for twin in port
    ]
    result = cabling(parsed(found))
    assert [each.seen for each in result.loose] == [(), ()]
    found = documents(TWO)
    found["a"]["neighbours"].append({"interface": TWINS["p0"][0], "mac": mac(0, TWINS["p1"][0])})
    assert [fabric.kind for fabric in cabling(parsed(found)).fabrics] == ["two cables"]


@pytest.mark.parametrize("label", ["p0\x1b[2J", "", None, "pf0vf0", "p0" * 500])
def test_a_port_that_its_driver_names_oddly_is_told_by_its_interface(label):
    found = documents(ONE)
    for interface in found["b"]["interfaces"]:
        interface["phys_port_name"] = label
    assert ends(cabling(parsed(found))) == [[("a", "p1"), ("b", "p1")]]


def test_ten_thousand_neighbours_are_no_survey():
    document = documents(ONE)["a"]
    document["neighbours"] *= 5000
    with pytest.raises(ValidationError):
        Survey.model_validate(document)


def test_interfaces_that_cannot_be_read_are_said_to_be():
    found = documents(ONE)
    found["b"]["interfaces"] = {"unread": "permission denied"}
    result = cabling(parsed(found))
    assert names(result) == [("unread", "b"), ("unknown-end", "a")]
    assert result.empty == ()


@st.composite
def random_cablings(draw):
    """Ports of up to eight Sparks, put on segments at random."""
    nodes = [f"n{number}" for number in range(draw(st.integers(1, 8)))]
    ports = draw(st.permutations([(node, port) for node in nodes for port in TWINS]))
    segments = []
    while ports:
        size = draw(st.integers(1, 4))
        segments.append(ports[:size])
        ports = ports[size:]
    return segments


@given(random_cablings())
def test_any_cabling_is_found_again(segments):
    """Segments with ports of one node alone are loose; all others come back as they are."""
    found = cabling(sparks(segments))
    several = {frozenset(each) for each in segments if len({node for node, _ in each}) > 1}
    assert {frozenset(each) for each in ends(found)} == several
    cabled = {key for each in segments for key in each}
    assert {each.port.key for each in found.loose} == cabled - set().union(*several)
    assert sorted(node for fabric in found.fabrics for node in fabric.nodes) == sorted(
        {node for each in several for node, _ in each}
    )
