"""Who pulls from whom: pure, and as a model of nodes that pull, with files anywhere and nodes that die."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.staging.chain import (
    Way,
    between,
    chain,
    expected_s,
    islands,
    last_rates,
    listening,
    probable,
    turned,
    verified,
    ways,
)
from sparkcluster.staging.expected import between_nodes
from sparkcluster.topology.build import build

RAIL = {"medium": "rail", "speed_mbps": 200_000, "interface": "enp1s0f0np0"}
WIRE = {"medium": "wire", "speed_mbps": 1000, "interface": "enP7s7"}
WIFI = {"medium": "wifi", "speed_mbps": 0, "interface": "wlP9s9"}


def both(first, second, kind):
    return tuple(Way(one, two, f"10.0.0.{ord(one[-1])}", **kind) for one, two in ((first, second), (second, first)))


def mesh(nodes, kind):
    return tuple(way for pair in itertools.combinations(nodes, 2) for way in both(*pair, kind))


def line(nodes, kind):
    return tuple(way for pair in itertools.pairwise(nodes) for way in both(*pair, kind))


def test_in_a_group_each_pulls_from_the_one_before_it_and_past_that_if_it_fails():
    made = chain("abcd", mesh("abcd", RAIL), {"c": 10}, 10)
    assert made.order == ("c", "a", "b", "d")
    assert made.upstreams["a"][0] == "c"
    assert made.upstreams["d"] == ("b", "a", "c")
    assert (made.bridges, made.unreached) == ((), ())


def test_the_source_sends_to_one_node_alone():
    made = chain("abcdefgh", mesh("abcdefgh", RAIL), {"a": 10}, 10)
    first = [names[0] for node, names in made.upstreams.items() if node != "a"]
    assert len(set(first)) == 7


def test_nodes_with_a_part_of_it_come_before_those_with_nothing():
    assert chain("abcd", mesh("abcd", RAIL), {"d": 10, "b": 4}, 10).order == ("d", "b", "a", "c")


def test_along_a_line_nobody_pulls_from_a_node_without_a_cable_to_it():
    made = chain("abc", line("abc", RAIL), {"b": 10}, 10)
    assert made.upstreams == {"a": ("b",), "b": made.upstreams["b"], "c": ("b",)}


def test_an_island_without_it_gets_it_once_and_over_the_best_way():
    found = (*line("ab", RAIL), *line("cd", RAIL), *mesh("abcd", WIFI), *both("a", "d", WIRE))
    made = chain("abcd", found, {"a": 10}, 10)
    assert [(way.source, way.target, way.medium) for way in made.bridges] == [("a", "d", "wire")]
    assert made.order == ("a", "b", "d", "c")
    assert made.upstreams["d"] == ("a", "b", "c")
    assert made.upstreams["c"] == ("d",)


def test_an_island_that_has_it_needs_no_bridge():
    found = (*line("ab", RAIL), *line("cd", RAIL), *mesh("abcd", WIRE))
    assert chain("abcd", found, {"a": 10, "c": 10}, 10).bridges == ()


def test_a_bridge_may_lead_over_an_island_that_got_it_by_a_bridge():
    made = chain("abc", (*both("a", "b", WIFI), *both("b", "c", WIRE)), {"a": 10}, 10)
    assert [(way.source, way.target) for way in made.bridges] == [("a", "b"), ("b", "c")]


def test_a_node_that_nobody_reaches_is_named():
    made = chain("abcd", (*line("ab", RAIL), *line("cd", RAIL)), {"a": 10}, 10)
    assert made.unreached == ("c", "d")


def test_a_rail_that_works_in_one_direction_alone_is_none():
    one_way = both("a", "b", RAIL)[:1]
    assert islands("ab", one_way) == (("a",), ("b",))


def test_streams_go_over_all_rails_and_over_one_other_way_only_without_any():
    found = (*both("a", "b", RAIL), *both("a", "b", WIRE), *both("a", "c", WIFI), *both("a", "c", WIRE))
    assert {way.medium for way in between(found, "a", "b")} == {"rail"}
    assert [way.medium for way in between(found, "a", "c")] == ["wire", "wifi"]


# which addresses are tried


GROUPS = [{"name": "one", "nodes": ["a", "b"]}, {"name": "two", "nodes": ["c", "d"]}]


def pairs(spark, cluster):
    """Two pairs, each with a cable of its own, whose owners followed the same guide: .11 and .12 on both."""
    hosts = {"a": ("10.1.0.11", 11), "b": ("10.1.0.12", 12), "c": ("10.1.0.11", 13), "d": ("10.1.0.12", 14)}
    facts = {
        name: spark({"enp1s0f0np0": f"{address}/24"}, management=f"192.168.86.{place}/24")
        for name, (address, place) in hosts.items()
    }
    spec = cluster({name: name for name in hosts}, groups=GROUPS)
    return facts, build(spec, facts)


def test_which_of_two_nodes_has_an_address_is_not_told_by_its_number(spark, cluster):
    """The rail from a to d is tried, and what answers there is c: only the token tells."""
    facts, topology = pairs(spark, cluster)
    tried = ways(facts, topology, list(facts))
    assert {way.medium for way in tried if (way.source, way.target) == ("a", "d")} == {"rail", "wire"}
    management = {name: f"192.168.86.{place}" for place, name in enumerate("abcd", 11)}
    reached = {
        target: {source: {management[source]} | ({address} if {source, target} in ({"a", "b"}, {"c", "d"}) else set())
                 for source, address in zip("abcd", ["10.1.0.11", "10.1.0.12"] * 2, strict=True) if source != target}
        for target in "abcd"
    }  # fmt: skip
    found = verified(tried, reached)
    assert [way.medium for way in found if (way.source, way.target) == ("a", "d")] == ["wire"]
    made = chain("abcd", found, {"a": 10}, 10)
    assert made.upstreams["b"] == ("a",)
    assert [(way.source, way.medium) for way in made.bridges] == [("a", "wire")]
    assert made.bridges[0].target in "cd"


def test_a_dry_run_counts_on_no_cable_between_pairs_that_have_the_same_addresses(spark, cluster):
    facts, topology = pairs(spark, cluster)
    lacks = dict.fromkeys("bcd", 60 * 10**9)
    moves = between_nodes(probable(facts, topology, "abcd"), "a", "bcd", lacks, {}, encrypt=False)
    assert [(each.node, each.source, each.over, each.encrypted, each.seconds) for each in moves] == [
        ("b", "a", "its cable (enp1s0f0np0, 200 Gb/s)", False, 30.0),
        ("c", "a", "the management network (enP7s7, 10 Gb/s)", True, 150.0),
        ("d", "c", "its cable (enp1s0f0np0, 200 Gb/s)", False, 30.0),
    ]


def test_a_dry_run_counts_on_one_switch_where_all_addresses_differ(spark, cluster):
    facts = {name: spark({"enp1s0f0np0": f"10.1.0.{place}/24"}) for place, name in enumerate("abcd", 11)}
    spec = cluster({name: name for name in "abcd"}, groups=GROUPS)
    found = probable(facts, build(spec, facts), "abcd")
    assert {way.medium for way in found if {way.source, way.target} == {"a", "d"}} == {"rail"}


def test_only_what_the_target_itself_reached_counts(spark, cluster):
    facts, topology = pairs(spark, cluster)
    tried = ways(facts, topology, list(facts))
    reached = {"b": {"a": ["10.1.0.11"]}, "c": {"b": ["10.99.0.1"]}, "a": {}}
    assert {(way.source, way.target) for way in verified(tried, reached)} == {("a", "b")}


def test_a_node_without_a_network_in_common_is_tried_through_its_router_and_never_in_clear(spark, cluster):
    facts = {
        "a": spark({"enp1s0f0np0": "10.1.0.11/24"}, management="192.168.86.11/24"),
        "b": spark({"enp1s0f0np0": "10.2.0.12/24"}, management="192.168.87.12/24"),
    }
    tried = ways(facts, build(cluster({"a": "a", "b": "b"}), facts), "ab")
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
    tried = [way for way in ways(facts, topology, "ab") if way.source == "a"]
    assert sorted((way.address, way.medium) for way in tried) == [
        ("10.1.0.11", "rail"),
        ("10.2.0.11", "rail"),
        ("192.168.86.11", "wire"),
    ]
    assert listening(facts, topology, "a") == {
        "192.168.86.11": False,
        "192.168.50.7": False,
        "10.1.0.11": True,
        "10.2.0.11": True,
    }


def test_two_replicas_of_one_node_each_still_copy_over_the_cable(spark, cluster):
    facts = {name: spark({"enp1s0f0np0": f"10.1.0.{place}/24"}) for place, name in enumerate("ab", 11)}
    spec = cluster({"a": "a", "b": "b"}, groups=[{"name": "one", "nodes": ["a"]}, {"name": "two", "nodes": ["b"]}])
    assert {way.medium for way in ways(facts, build(spec, facts), "ab")} == {"rail"}


@pytest.mark.parametrize("name", ["tap0", "wg0", "tailscale0", "zt5u4y"])
def test_a_tunnel_is_the_last_choice(spark, cluster, name):
    def tunnel(place):
        return {"name": name, "mac": "", "operstate": "up", "carrier": True, "mtu": 1420, "speed_mbps": 100_000,
                "addresses": [f"10.9.0.{place}/24"]}  # fmt: skip

    facts = {node: spark(management=f"192.168.86.{place}/24") for place, node in enumerate("ab", 11)}
    for place, node in enumerate("ab", 11):
        more = spark(interfaces=[tunnel(place)]).interfaces
        facts[node] = facts[node].model_copy(update={"interfaces": (*facts[node].interfaces, *more)})
    found = ways(facts, build(cluster({"a": "a", "b": "b"}), facts), "ab")
    assert [(way.medium, way.address) for way in between(found, "a", "b")] == [
        ("wire", "192.168.86.11"),
        ("tunnel", "10.9.0.11"),
    ]


# times


@pytest.mark.parametrize(
    ("kind", "more", "seconds"),
    [
        (RAIL, {}, 30),  # the disk
        (RAIL, {"encrypted": True}, 150),
        (RAIL, {"rates": {("rail", False): 1.2e9}}, 50),
        (RAIL, {"rates": {("rail", False): 1.2e9}, "encrypted": True}, 150),  # another rate
        (WIRE, {}, 533),
        ({**WIRE, "speed_mbps": 10_000}, {}, 53),
        ({**WIRE, "speed_mbps": 10_000}, {"encrypted": True}, 150),
        ({**WIRE, "speed_mbps": 0}, {}, 533),
        (WIFI, {}, 2000),
        ({**WIRE, "speed_mbps": 10_000}, {"rates": {("wire", True): 0.6e9}, "encrypted": True}, 100),
    ],
)
def test_how_long_60_gb_take(kind, more, seconds):
    assert round(expected_s(60 * 10**9, both("a", "b", kind)[0], **{"rates": {}, **more})) == seconds


def test_the_rate_of_a_cluster_is_that_of_its_last_large_copy():
    line = {
        "what": "stage",
        "artifact": "weights",
        "medium": "rail",
        "encrypted": False,
        "bytes": 10**9,
        "seconds": 2.0,
    }
    lines = [
        line, {**line, "seconds": 1}, {**line, "encrypted": True}, {**line, "bytes": 10**9 - 1, "seconds": 9},
        {**line, "seconds": 0}, {**line, "what": "deep", "seconds": 9}, {**line, "bytes": "x"}, {"what": "stage"},
        {**line, "artifact": "image", "seconds": 9},
    ]  # fmt: skip
    assert last_rates(lines) == {("rail", False): 1e9, ("rail", True): 0.5e9}


# the model: nodes that pull, of which some die


class Model:
    """Nodes that pull one unit of each of at most ``streams`` files in a tick, as workers do, and the controller."""

    def __init__(self, chance: random.Random, deaths: bool) -> None:
        self.chance, self.deaths = chance, deaths
        self.nodes = [f"n{place}" for place in range(chance.randint(2, 8))]
        self.sizes = [chance.randint(1, 6) for _ in range(chance.randint(1, 20))]
        self.streams = chance.randint(1, 4)
        everywhere = chance.random() < 0.5
        self.has = {node: [0] * len(self.sizes) for node in self.nodes}
        whole = chance.choice(self.nodes) if chance.random() < 0.5 else None
        for file, size in enumerate(self.sizes):
            holders = [whole] if whole else chance.sample(self.nodes, chance.randint(1, len(self.nodes)))
            for node in self.nodes:
                begun = chance.randint(0, size - 1) if chance.random() < 0.3 else 0
                self.has[node][file] = size if node in holders else begun
        cables = [pair for pair in itertools.combinations(self.nodes, 2) if everywhere or chance.random() < 0.5]
        self.managed = chance.random() < 0.7
        self.found = tuple(way for pair in cables for way in both(*pair, RAIL))
        if self.managed:
            self.found += mesh(self.nodes, WIRE)
        self.alive = set(self.nodes)
        self.plan()

    def plan(self) -> None:
        living = [node for node in self.nodes if node in self.alive]
        found = [way for way in self.found if {way.source, way.target} <= self.alive]
        has = {node: sum(self.has[node]) for node in living}
        self.upstreams = chain(living, found, has, sum(self.sizes)).upstreams

    def missing(self) -> set[tuple[str, int]]:
        return {
            (node, file) for node in self.alive for file, size in enumerate(self.sizes) if self.has[node][file] < size
        }

    def tick(self) -> bool:
        """Whether a byte moved."""
        moved = False
        for node in self.chance.sample(sorted(self.alive), len(self.alive)):
            source = next((name for name in self.upstreams[node] if name in self.alive), None)
            grown = [
                file for file, size in enumerate(self.sizes)
                if source is not None and self.has[node][file] < min(size, self.has[source][file])
            ][: self.streams]  # fmt: skip
            for file in grown:
                self.has[node][file] += 1
                moved = True
        return moved

    def run(self) -> set[tuple[str, int]]:
        """What is still missing once nothing moves, whomever the nodes ask."""
        idle = 0
        while self.missing() and idle <= 2 * len(self.nodes):
            if self.deaths and len(self.alive) > 1 and self.chance.random() < 0.03:
                self.alive.discard(self.chance.choice(sorted(self.alive)))
                self.plan()
            if self.tick():
                idle = 0
            else:
                idle += 1
                self.upstreams = turned(self.upstreams, {node for node, _ in self.missing()})
        return self.missing()

    def connected(self, node: str) -> set[str]:
        """The living nodes from which bytes can come to ``node``."""
        living = [way for way in self.found if {way.source, way.target} <= self.alive]
        found = {node}
        while more := {way.source for way in living if way.target in found} - found:
            found |= more
        return found


@given(seed=st.integers(0, 1 << 32), deaths=st.booleans())
@settings(max_examples=300, deadline=None)
def test_every_node_gets_every_file_that_a_living_node_has_wherever_it_lies(seed, deaths):
    model = Model(random.Random(seed), deaths)
    for node, file in model.run():
        holders = {other for other in model.alive if model.has[other][file] == model.sizes[file]}
        assert not holders & model.connected(node), (node, file)
        most = max(model.has[other][file] for other in model.connected(node))
        assert model.has[node][file] == most  # what died with its only holder is kept as far as it came


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=100, deadline=None)
def test_from_one_whole_node_over_rails_nothing_ever_waits_to_be_asked_elsewhere(seed):
    """The order alone is enough: nobody needs another source than the one it was given."""
    chance = random.Random(seed)
    model = Model(chance, deaths=False)
    model.has[model.nodes[0]] = list(model.sizes)
    model.found += mesh(model.nodes, WIRE)
    model.plan()
    while model.missing():
        assert model.tick()
