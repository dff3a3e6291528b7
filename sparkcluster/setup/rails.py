"""An address for every cabled twin: each segment has one subnet per twin. Pure.

Existing addresses are kept if both ends of a cable share their subnet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

from sparkcluster.errors import SpecError
from sparkcluster.facts.base import read
from sparkcluster.facts.network import Interface
from sparkcluster.facts.survey import FileState, Survey
from sparkcluster.setup.cabling import Cabling
from sparkcluster.setup.ports import DRIVER, Port, Segment, Trouble, foreign_subnets
from sparkcluster.spec.document import parse
from sparkcluster.topology import netplan
from sparkcluster.topology.netplan import MTU, NETPLAN

FILES = "/etc/netplan/*.yaml"
"""Files that ``proposal`` expects in surveys."""
FIRST = 11
"""Host number of the first node, as in NVIDIA's guides."""
_PREFIXES = range(16, 31)
_FILE = re.compile(r"/etc/netplan/[^/\s]+\.yaml")

Address = IPv4Interface


@dataclasses.dataclass(slots=True)
class Rail:
    """One subnet of a segment (None until chosen), with the twin and address of each node on it."""

    segment: Segment
    ends: dict[str, Interface]
    subnet: IPv4Network | None = None
    addresses: dict[str, Address] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """The addresses of all cabled twins.

    Attributes:
        addresses: by node and interface, in rail order; none for a node whose cables must be swapped.
        texts: netplan file by node, for nodes that differ now or would differ after a reboot.
        rails: in segment order.
        troubles: why some nodes get no addresses, or additional ones.
    """

    addresses: dict[str, dict[str, Address]]
    texts: dict[str, str]
    rails: tuple[Rail, ...]
    troubles: tuple[Trouble, ...]


def proposal(cabling: Cabling, surveys: Mapping[str, Survey], order: Sequence[str]) -> Proposal:
    """Subnets and addresses for all nodes; host numbers start at 11 and follow ``order`` where they are free.

    Subnets in use at the ends of a rail are avoided; reports of other nodes do not affect the choice.
    """
    rails = list(_rails(cabling))
    for rail in rails:
        _keep(rail, rails, cabling, surveys)
    for rail in (each for each in rails if each.subnet is None):
        rail.subnet = next(netplan.unused(_taken(rail, rails, cabling, surveys)))
    _count(rails, surveys, {name: place for place, name in enumerate(dict.fromkeys([*order, *cabling.nodes]), FIRST)})

    troubles: list[Trouble] = []
    addresses: dict[str, dict[str, Address]] = {}
    for rail in rails:
        for node, twin in rail.ends.items():
            if node in rail.addresses:
                addresses.setdefault(node, {})[twin.name] = rail.addresses[node]
    texts: dict[str, str] = {}
    for node, own in addresses.items():
        text = netplan.text(own)
        if not (_is_live(surveys[node], own) and _is_set(surveys[node], own, text)):
            texts[node] = text
        troubles += _contradicting(node, surveys[node], own)
    return Proposal(addresses, texts, tuple(rails), tuple(troubles))


# --------------------------------------------------------------------------------------------------- subnets


def _rails(cabling: Cabling) -> Iterator[Rail]:
    """The rails of all segments; if a switch has both ports of a node, rails of the first port come first."""
    for segment in cabling.segments:
        by_node = {node: segment.ports_of(node) for node in segment.nodes if node not in cabling.swapped}
        for place in range(max(map(len, by_node.values()), default=0)):
            halves = {node: _halves(ports[place]) for node, ports in by_node.items() if place < len(ports)}
            for half in sorted({half for twins in halves.values() for half in twins}):
                yield Rail(segment, {node: twins[half] for node, twins in halves.items() if half in twins})


def _halves(port: Port) -> dict[int, Interface]:
    """The twins of a port by index; if one is absent, the PCI domain gives the index of the other."""
    if len(port.twins) != 1:
        return dict(enumerate(port.twins))
    (twin,) = port.twins
    return {int(not (twin.pci or "0000:").startswith("0000:")): twin}


def _keep(rail: Rail, rails: Sequence[Rail], cabling: Cabling, surveys: Mapping[str, Survey]) -> None:
    """Keep the most common subnet of the ends, and its addresses, unless another interface of these nodes uses it."""
    nodes = set(rail.segment.nodes)
    avoided = [other.subnet for other in rails if other.subnet is not None and nodes & set(other.segment.nodes)]
    avoided += [*_loose(cabling, rail.ends), *foreign_subnets({node: surveys[node] for node in rail.ends})]
    counts = Counter(
        network for twin in rail.ends.values() for network in dict.fromkeys(each.network for each in twin.ipv4())
    )
    for subnet, _ in counts.most_common():  # on a tie, the first node decides
        room = subnet.num_addresses - 2 >= len(rail.ends)
        if _may_be_rail(subnet) and room and not any(subnet.overlaps(other) for other in avoided):
            rail.subnet = subnet
            for node, twin in rail.ends.items():
                own = next((each for each in twin.ipv4() if each.network == subnet), None)
                if own is not None and own not in rail.addresses.values():
                    rail.addresses[node] = own
            return


