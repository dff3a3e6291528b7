"""Which node pulls from which, over what, and how long that takes. Pure.

The order is a ring: each node pulls from the one before it, so that every byte goes over every cable once and a file
that one node has reaches all. In the usual case, where one node has everything, that is a chain. Which of two addresses
that look alike belongs to which node is known only once it proved its token: ``verified``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from sparkcluster.errors import PlanError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Interface
from sparkcluster.node.shared import CONTAINER_INTERFACES, TUNNEL_INTERFACES
from sparkcluster.topology import candidates
from sparkcluster.topology.model import Topology

Medium = Literal["rail", "wire", "wifi", "tunnel"]

_MEDIA: tuple[Medium, ...] = ("tunnel", "wifi", "wire", "rail")
_UNKNOWN_MBPS = 1000

# What a copy gets of a link, what an NVMe writes at most, and what one core does under TLS: 0.5 GB/s were measured on
# one EPYC core. A cluster's own rates replace them after the first copy (``last_rates``).
_SHARE, _DISK_BYTES_S, _TLS_BYTES_S, _WIFI_BYTES_S = 0.9, 2e9, 0.4e9, 0.03e9
_RATE_BYTES = 10**9  # a copy of less tells no rate

Rates = Mapping[tuple[str, bool], float]
"""Bytes per second by medium, and by whether they were encrypted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How ``target`` may reach ``source``.

    Attributes:
        address: of the source.
        interface: the slower one of both sides.
        speed_mbps: of that interface; 0 where it is unknown.
        medium: a rail carries plain bytes, anything else goes under TLS.
    """

    source: str
    target: str
    address: str
    interface: str
    speed_mbps: int
    medium: Medium

    @property
    def quality(self) -> tuple[int, int]:
        """Key that sorts the best last."""
        return _MEDIA.index(self.medium), self.speed_mbps


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """Who pulls from whom.

    Attributes:
        order: all nodes, each one after the node that it pulls from, unless it has everything.
        upstreams: by node, the nearest first; the rest are for when that one fails.
        bridges: the ways by which nodes that share no cable with anyone who has it get it.
        unreached: nodes that lack something and reach nobody.
    """

    order: tuple[str, ...]
    upstreams: Mapping[str, tuple[str, ...]]
    bridges: tuple[Way, ...]
    unreached: tuple[str, ...]


def listening(facts: Mapping[str, Facts], topology: Topology, node: str) -> dict[str, bool]:
    """Addresses at which ``node`` can be reached by others, and whether each is on a rail."""
    rails = _rails(facts, topology, node)
    return {address: address in rails for address, _, _ in _addresses(facts[node])}


def ways(facts: Mapping[str, Facts], topology: Topology, nodes: Sequence[str]) -> tuple[Way, ...]:
    """Every way that is worth a try between two of ``nodes``; which of them work, only a look can tell.

    Two addresses in networks of the same number may be on two cables, and nodes without a network in common may reach
    each other through a router.
    """
    found = []
    rails = {name: _rails(facts, topology, name) for name in nodes}
    for source in nodes:
        for target in nodes:
            own = {address: (interface, network) for address, network, interface in _addresses(facts[target])}
            for address, network, interface in _addresses(facts[source]) if source != target else ():
                if address in own:
                    continue
                near = [
                    (other, there)
                    for there, (other, its) in own.items()
                    if its == network and (there in rails[target]) == (address in rails[source])
                ]
                if near:
                    sides = [interface, max((other for other, _ in near), key=_speed)]
                elif address in rails[source] or interface.name.startswith(TUNNEL_INTERFACES):
                    continue  # nothing is sent in clear through a router
                else:
                    sides = [interface]
                found.append(_way(source, target, address, sides, rail=address in rails[source]))
    return tuple(found)


def probable(facts: Mapping[str, Facts], topology: Topology, nodes: Sequence[str]) -> tuple[Way, ...]:
    """The ways that probably work, where nobody looks: no rails between groups that have an address in common."""
    found = ways(facts, topology, nodes)
    owners = Counter(address for node in nodes for address in _rails(facts, topology, node))
    same = {way for way in found if topology.group_of(way.source) == topology.group_of(way.target)}
    doubtful = {way.address for way in found if way.medium == "rail" and owners[way.address] > 1}
    pairs = {frozenset({way.source, way.target}) for way in found if way.address in doubtful and way not in same}
    return tuple(
        way for way in found if way.medium != "rail" or way in same or frozenset({way.source, way.target}) not in pairs
    )


def verified(tried: Iterable[Way], reached: Mapping[str, Mapping[str, Collection[str]]]) -> tuple[Way, ...]:
    """The ways of ``tried`` that work, as each target says: ``reached`` has by target and source the addresses."""
    return tuple(way for way in tried if way.address in reached.get(way.target, {}).get(way.source, ()))


def between(found: Iterable[Way], source: str, target: str) -> tuple[Way, ...]:
    """The ways by which ``target`` pulls from ``source``: all rails if there is one, else the rest, best first."""
    pair = sorted(
        (way for way in found if (way.source, way.target) == (source, target)),
        key=lambda way: way.quality,
        reverse=True,
    )
    return tuple(way for way in pair if way.medium == "rail") or tuple(pair)


def islands(nodes: Sequence[str], found: Iterable[Way]) -> tuple[tuple[str, ...], ...]:
    """The nodes that are connected by rails, each in the order of ``nodes``. A rail works in both directions."""
    pairs = {(way.source, way.target) for way in found if way.medium == "rail"}
    pairs &= {(target, source) for source, target in pairs}
    left, made = list(nodes), []
    while left:
        island = {left[0]}
        while more := {node for node in left if any((other, node) in pairs for other in island)} - island:
            island |= more
        made.append(tuple(node for node in left if node in island))
        left = [node for node in left if node not in island]
    return tuple(made)


def chain(nodes: Sequence[str], found: Sequence[Way], has_bytes: Mapping[str, int], total: int) -> Chain:
    """The chain of ``nodes`` over ``found`` (verified ways), of which each has some bytes of ``total``."""
    parts = islands(nodes, found)
    bridging, unreached = bridges(parts, found, has_bytes, total)
    first = {way.target: way for way in bridging}
    order: list[str] = []
    for part in sorted(parts, key=lambda part: max(has_bytes.get(node, 0) for node in part), reverse=True):
        order += ring(part, found, has_bytes, first=next((node for node in part if node in first), None))
    return Chain(tuple(order), upstreams(order, parts, found, bridging), bridging, unreached)


def ring(
    island: Sequence[str], found: Iterable[Way], has_bytes: Mapping[str, int], *, first: str | None = None
) -> tuple[str, ...]:
    """The nodes of an island from ``first`` on, by default the one with most bytes; each next is the last's neighbour.

    Where the last one has no neighbour left, the next is one of an earlier one.
    """
    pairs = {(way.source, way.target) for way in found if way.medium == "rail"}
    left = sorted(island, key=lambda node: (node != first, -has_bytes.get(node, 0)))
    order = [left.pop(0)]
    while left:
        near = (node for last in reversed(order) for node in left if (last, node) in pairs)
        order.append(next(near, left[0]))
        left.remove(order[-1])
    return tuple(order)


def bridges(
    parts: Sequence[Sequence[str]], found: Iterable[Way], has_bytes: Mapping[str, int], total: int
) -> tuple[tuple[Way, ...], tuple[str, ...]]:
    """One way into each island in which no node has everything, and the nodes to which there is none.

    The best medium first, and of those alike the source with most bytes. Where no node has everything, the island
    with most bytes gets one last: what it lacks alone is elsewhere.
    """
    whole = [part for part in parts if any(has_bytes.get(node, 0) >= total for node in part)]
    lacking = [part for part in parts if part not in whole]
    last = [] if whole else [max(parts, key=lambda part: max(has_bytes.get(node, 0) for node in part))]
    supplied = {node for part in (*whole, *last) for node in part}
    lacking = [part for part in lacking if part not in last]
    others = [way for way in found if way.medium != "rail"]
    made: list[Way] = []
    while lacking:
        targets = {node for part in lacking for node in part}
        usable = [way for way in others if way.source in supplied and way.target in targets]
        if not usable:
            return tuple(made), tuple(node for part in lacking for node in part)
        best = max(usable, key=lambda way: (way.quality, has_bytes.get(way.source, 0), has_bytes.get(way.target, 0)))
        made.append(best)
        reached = next(part for part in lacking if best.target in part)
        supplied.update(reached)
        lacking.remove(reached)
    for part in last if made else ():
        inward = [way for way in others if way.target in part and way.source in supplied.difference(part)]
        made += [max(inward, key=lambda way: way.quality)] if inward else []
    return tuple(made), ()


def upstreams(
    order: Sequence[str], parts: Sequence[Sequence[str]], found: Iterable[Way], bridging: Iterable[Way]
) -> dict[str, tuple[str, ...]]:
    """By node whom it pulls from: those before it in the ring of its island, the nearest first.

    The node at the end of a bridge pulls over that, else over another way from outside, and only then over a rail: its
    neighbours have what comes from itself.
    """
    rails = {(way.source, way.target) for way in found if way.medium == "rail"}
    outside = sorted((way for way in found if way.medium != "rail"), key=lambda way: way.quality, reverse=True)
    source = {way.target: way.source for way in bridging}
    made = {}
    for part in parts:
        inner = [node for node in order if node in part]
        for place, node in enumerate(inner):
            before = [*reversed(inner[:place]), *reversed(inner[place + 1 :])]
            near = [other for other in before if (other, node) in rails]
            if node in source:
                far = [way.source for way in outside if way.target == node and way.source not in part]
                near = [source[node], *far, *near]
            made[node] = tuple(dict.fromkeys(near))
    return made


def turned(upstream: Mapping[str, tuple[str, ...]], stuck: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The same where each node that is ``stuck`` asks its next source first.

    For the rare case of pieces on several nodes that are not all connected to each other: whoever has the missing file
    is asked in turn.
    """
    return {node: names[1:] + names[:1] if node in stuck else names for node, names in upstream.items()}


