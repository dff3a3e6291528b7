"""The order of copies between nodes: as a function, and as a simulation with random files and failures."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest

from sparkcluster.hosts.fleet import Fleet
from sparkcluster.staging.chain import Way, chain, expected_s, ways
from sparkcluster.staging.expected import moves
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers
from sparkcluster.topology.build import build

RAIL = {"medium": "rail", "speed_mbps": 200_000, "interface": "enp1s0f0np0", "encrypted": False}
WIRE = {"medium": "wire", "speed_mbps": 1000, "interface": "enP7s7", "encrypted": True}
WIFI = {"medium": "wifi", "speed_mbps": 0, "interface": "wlP9s9", "encrypted": True}


def both(first, second, kind):
    return tuple(Way(one, two, f"10.0.0.{ord(one[-1])}", **kind) for one, two in ((first, second), (second, first)))


def mesh(nodes, kind):
    return tuple(way for pair in itertools.combinations(nodes, 2) for way in both(*pair, kind))


def line(nodes, kind):
    return tuple(way for pair in itertools.pairwise(nodes) for way in both(*pair, kind))


def made(nodes, found, **has):
    """Sources by node, each with the medium."""
    return {
        node: [f"{each[0].source} {each[0].medium}" for each in sources]
        for node, sources in chain(nodes, found, Counter(has), 10).items()
    }


def test_in_a_group_each_node_pulls_from_the_previous_one_and_skips_it_if_it_fails():
    found = made("abcd", mesh("abcd", RAIL), c=10)
    assert list(found) == ["c", "a", "b", "d"]
    assert (found["a"][0], found["d"]) == ("c rail", ["b rail", "a rail", "c rail"])


def test_nodes_with_a_part_of_the_files_precede_nodes_with_none():
    assert list(made("abcd", mesh("abcd", RAIL), d=10, b=4)) == ["d", "b", "a", "c"]


def test_along_a_line_each_node_pulls_only_from_a_node_with_a_cable_to_it():
    found = made("abc", line("abc", RAIL), b=10)
    assert (found["a"], found["c"]) == (["b rail"], ["b rail"])


def test_cables_come_first_and_other_networks_by_speed():
    found = (*line("abc", RAIL), *mesh("abc", WIFI), *both("a", "c", WIRE))
    assert made("abc", found, a=10)["c"] == ["b rail", "a wire", "a wifi", "b wifi"]


def test_all_rails_to_a_node_are_used_in_parallel():
    twin = tuple(dataclasses.replace(way, address="10.0.1.1") for way in both("a", "b", RAIL))
    (rails,) = chain("ab", (*both("a", "b", RAIL), *twin), Counter(a=10), 10)["b"]
    assert [way.address for way in rails] == ["10.0.0.97", "10.0.1.1"]


def test_an_island_gets_missing_files_once_and_over_the_best_network():
    """The node at the end of that path asks its neighbours last: their files come from itself."""
    found = made("abcd", (*line("ab", RAIL), *line("cd", RAIL), *mesh("abcd", WIFI), *both("a", "d", WIRE)), a=10)
    assert list(found) == ["a", "b", "d", "c"]
    assert found["d"] == ["a wire", "a wifi", "b wifi", "c rail", "c wifi"]
    assert found["c"] == ["d rail", "a wifi", "b wifi", "d wifi"]


def test_an_island_may_copy_from_an_island_in_between():
    found = made("abc", (*both("a", "b", WIFI), *both("b", "c", WIRE)), a=10)
    assert (found["b"][0], found["c"]) == ("a wifi", ["b wire"])


def test_islands_with_different_parts_get_the_rest_from_each_other():
    found = made("abcd", (*line("ab", RAIL), *line("cd", RAIL), *both("b", "c", WIRE)), a=6, d=4)
    assert (found["b"][0], found["c"][0]) == ("c wire", "b wire")


def test_an_unreachable_node_is_skipped():
    assert list(made("abcd", (*line("ab", RAIL), *line("cd", RAIL)), a=10)) == ["a", "b"]


# which addresses are tried


GROUPS = [{"name": "one", "nodes": ["a", "b"]}, {"name": "two", "nodes": ["c", "d"]}]


def pairs(spark, cluster):
    """Two pairs, each with its own cable, whose owners followed the same guide: .11 and .12 on both."""
    hosts = {"a": ("10.1.0.11", 11), "b": ("10.1.0.12", 12), "c": ("10.1.0.11", 13), "d": ("10.1.0.12", 14)}
    facts = {
        name: spark({"enp1s0f0np0": f"{address}/24"}, management=f"192.168.86.{place}/24")
        for name, (address, place) in hosts.items()
    }
    spec = cluster({name: name for name in hosts}, groups=GROUPS)
    return facts, build(spec, facts)


def test_the_owner_of_an_address_is_not_guessed_from_its_number(spark, cluster):
    """The rail from a to d is tried, and c answers there: only the token shows that."""
    facts, topology = pairs(spark, cluster)
    tried = ways(facts, topology, list(facts), encrypt=False)
    assert {way.medium for way in tried if (way.source, way.target) == ("a", "d")} == {"rail", "wire"}
    cabled = ({"a", "b"}, {"c", "d"})
    works = [way for way in tried if way.medium == "wire" or {way.source, way.target} in cabled]
    found = made("abcd", works, a=10)
    assert found["b"][0] == "a rail"
    assert sorted(found[node][0] for node in "cd") in (["a wire", "c rail"], ["a wire", "d rail"])


def test_a_dry_run_assumes_no_cable_between_pairs_with_identical_addresses(spark, cluster):
    facts, topology = pairs(spark, cluster)
    lacks = dict.fromkeys("bcd", 60 * 10**9)
    staging = Staging("weights", "m", ("a",), tuple((node, "missing") for node in "bcd"), (), None, spec=None)
    found = moves(Transfers(Fleet({}), facts, topology, dict, print), staging, lacks, "hub")
    assert [(each.node, each.source, each.over, each.encrypted, each.seconds) for each in found] == [
        ("b", "a", "its cable (enp1s0f0np0, 200 Gb/s)", False, 30.0),
        ("c", "a", "the management network (enP7s7, 10 Gb/s)", True, 150.0),
        ("d", "c", "its cable (enp1s0f0np0, 200 Gb/s)", False, 30.0),
    ]


def test_a_node_without_a_common_network_is_tried_through_its_router_and_always_encrypted(spark, cluster):
    facts = {
        "a": spark({"enp1s0f0np0": "10.1.0.11/24"}, management="192.168.86.11/24"),
        "b": spark({"enp1s0f0np0": "10.2.0.12/24"}, management="192.168.87.12/24"),
    }
    tried = ways(facts, build(cluster({"a": "a", "b": "b"}), facts), "ab", encrypt=False)
    assert {(way.source, way.address, way.medium) for way in tried} == {
        ("a", "192.168.86.11", "wire"),
        ("b", "192.168.87.12", "wire"),
    }


def test_both_rails_are_tried_and_container_networks_never(spark, cluster):
    facts = {
        name: spark(
            {"enp1s0f0np0": f"10.1.0.{place}/24", "enP2p1s0f0np0": f"10.2.0.{place}/24"},
            management=f"192.168.86.{place}/24",
        )
        for place, name in enumerate("ab", 11)
    }
    docker = {"name": "docker0", "mac": "", "operstate": "up", "carrier": True, "mtu": 1500,
              "addresses": ["172.17.0.1/16"]}  # fmt: skip
    for name, its in list(facts.items()):
        more = spark(interfaces=[docker]).interfaces
        facts[name] = its.model_copy(update={"interfaces": (*its.interfaces, *more)})
    topology = build(cluster({"a": "a", "b": "b"}), facts)
    tried = [way for way in ways(facts, topology, "ab", encrypt=True) if way.source == "a"]
    assert sorted((way.address, way.medium) for way in tried) == [
        ("10.1.0.11", "rail"),
        ("10.2.0.11", "rail"),
        ("192.168.86.11", "wire"),
    ]
    assert {way.encrypted for way in tried} == {True}
    tried = ways(facts, topology, "ab", encrypt=False)
    assert {way.address: way.encrypted for way in tried if way.source == "a"} == {
        "192.168.86.11": True,
        "10.1.0.11": False,
        "10.2.0.11": False,
    }


@pytest.mark.parametrize("name", ["wg0", "zt5u4y"])
def test_a_tunnel_is_the_last_choice(spark, cluster, name):
    def tunnel(place):
        return {"name": name, "mac": "", "operstate": "up", "carrier": True, "mtu": 1420, "speed_mbps": 100_000,
                "addresses": [f"10.9.0.{place}/24"]}  # fmt: skip

    facts = {node: spark(management=f"192.168.86.{place}/24") for place, node in enumerate("ab", 11)}
    for place, node in enumerate("ab", 11):
        more = spark(interfaces=[tunnel(place)]).interfaces
        facts[node] = facts[node].model_copy(update={"interfaces": (*facts[node].interfaces, *more)})
    found = ways(facts, build(cluster({"a": "a", "b": "b"}), facts), "ab", encrypt=False)
    (wire, tunnel) = chain("ab", found, Counter(a=1), 1)["b"]
    assert [each[0].address for each in (wire, tunnel)] == ["192.168.86.11", "10.9.0.11"]


# times


@pytest.mark.parametrize(
    ("kind", "rates", "seconds"),
    [
        (RAIL, {}, 30),  # the disk
        ({**RAIL, "encrypted": True}, {}, 150),
        (RAIL, {("rail", False): 1.2e9}, 50),
        ({**RAIL, "encrypted": True}, {("rail", False): 1.2e9}, 150),  # another rate
        (WIRE, {}, 533),
        ({**WIRE, "speed_mbps": 0}, {}, 533),
        (WIFI, {}, 2000),
    ],
)
def test_the_expected_duration_of_60_gb(kind, rates, seconds):
    assert round(expected_s(60 * 10**9, both("a", "b", kind)[0], rates)) == seconds
