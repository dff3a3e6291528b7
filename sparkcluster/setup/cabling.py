"""Which QSFP port is cabled to which, from what each machine hears on its ports. Pure.

Both twins of a port are on its one cable: what one of them sends arrives at both twins of the other end. So two ports
are connected where any twin of one hears any twin of the other, and any of that one any of the first: what one machine
says of another counts only where that one confirms it. Ports that were set up have no IPv6 address, and hear nobody
until ``survey`` asks for their IPv4 addresses.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sparkcluster.facts.base import read
from sparkcluster.facts.network import doubles, is_own
from sparkcluster.facts.survey import Neighbour, Survey
from sparkcluster.setup import troubles
from sparkcluster.setup.ports import (
    Fabric,
    Key,
    Kind,
    Loose,
    OneSided,
    Port,
    Segment,
    Trouble,
    ports_of,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Cabling:
    """How the nodes are cabled.

    Attributes:
        nodes: every node once: the same machine under a second name is left out.
        fabrics: groups of connected nodes, in the order of their first nodes.
        loose: ports whose other end is unknown.
        one_sided: ports that report others which do not confirm it, and are not connected with them otherwise.
        empty: nodes without a cable.
        swapped: nodes at which two cables have to be swapped.
        troubles: what is wrong.
    """

    nodes: tuple[str, ...]
    fabrics: tuple[Fabric, ...]
    loose: tuple[Loose, ...]
    one_sided: tuple[OneSided, ...]
    empty: tuple[str, ...]
    swapped: tuple[str, ...]
    troubles: tuple[Trouble, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Every segment, in the order in which rails are numbered."""
        return tuple(segment for fabric in self.fabrics for segment in fabric.segments)


def cabling(surveys: Mapping[str, Survey]) -> Cabling:
    """How the surveyed machines are cabled; their order is that of the nodes."""
    doubled = doubles(surveys)
    single = {name: survey for name, survey in surveys.items() if name not in doubled}
    ports = {name: ports_of(name, survey) for name, survey in single.items()}
    cabled = [port for name in single for port in ports[name] if port.cabled]
    owners, shared = _owners(itertools.chain.from_iterable(ports.values()))
    heard, others = _heard(single, cabled, owners)
    both = [pair for pair in heard if pair[::-1] in heard]
    connected = _components([port.key for port in cabled], both)
    one_sided = _one_sided(cabled, heard, connected)
    unconfirmed = {each.port.key for each in one_sided}
    segments, loose = [], []
    for keys in connected:
        members = tuple(port for port in cabled if port.key in keys)
        if len({port.node for port in members}) > 1:
            seen = {each.mac: each for port in members for each in others.get(port.key, ())}
            segments.append(Segment(members, tuple(seen.values())))
        else:
            loose += [
                Loose(port, tuple(others.get(port.key, ())), _is_unaddressed(port, single[port.node]))
                for port in members
            ]
    fabrics = _fabrics(segments, list(single))
    unread = [name for name, survey in single.items() if read(survey.interfaces) is None]
    empty = [name for name in single if name not in unread and not any(port.cabled for port in ports[name])]
    swapped = [each for fabric in fabrics for each in troubles.swapped(fabric, ports)]
    found = [
        *(troubles.same_machine(name, first) for name, first in doubled.items()),
        *map(troubles.unread, unread),
        *(troubles.same_mac(mac, names) for mac, names in shared.items()),
        *(troubles.no_cable(name, ports[name]) for name in empty if len(single) > 1),
        *map(troubles.one_sided, one_sided),
        *(troubles.unknown_end(each) for each in loose if each.seen or each.port.key not in unconfirmed),
        *(each for fabric in fabrics for each in troubles.unconnected(fabric, ports)),
        *swapped,
        *troubles.twins_down(cabled),
    ]
    at = tuple(each.node for each in swapped if each.node)
    return Cabling(tuple(single), fabrics, tuple(loose), one_sided, tuple(empty), at, tuple(found))


def _is_unaddressed(port: Port, survey: Survey) -> bool:
    return all(twin.name in survey.unaddressed for twin in port.twins if twin.carrier)


def _owners(ports: Iterable[Port]) -> tuple[dict[str, Key], dict[str, list[str]]]:
    """The port of each hardware address, and the nodes of one that several ports have, which says nothing."""
    found: dict[str, list[Key]] = defaultdict(list)
    for port in ports:
        for mac in {twin.mac.lower() for twin in port.twins}:
            if is_own(mac):
                found[mac].append(port.key)
    owners = {mac: keys[0] for mac, keys in found.items() if len(keys) == 1}
    nodes = {mac: list(dict.fromkeys(node for node, _ in keys)) for mac, keys in found.items()}
    return owners, {mac: names for mac, names in nodes.items() if len(names) > 1}