def _taken(rail: Rail, rails: Sequence[Rail], cabling: Cabling, surveys: Mapping[str, Survey]) -> Iterator[IPv4Network]:
    """Subnets of other rails and subnets in use at the ends of this rail."""
    yield from (other.subnet for other in rails if other.subnet is not None)
    ends = {node: surveys[node] for node in rail.ends}
    yield from foreign_subnets(ends)
    yield from _loose(cabling, ends)
    yield from map(IPv4Network, _heard(ends))


def _may_be_rail(subnet: IPv4Network) -> bool:
    """Whether a reported subnet is safe for a rail; a node must not be able to divert other traffic."""
    special = subnet.is_loopback or subnet.is_link_local or subnet.is_multicast or subnet.is_reserved
    return subnet.prefixlen in _PREFIXES and subnet.is_private and not special and not subnet.is_unspecified


def _loose(cabling: Cabling, nodes: Container[str]) -> list[IPv4Network]:
    """Subnets of those ports of ``nodes`` whose other end is unknown."""
    twins = [twin for loose in cabling.loose if loose.port.node in nodes for twin in loose.port.twins]
    return [address.network for twin in twins for address in twin.ipv4()]


def _heard(surveys: Mapping[str, Survey]) -> Iterator[IPv4Address]:
    """IPv4 addresses that nodes see on their cables."""
    for neighbour in (each for survey in surveys.values() for each in survey.neighbours):
        with contextlib.suppress(ValueError):
            yield IPv4Address(neighbour.address or "")


def _count(rails: Sequence[Rail], surveys: Mapping[str, Survey], numbers: Mapping[str, int]) -> None:
    """Give each twin without an address a free host number: its node's number, else the lowest from 11."""
    used = {address.ip for rail in rails for address in rail.addresses.values()} | set(_heard(surveys))
    for rail in rails:
        if (subnet := rail.subnet) is None:
            continue
        for node in (node for node in rail.ends if node not in rail.addresses):
            for number in (numbers[node], *range(FIRST, 255), *range(1, FIRST)):
                address = netplan.numbered(subnet, number)
                if address.ip not in used and subnet[0] < address.ip < subnet[-1]:
                    rail.addresses[node] = address
                    used.add(address.ip)
                    break


# --------------------------------------------------------------------------------------------------- files


def _is_live(survey: Survey, wanted: Mapping[str, Address]) -> bool:
    """Whether the interfaces have the addresses and the MTU now."""
    found = {each.name: each for each in read(survey.interfaces) or () if each.driver == DRIVER}
    return all(
        name in found and found[name].mtu == MTU and address in found[name].ipv4() for name, address in wanted.items()
    )


def _is_set(survey: Survey, wanted: Mapping[str, Address], text: str) -> bool:
    """Whether netplan files set the addresses and the MTU: the file of ``setup`` with this ``text``, or others.

    If only root can read the file, its journal entry is enough. The file may then also contain addresses of a port that
    is no longer cabled.
    """
    state = survey.files.get(NETPLAN, FileState())
    if state.text == text or (state.unread and any(each.root and each.target == NETPLAN for each in survey.journal)):
        return True
    files = list(_ethernets(survey))
    found = {name for _, name, settings in files if str(wanted.get(name)) in _addresses(settings)}
    sized = {name for _, name, settings in files if name in wanted and settings.get("mtu") == MTU}
    return set(wanted) == found == sized


def _contradicting(node: str, survey: Survey, wanted: Mapping[str, Address]) -> Iterator[Trouble]:
    """Netplan files that give a twin a second address; netplan merges the addresses of all files."""
    for path, name, settings in _ethernets(survey):
        others = [each for each in _addresses(settings) if name in wanted and each != str(wanted[name])]
        if path != NETPLAN and others:
            text = f"{path} of {node} gives {name} the address {others[0][:64]} in addition to {wanted[name]}"
            yield Trouble("other-file", node, text, f"remove {name} from {path} of {node}")


def _ethernets(survey: Survey) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, interface and settings from readable netplan files, in the order in which they apply."""
    for path, state in sorted(survey.files.items()):
        if _FILE.fullmatch(path) and state.text:
            document: Any = None
            with contextlib.suppress(SpecError):
                document = parse(state.text, path).data
            for key in ("network", "ethernets"):
                document = document.get(key) if isinstance(document, dict) else None
            for name, settings in document.items() if isinstance(document, dict) else ():
                if isinstance(settings, dict):
                    yield path, name, settings


def _addresses(settings: Mapping[str, Any]) -> list[str]:
    """The addresses of an interface; an address with options is a mapping of one key."""
    found = settings.get("addresses")
    listed = found if isinstance(found, list) else []
    return [str(next(iter(each), "")) if isinstance(each, dict) else str(each) for each in listed]
