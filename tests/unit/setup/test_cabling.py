"""Which ports are cabled together: every shape, existing configurations, and machines with false reports."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

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
    hears,
    parsed,
    sparks,
)  # fmt: skip


def ends(found):
    return [[port.key for port in segment.ports] for segment in found.segments]


def names(found):
    return [(trouble.name, trouble.node) for trouble in found.troubles]


@pytest.mark.parametrize(
    ("segments", "kind"),
    [(ONE, "cable"), (TWO, "cable"), (RING, "cable"), (SWITCH, "switch"), (BOTH_ON_SWITCH, "switch")],
)
def test_every_cabling_is_detected_from_received_packets(segments, kind):
    found = cabling(sparks(segments))
    assert {segment.kind for segment in found.segments} == {kind}
    assert found.groups == (found.nodes,)
    assert {frozenset(each) for each in ends(found)} == {frozenset(each) for each in segments}
    assert not found.troubles
    assert not found.loose


def test_crossed_cables_name_the_node_where_to_swap_them():
    found = cabling(sparks(CROSSED))
    assert found.swapped == ("b",)
    (trouble,) = found.troubles
    assert (trouble.name, trouble.node) == ("swapped-cables", "b")
    assert trouble.hint == "swap the two cables at b, p0 with p1"


def test_three_in_a_line_lack_one_cable():
    found = cabling(sparks(RING[:2]))
    (trouble,) = found.troubles
    assert trouble.name == "not-connected"
    assert trouble.hint == "connect p0 of a with p1 of c to complete the ring of three Sparks"


def test_a_node_without_a_cable_is_empty_and_a_single_node_needs_none():
    found = cabling(sparks(ONE, names=["a", "b", "c"]))
    assert names(found) == [("no-cable", "c")]
    assert "absent from PCI" in found.troubles[0].text
    alone = cabling(sparks([], names=["a"]))
    assert not alone.troubles


def test_a_port_without_an_address_is_distinguished_from_a_cable_without_a_peer():
    """NetworkManager removes the link-local address too, after four attempts without a DHCP server."""
    found = documents(ONE)
    for document in found.values():
        document["neighbours"] = []
    found["a"]["unaddressed"] = list(TWINS["p1"])
    found["b"]["unaddressed"] = [TWINS["p1"][1]]  # its other twin can be heard
    first, second = cabling(parsed(found)).troubles
    assert (first.name, first.node, second.name) == ("no-address", "a", "unknown-end")
    assert "sudo nmcli --wait 0 device connect enp1s0f1np1   on a" in first.hint


def test_a_cable_reported_by_one_end_only_does_not_count():
    found = documents(SWITCH)
    for name in "abc":
        found[name]["neighbours"] = []
    result = cabling(parsed(found))
    assert not result.segments
    assert [(str(each.port), each.seen) for each in result.loose if each.seen] == [
        ("p0 of d", ("p0 of a", "p1 of b", "p1 of c"))
    ]
    assert names(result) == [("unknown-end", node) for node in "abcd"]
    assert "p0 of a, p1 of b, p1 of c" in result.troubles[-1].text
    assert "sudo ip neigh flush dev enp1s0f0np0" in result.troubles[-1].hint


def test_a_twin_that_is_down_or_absent_is_named():
    found = documents(ONE)
    twins = [each for each in found["b"]["interfaces"] if each["name"] in TWINS["p1"]]
    twins[1].update(operstate="down", carrier=False)
    (trouble,) = cabling(parsed(found)).troubles
    assert (trouble.name, trouble.node) == ("twin-down", "b")
    assert trouble.hint == "sudo ip link set enP2p1s0f1np1 up   on b"
    found["b"]["interfaces"].remove(twins[1])
    assert names(cabling(parsed(found))) == [("twin-absent", "b")]


# ---------------------------------------------------------------------------------------------------- hostile


def test_a_mac_address_claimed_by_two_nodes_is_ignored():
    found = documents([*ONE, [("c", "p1")]])
    for interface, other in zip(found["c"]["interfaces"], found["b"]["interfaces"], strict=True):
        interface["mac"] = other["mac"]
    result = cabling(parsed(found))
    assert {trouble.name for trouble in result.troubles} == {"unknown-end"}
    assert not any("c" in segment.nodes for segment in result.segments)


def test_a_false_claim_of_received_packets_connects_no_node():
    found = documents([*PAIRS, [("e", "p1")]])
    hears(found, ("e", "p1"), *(key for segment in PAIRS for key in segment))
    result = cabling(parsed(found))
    assert result.groups == (("a", "b"), ("c", "d"))
    assert names(result) == [("unknown-end", "e")]
    assert "p1 of a, p1 of b, p0 of c" in result.troubles[0].text


def test_ten_thousand_neighbours_are_refused():
    document = documents(ONE)["a"]
    document["neighbours"] *= 5000
    with pytest.raises(ValidationError):
        Survey.model_validate(document)


@st.composite
def random_cablings(draw):
    """Ports of up to eight Sparks, assigned to segments at random."""
    nodes = [f"n{number}" for number in range(draw(st.integers(1, 8)))]
    ports = draw(st.permutations([(node, port) for node in nodes for port in TWINS]))
    segments = []
    while ports:
        size = draw(st.integers(1, 4))
        segments.append(ports[:size])
        ports = ports[size:]
    return segments


@settings(max_examples=50)
@given(random_cablings())
def test_any_cabling_is_detected(segments):
    """Segments with ports of only one node are loose; all others are detected unchanged."""
    found = cabling(sparks(segments))
    several = {frozenset(each) for each in segments if len({node for node, _ in each}) > 1}
    assert {frozenset(each) for each in ends(found)} == several
    cabled = {key for each in segments for key in each}
    assert {each.port.key for each in found.loose} == cabled - set().union(*several)
    assert sorted(node for group in found.groups for node in group) == sorted(
        {node for each in several for node, _ in each}
    )