def last_rates(lines: Iterable[Mapping[str, Any]], artifact: str = "weights") -> Rates:
    """The rates of the last copies of an ``artifact`` of at least 1 GB, from ``lines`` of ``runtime.observed``."""
    rates = {}
    for line in lines:
        size, seconds = line.get("bytes"), line.get("seconds")
        if (line.get("what"), line.get("artifact")) != ("stage", artifact):
            continue  # what an image takes is Docker's time
        if isinstance(size, int) and isinstance(seconds, int | float) and size >= _RATE_BYTES and seconds > 0:
            rates[str(line.get("medium")), bool(line.get("encrypted"))] = size / seconds
    return rates


def expected_s(size_bytes: int, way: Way, rates: Rates, *, encrypted: bool = False) -> float:
    """Seconds that ``size_bytes`` probably take over ``way``: by the last copy, else by the speed of the link."""
    if (way.medium, encrypted) in rates:
        return size_bytes / rates[way.medium, encrypted]
    rate = min(_DISK_BYTES_S, _SHARE * (way.speed_mbps or _UNKNOWN_MBPS) * 1e6 / 8)
    if encrypted:
        rate = min(rate, _TLS_BYTES_S)
    if way.medium in {"wifi", "tunnel"}:
        rate = min(rate, _WIFI_BYTES_S)
    return size_bytes / rate


