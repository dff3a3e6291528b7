"""Decides which node pulls from which, over which network, and estimates how long it takes. Pure.

The order is a ring: each node pulls from the previous one, so that every byte crosses every cable once, and a file that
one node has reaches all. In the usual case one node has everything, and the ring is a chain. If two nodes have the same
address, only a node's token proves which one answered.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sparkcluster.errors import PlanError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Interface
from sparkcluster.node.shared import CONTAINER_INTERFACES, TUNNEL_INTERFACES
from sparkcluster.report import Medium
from sparkcluster.topology import candidates
from sparkcluster.topology.model import Topology

_MEDIA: tuple[Medium, ...] = ("tunnel", "wifi", "wire", "rail")
_UNKNOWN_MBPS = 1000

# The share of a link that a copy gets, the write rate of an NVMe, and the rate of one core under TLS (0.5 GB/s were
# measured on an EPYC core). The cluster's own rates replace them after the first copy (``last_rates``).
_SHARE, _DISK_BYTES_S, _TLS_BYTES_S, _WIFI_BYTES_S = 0.9, 2e9, 0.4e9, 0.03e9
_RATE_BYTES = 10**9  # smaller copies give no reliable rate

Rates = Mapping[tuple[str, bool], float]
"""Bytes per second by medium and by whether the copy was encrypted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """A connection by which ``target`` may reach ``source``.

    Attributes:
        address: address of the source.
        interface: the slower of both interfaces.
        speed_mbps: speed of that interface; 0 if unknown.
        medium: kind of network.
        encrypted: whether TLS is used; on a rail only if requested.
    """

    source: str
    target: str
    address: str
    interface: str
    speed_mbps: int
    medium: Medium
    encrypted: bool


Source = tuple[Way, ...]
"""How a node may pull from another: over all rails at the same time, or over one other connection."""


def ways(facts: Mapping[str, Facts], topology: Topology, nodes: Sequence[str], *, encrypt: bool) -> tuple[Way, ...]:
    """All connections between two of ``nodes`` that may work; only a test can tell which do.

    ``encrypt``: use TLS on rails too.

    Two addresses in the same subnet may be on different cables, and nodes without a common subnet may reach each other
    through a router.
    """
    rails = {name: _rails(facts, topology, name) for name in nodes}
    found = []
    for source, target in itertools.permutations(nodes, 2):
        own = _addresses(facts[target])
        for address, network, interface in _addresses(facts[source]):
            rail = address in rails[source]
            near = [other for its, net, other in own if net == network and (its in rails[target]) == rail]
            if any(its == address for its, _, _ in own):
                continue
            if not near and (rail or interface.name.startswith(TUNNEL_INTERFACES)):
                continue  # nothing is sent unencrypted through a router
            sides = [interface, *sorted(near, key=_speed)[-1:]]
            slower, medium = min(sides, key=_speed), _medium(sides, rail=rail)
            found.append(Way(source, target, address, slower.name, _speed(slower), medium, encrypt or not rail))
    return tuple(found)


def probable(facts: Mapping[str, Facts], topology: Topology, nodes: Sequence[str], *, encrypt: bool) -> tuple[Way, ...]:
    """The connections that probably work, without a test.

    Rails between different groups are omitted if two nodes have the source's address.
    """
    owners = Counter(address for node in nodes for address in _rails(facts, topology, node))
    return tuple(
        way
        for way in ways(facts, topology, nodes, encrypt=encrypt)
        if way.medium != "rail"
        or owners[way.address] == 1
        or topology.group_of(way.source) == topology.group_of(way.target)
    )