def _heard(
    surveys: Mapping[str, Survey], cabled: Sequence[Port], owners: Mapping[str, Key]
) -> tuple[dict[tuple[Key, Key], list[str]], dict[Key, list[Neighbour]]]:
    """Pairs of ports of which the first hears the second, with its interfaces that do, and the others by port.

    Others are machines that are none of the nodes.
    """
    by_interface = {(port.node, twin.name): port.key for port in cabled for twin in port.twins}
    keys = {port.key for port in cabled}
    nodes = {each.mac.lower() for survey in surveys.values() for each in read(survey.interfaces) or ()}
    pairs: dict[tuple[Key, Key], list[str]] = defaultdict(list)
    others: dict[Key, dict[str, Neighbour]] = defaultdict(dict)
    for name, survey in surveys.items():
        for neighbour in survey.neighbours:
            port = by_interface.get((name, neighbour.interface))
            if port is None:
                continue
            owner = owners.get(neighbour.mac)
            if owner is not None and owner[0] != name and owner in keys:
                pairs[port, owner].append(neighbour.interface)
            elif neighbour.mac not in nodes and is_own(neighbour.mac):
                others[port].setdefault(neighbour.mac, neighbour)
    return pairs, {key: list(seen.values()) for key, seen in others.items()}


def _components(keys: Sequence[Key], pairs: Iterable[tuple[Key, Key]]) -> list[set[Key]]:
    """``keys`` in sets of those that ``pairs`` join."""
    found = {key: {key} for key in keys}
    for one, other in pairs:
        if found[one] is not found[other]:
            found[one] |= found[other]
            for key in found[other]:
                found[key] = found[one]
    return list({id(each): each for each in found.values()}.values())


def _one_sided(
    cabled: Sequence[Port], heard: Mapping[tuple[Key, Key], Sequence[str]], connected: Sequence[set[Key]]
) -> tuple[OneSided, ...]:
    """Ports that hear others with which they are not connected; of two that hear each other both are connected."""
    ports = {port.key: port for port in cabled}
    places = {key: number for number, keys in enumerate(connected) for key in keys}
    found: dict[Key, dict[Key, Sequence[str]]] = defaultdict(dict)
    for (one, other), interfaces in heard.items():
        if places[one] != places[other]:
            found[one][other] = interfaces
    return tuple(
        OneSided(
            ports[key],
            tuple(ports[each] for each in others),
            tuple(dict.fromkeys(itertools.chain.from_iterable(others.values()))),
        )
        for key, others in found.items()
    )


# --------------------------------------------------------------------------------------------------- fabrics


def _fabrics(segments: Sequence[Segment], order: Sequence[str]) -> tuple[Fabric, ...]:
    """Connected nodes with their segments.

    A cable of a ring has the place of the node from which the other end is the next; others that of their first node,
    and of that node's port.
    """
    groups: list[tuple[set[str], list[Segment]]] = []
    for segment in segments:
        joined, own = set(segment.nodes), [segment]
        for group in [group for group in groups if group[0] & joined]:
            groups.remove(group)
            joined, own = joined | group[0], group[1] + own
        groups.append((joined, own))
    found = []
    for joined, own in groups:
        names = tuple(sorted(joined, key=order.index))
        kind = _kind(names, own)
        place = functools.partial(_place, names, kind == "ring")
        found.append(Fabric(names, tuple(sorted(own, key=place)), kind))
    return tuple(sorted(found, key=lambda fabric: order.index(fabric.nodes[0])))


def _place(names: Sequence[str], ring: bool, segment: Segment) -> tuple[int, int, str]:
    places = sorted(names.index(node) for node in segment.nodes)
    first = places[-1] if ring and places == [0, len(names) - 1] else places[0]
    port = segment.ports_of(names[places[0]])[0]
    return first, places[-1], port.name


def _kind(names: Sequence[str], segments: Sequence[Segment]) -> Kind:
    pairs = [frozenset(segment.nodes) for segment in segments]
    cables = all(segment.kind == "cable" for segment in segments)
    if not cables:
        same = all(segment.kind == "switch" and set(segment.nodes) == set(names) for segment in segments)
        return "switch" if same else "mixed"
    if len(names) == 2:
        return "one cable" if len(segments) == 1 else "two cables"
    ends = Counter(itertools.chain.from_iterable(pairs))
    if len(set(pairs)) < len(pairs) or max(ends.values()) > 2:
        return "mixed"
    if len(pairs) == len(names) - 1:
        return "line"
    return "ring" if len(names) == 3 else "mixed"