def _rails(facts: Mapping[str, Facts], topology: Topology, node: str) -> Collection[str]:
    """Addresses of ``node`` on the interconnect; of a node alone in its group those of its cabled twins."""
    member = topology.members.get(node)
    if member is not None and member.links:
        return {link.address for link in member.links}
    try:
        return {link.address for link in candidates.automatic(node, facts[node])}
    except PlanError:
        return ()


def _addresses(facts: Facts) -> list[tuple[str, str, Interface]]:
    """Addresses of a node with their network and interface, without those of container networks."""
    return [
        (str(address.ip), str(address.network), interface)
        for interface in read(facts.interfaces) or ()
        if interface.carrier and not interface.name.startswith(CONTAINER_INTERFACES)
        for address in interface.ipv4()
    ]


def _way(source: str, target: str, address: str, sides: Sequence[Interface], *, rail: bool) -> Way:
    slower = min(sides, key=_speed)
    medium: Medium = "rail" if rail else "wire"
    if any(side.wireless for side in sides):
        medium = "wifi"
    if any(side.name.startswith(TUNNEL_INTERFACES) for side in sides):
        medium = "tunnel"
    return Way(source, target, address, slower.name, slower.speed_mbps or 0, medium)


def _speed(interface: Interface) -> int:
    return interface.speed_mbps or 0