def chain(
    nodes: Sequence[str], found: Iterable[Way], has_bytes: Mapping[str, int], total: int
) -> dict[str, tuple[Source, ...]]:
    """The sources of each of ``nodes`` over ``found`` (tested connections), in order of preference.

    ``has_bytes`` is how many of ``total`` bytes each node has. Each island (nodes connected by rails in both
    directions) is a ring: the next node is a neighbour of the last one; if that has none left, of an earlier one. An
    island in which no node has everything gets it over one bridge: the best connection; among equals, the one whose
    source, and then target, has the most bytes. Each node comes after its first source, unless it has everything
    itself. Nodes that reach no complete node are omitted.
    """

    def quality(way: Way) -> tuple[int, ...]:
        return _MEDIA.index(way.medium), way.speed_mbps, has_bytes[way.source], has_bytes[way.target]

    found = sorted(found, key=quality, reverse=True)
    rails = {(way.source, way.target) for way in found if way.medium == "rail"}
    others = [way for way in found if way.medium != "rail"]
    left = sorted(nodes, key=lambda node: has_bytes[node], reverse=True)
    islands: list[list[str]] = []
    while left:
        before = [node for island in islands for node in island]
        near = [node for last in reversed(before) for node in left if {(last, node), (node, last)} <= rails]
        whole = [node for node in left if not before or has_bytes[node] >= total]
        far = [way.target for way in others if way.target in left and way.source in before]
        following = [*near, *whole, *far]
        if not following:
            break
        if not near:
            islands.append([])
        islands[-1].append(following[0])
        left.remove(following[0])
    sources: dict[str, tuple[Source, ...]] = {}
    for place, island in enumerate(islands):
        outside = [node for other in islands[:place] or islands[1:] for node in other]
        bridges = [way for way in others if way.target in island and way.source in outside]
        bridge = bridges[0] if bridges and has_bytes[island[0]] < total else None
        sources |= {node: _sources(node, island, found, bridge) for node in island}
    return sources


def _sources(node: str, ring: Sequence[str], found: Iterable[Way], bridge: Way | None) -> tuple[Source, ...]:
    """The sources of ``node``: first the previous nodes of its ``ring`` by rail, nearest first, then other connections.

    The node at the end of a ``bridge`` pulls over it first, then over other connections from outside, and only then by
    rail: its neighbours have only what they got from it.
    """
    place = ring.index(node)
    before = [*reversed(ring[:place]), *reversed(ring[place + 1 :])]
    rails = [way for way in found if way.target == node and way.medium == "rail"]
    others = [way for way in found if way.target == node and way.medium != "rail"]
    near = [tuple(way for way in rails if way.source == other) for other in before]
    far = sorted((way for way in others if bridge in others and way.source not in ring), key=lambda way: way != bridge)
    return (*((way,) for way in far), *filter(None, near), *((way,) for way in others if way not in far))


def last_rates(lines: Iterable[Mapping[str, Any]], artifact: str = "weights") -> Rates:
    """Rates of the last copies of ``artifact`` with at least 1 GB, from ``lines`` of ``runtime.observed``."""
    rates = {}
    for line in lines:
        size, seconds = line.get("bytes"), line.get("seconds")
        if (line.get("what"), line.get("artifact")) != ("stage", artifact):
            continue  # the time for an image is mostly Docker's
        if isinstance(size, int) and isinstance(seconds, int | float) and size >= _RATE_BYTES and seconds > 0:
            rates[str(line.get("medium")), bool(line.get("encrypted"))] = size / seconds
    return rates


def expected_s(size_bytes: int, way: Way, rates: Rates) -> float:
    """Expected seconds for ``size_bytes`` over ``way``: from the last copy, else from the link speed."""
    if (way.medium, way.encrypted) in rates:
        return size_bytes / rates[way.medium, way.encrypted]
    rate = min(_DISK_BYTES_S, _SHARE * (way.speed_mbps or _UNKNOWN_MBPS) * 1e6 / 8)
    if way.encrypted:
        rate = min(rate, _TLS_BYTES_S)
    if way.medium in {"wifi", "tunnel"}:
        rate = min(rate, _WIFI_BYTES_S)
    return size_bytes / rate


def _rails(facts: Mapping[str, Facts], topology: Topology, node: str) -> Collection[str]:
    """Addresses of ``node`` on the interconnect; for a single-node group, of its cabled twins."""
    member = topology.members.get(node)
    if member is not None and member.links:
        return {link.address for link in member.links}
    try:
        return {link.address for link in candidates.automatic(node, facts[node])}
    except PlanError:
        return ()


def _addresses(facts: Facts) -> list[tuple[str, str, Interface]]:
    """Addresses of a node with network and interface, without container networks."""
    return [
        (str(address.ip), str(address.network), interface)
        for interface in read(facts.interfaces) or ()
        if interface.carrier and not interface.name.startswith(CONTAINER_INTERFACES)
        for address in interface.ipv4()
    ]


def _medium(sides: Sequence[Interface], *, rail: bool) -> Medium:
    if any(side.name.startswith(TUNNEL_INTERFACES) for side in sides):
        return "tunnel"
    if any(side.wireless for side in sides):
        return "wifi"
    return "rail" if rail else "wire"


def _speed(interface: Interface) -> int:
    return interface.speed_mbps or 0
