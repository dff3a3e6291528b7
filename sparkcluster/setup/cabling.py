"""Which QSFP ports are connected, from the neighbours that each machine sees on its ports. Pure.

Both twins of a port share its cable: a packet from one twin arrives at both twins of the other end. Two ports are
connected if each sees a twin of the other; a neighbour reported by one side only is ignored. Ports configured by setup
have no IPv6 address and see no neighbours until ``survey`` requests their IPv4 addresses.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from sparkcluster.facts.base import read
from sparkcluster.facts.machine import doubles
from sparkcluster.facts.network import is_own
from sparkcluster.facts.survey import Survey
from sparkcluster.setup import troubles
from sparkcluster.setup.ports import Key, Loose, Port, Segment, Trouble, ports_of

_K = TypeVar("_K")


@dataclasses.dataclass(frozen=True, slots=True)
class Cabling:
    """How the nodes are cabled.

    Attributes:
        nodes: every node once; a second name of the same machine is omitted.
        groups: sets of nodes connected directly or through other nodes, in node order.
        segments: in rail order.
        loose: ports whose other end is unknown or does not see them.
        swapped: nodes whose two cables must be swapped.
        troubles: problems found.
    """

    nodes: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    segments: tuple[Segment, ...]
    loose: tuple[Loose, ...]
    swapped: tuple[str, ...]
    troubles: tuple[Trouble, ...]


def cabling(surveys: Mapping[str, Survey]) -> Cabling:
    """The cabling of the surveyed machines, in the order of ``surveys``."""
    doubled = doubles(surveys)
    single = {name: survey for name, survey in surveys.items() if name not in doubled}
    nodes = list(single)
    ports = {name: ports_of(name, survey) for name, survey in single.items()}
    cabled = [port for name in single for port in ports[name] if port.cabled]
    heard = _heard(single, cabled, _owners(itertools.chain.from_iterable(ports.values())))
    pairs = [(one, other) for one, seen in heard.items() for other in seen.values() if other is not None]
    segments: list[Segment] = []
    loose: list[Loose] = []
    for keys in _components([port.key for port in cabled], (pair for pair in pairs if pair[::-1] in pairs)):
        members = tuple(port for port in cabled if port.key in keys)
        if len({port.node for port in members}) > 1:
            others = [who for port in members for who, key in heard[port.key].items() if key is None]
            segments.append(Segment(members, tuple(dict.fromkeys(others))))
        else:
            loose += [Loose(port, tuple(heard[port.key]), _is_unaddressed(port, single[port.node])) for port in members]
    joined = (pair for segment in segments for pair in itertools.combinations(segment.nodes, 2))
    found = [sorted(each, key=nodes.index) for each in _components(nodes, joined)]
    groups = tuple(tuple(each) for each in found if len(each) > 1)
    places = {node: (number, place) for number, group in enumerate(groups) for place, node in enumerate(group)}
    segments.sort(key=lambda segment: (sorted(places[node] for node in segment.nodes), segment.ports[0].name))
    empty = [name for name in single if not any(port.cabled for port in ports[name])]
    swapped = list(troubles.swapped(nodes, segments, ports))
    wrong = [
        *(troubles.same_machine(name, first) for name, first in doubled.items()),
        *(troubles.no_cable(name, ports[name]) for name in empty if len(single) > 1),
        *map(troubles.unknown_end, loose),
        *(each for group in groups for each in troubles.unconnected(group, segments, ports)),
        *swapped,
        *troubles.twins_down(cabled),
    ]
    at = tuple(each.node for each in swapped if each.node)
    return Cabling(tuple(nodes), groups, tuple(segments), tuple(loose), at, tuple(wrong))


def _is_unaddressed(port: Port, survey: Survey) -> bool:
    return all(twin.name in survey.unaddressed for twin in port.twins if twin.carrier)


def _owners(ports: Iterable[Port]) -> dict[str, Port]:
    """Port by MAC address; an address used by several ports is ignored."""
    found: dict[str, list[Port]] = defaultdict(list)
    for port in ports:
        for mac in {twin.mac.lower() for twin in port.twins}:
            if is_own(mac):
                found[mac].append(port)
    return {mac: each[0] for mac, each in found.items() if len(each) == 1}


def _heard(
    surveys: Mapping[str, Survey], cabled: Sequence[Port], owners: Mapping[str, Port]
) -> dict[Key, dict[str, Key | None]]:
    """By port, its neighbours by description: the port of a node, or None for a machine that was not surveyed."""
    by_interface = {(port.node, twin.name): port.key for port in cabled for twin in port.twins}
    nodes = {each.mac.lower() for survey in surveys.values() for each in read(survey.interfaces) or ()}
    found: dict[Key, dict[str, Key | None]] = {port.key: {} for port in cabled}
    for name, survey in surveys.items():
        for each in survey.neighbours:
            port, owner = by_interface.get((name, each.interface)), owners.get(each.mac)
            if port is None:
                continue
            if owner is not None and owner.node != name and owner.cabled:
                found[port][str(owner)] = owner.key
            elif each.mac not in nodes and is_own(each.mac):
                found[port][each.mac] = None
    return found


def _components(keys: Sequence[_K], pairs: Iterable[tuple[_K, _K]]) -> list[set[_K]]:
    """Connected components of ``keys`` under ``pairs``."""
    found = {key: {key} for key in keys}
    for one, other in pairs:
        if found[one] is not found[other]:
            found[one] |= found[other]
            for key in found[other]:
                found[key] = found[one]
    return list({id(each): each for each in found.values()}.values())
