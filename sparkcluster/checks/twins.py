"""Checks of twins, the two PCIe halves of each port: both in use, and in the same order, on every node."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from sparkcluster.checks.check import NETPLAN_APPLY, REBOOT, Context, Seen, interconnect_check
from sparkcluster.checks.compare import common, listed
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Interface
from sparkcluster.findings import Remedy, edit, on_node
from sparkcluster.spec.inventory import Interconnect
from sparkcluster.topology.candidates import LINK_LOCAL, is_up
from sparkcluster.topology.model import Link, Member
from sparkcluster.topology.netplan import NETPLAN

IBDEV2NETDEV = on_node("ibdev2netdev")
GIVE = "give {interface} an address in"
Cause = Literal["absent", "down", "no address", "not in the inventory", "other subnet"]


@dataclasses.dataclass(frozen=True, slots=True)
class UnusedTwin:
    """An unused twin of a port whose other twin is in use.

    Attributes:
        member: the node of the twin.
        used: interface of the other twin.
        cause: ``other subnet`` means a subnet without twins of other nodes.
        interface: interface of this twin; None if it is absent.
    """

    member: Member
    port: str
    used: str
    cause: Cause
    interface: Interface | None = None

    @property
    def name(self) -> str:
        """Name of the interface, or an empty string."""
        return self.interface.name if self.interface else ""

    @property
    def addresses(self) -> str:
        """Addresses of the interface, for messages."""
        return ", ".join(self.interface.addresses if self.interface else ()) or "no IPv4 address"

    @property
    def network(self) -> str:
        """The first subnet of the interface, or an empty string."""
        return min((str(address.network) for address in self.interface.ipv4()), default="") if self.interface else ""


@interconnect_check(
    "NET-004",
    "Both twins of a cabled port are in use on every node, in the same subnets",
    needs=("interfaces", "hcas"),
    severity="warning",
    source="NVIDIA DGX Spark stacking guide; public NCCL figures of one twin and of two",
    remedy=f"bring the other twin up on every node, with an address in its own subnet, in {NETPLAN}",
    step="netplan",
)
def twins(context: Context) -> Iterator[Seen]:
    """Half of the bandwidth is lost (11 to 12 GB/s instead of 22 to 24): each twin has half of the PCIe lanes.

    One cable brings up two interfaces. Each needs an address in its own subnet, the same subnet on every node. The
    finding names the node whose twin is down, missing, without an address, not in the inventory, or in another subnet.
    Ranks with different numbers of HCAs pair their channels wrongly, which is slow or hangs the first collective.
    """
    unused = _unused_twins(context)
    for twin in unused:
        node, seen, remedy = twin.member.name, "", list[Remedy | str]()
        summary = f"only one twin of port {twin.port} of {node} is in use"
        if twin.cause == "absent":
            seen, remedy = f"only {twin.used} exists", [REBOOT, on_node("lspci | grep ConnectX"), IBDEV2NETDEV]
        elif twin.cause == "down":
            seen = f"{twin.name} is {twin.interface.operstate if twin.interface else 'absent'}, {twin.used} is in use"
            remedy = [on_node("sudo ip link set {interface} up"), IBDEV2NETDEV, NETPLAN_APPLY]
        elif twin.cause == "no address":
            summary = f"{twin.name} of {node} is cabled but has no address"
            seen = f"{twin.addresses}; its twin {twin.used} is in use"
            remedy = [edit(f"{GIVE} the same subnet as its twins on the other nodes, in {NETPLAN}"), NETPLAN_APPLY]
        elif twin.cause == "not in the inventory":
            seen = f"{twin.name} ({twin.addresses}) is not in the inventory"
            remedy = [edit("add {interface} or its subnet to interconnect in the inventory"), on_node("ip -br addr")]
        if remedy:
            yield Seen(summary, seen, remedy, node=node, values={"interface": twin.name})
    explained = {twin.member.name for twin in unused}
    for group in context.topology.groups:
        counts = {member.name: len(member.hcas) for member in group.members if member.links}
        most = max(counts.values(), default=0)
        same = group.kind == "ring" or explained & set(group.names) or not all(counts.values())
        for node, count in () if same else counts.items():
            if count < most:
                others = listed(other for other, number in counts.items() if number == most)
                more = edit("list interfaces with an HCA under interconnect of {node}, as many as on the others")
                seen = f"{count} on {node}, {most} on {others}"
                yield Seen(f"{node} uses fewer HCAs than the others", seen, (IBDEV2NETDEV, more), node=node, step="")
        of_group = {twin.member.name: twin for twin in unused if twin.member.name in group.names}
        yield from _different_subnets({n: twin for n, twin in of_group.items() if twin.cause == "other subnet"})


def _different_subnets(twins: Mapping[str, UnusedTwin]) -> Iterator[Seen]:
    """Twins in a subnet without twins of other nodes; if all differ, the first node's subnet is expected."""
    right = common(twin.network for twin in twins.values())
    for node, twin in twins.items():
        if twin.network == right and len(twins) > 1:
            continue
        others = [f"{name} has {other.network}" for name, other in twins.items() if name != node]
        moved = edit(f"give the same twin of every node an address in one subnet, in {NETPLAN}")
        if others:
            moved = edit(f"{GIVE} {right} in {NETPLAN}")
        yield Seen(
            f"{twin.name} of {node} is in a subnet of no other node",
            f"{twin.addresses}; {listed(others or ['none has'])}",
            (moved, NETPLAN_APPLY),
            node=node,
            values={"interface": twin.name},
        )


def _unused_twins(context: Context) -> list[UnusedTwin]:
    found: list[UnusedTwin] = []
    for group in context.topology.groups:
        twins = [twin for member in group.members for twin in _unused_twins_of(context, member)]
        # A healthy twin is unused if its peer on another node has a problem: report only the peer.
        causes = {twin.cause for twin in twins} | {"idle" for member in group.members if member.idle_twins}
        found += [twin for twin in twins if twin.cause != "other subnet" or causes == {"other subnet"}]
    return found


def _unused_twins_of(context: Context, member: Member) -> Iterator[UnusedTwin]:
    facts = context.facts[member.name]
    ports: dict[str, list[str]] = defaultdict(list)
    for link in member.links:
        if link.hca:
            ports[port_of(facts, link.interface)].append(link.interface)
    idle = {link.interface for link in member.idle_twins}  # NET-005 reports them
    for port, (used, *more) in ports.items():
        interface = None if more else _other_twin(facts, port, used)
        if more or (interface is not None and interface.name in idle):
            continue
        cause = "absent" if interface is None else _cause(context, facts, member, interface)
        yield UnusedTwin(member, port, used, cause, interface)


def _other_twin(facts: Facts, port: str, used: str) -> Interface | None:
    """The other interface of ``port``; with two cards, interface names may have different prefixes."""
    netdevs = {hca.netdev for hca in read(facts.hcas) or ()}
    for interface in read(facts.interfaces) or ():
        if interface.name in netdevs and interface.name != used and port_of(facts, interface.name) == port:
            return interface
    return None


def _cause(context: Context, facts: Facts, member: Member, interface: Interface) -> Cause:
    hca = facts.hca_of(interface.name)
    if not is_up(interface) or hca is None or not hca.active:
        return "down"
    if not [address for address in interface.ipv4() if address.ip not in LINK_LOCAL]:
        return "no address"
    inventory = context.spec.inventory
    per_node = next((node.interconnect for node in inventory.nodes if node.label == member.name), None)
    if per_node is not None or isinstance(inventory.interconnect, Interconnect):
        return "not in the inventory"
    return "other subnet"


def port_of(facts: Facts, name: str) -> str:
    """Physical port of a twin, from its driver or else its name."""
    interface = facts.interface(name)
    if interface is not None and interface.port:
        return interface.port
    return "p1" if "f1" in name else "p0"


@interconnect_check(
    "NET-026",
    "Twins are in the same order on every node",
    needs=("interfaces", "hcas"),
    source="NVIDIA/nccl src/graph/topo.cc: devices in PCI order; docs.nvidia.com/sync: corresponding interfaces share"
    " a subnet",
    remedy="use the same subnet for the same twin on every node, or swap the two cables",
)
def crossed(context: Context) -> Iterator[Seen]:
    """The first collective hangs or fails: NCCL pairs HCAs in PCI order, and these pairs have no cable.

    A single cable from port 0 to port 1 is fine.
    """
    for group in context.topology.groups:
        ordered = {member.name: found for member in group.members if (found := _ordered(context, member))}
        if group.kind == "ring" or len({frozenset(_subnets(links)) for links in ordered.values()}) != 1:
            continue
        # On a tie, the head's order, which comes first.
        right = common(map(_subnets, ordered.values()))
        reference = next(name for name, links in ordered.items() if _subnets(links) == right)
        for name, links in ordered.items():
            if _subnets(links) != right:
                yield _seen(context, (reference, ordered[reference]), (name, links))


def _ordered(context: Context, member: Member) -> list[Link]:
    """The links with an HCA in PCI order; empty if an address is unknown or two links share a subnet."""
    links = [link for link in member.links if link.hca]
    if len({link.subnet for link in links}) < len(links) or not all(_pci(context, member.name, link) for link in links):
        return []
    return sorted(links, key=lambda link: _pci(context, member.name, link))


def _subnets(links: Sequence[Link]) -> tuple[str, ...]:
    return tuple(link.subnet for link in links)


def _pci(context: Context, node: str, link: Link) -> str:
    interface = context.facts[node].interface(link.interface)
    return (interface.pci or "") if interface is not None else ""


def _seen(context: Context, right: tuple[str, Sequence[Link]], other: tuple[str, Sequence[Link]]) -> Seen:
    (reference, expected), (name, links) = right, other
    by_subnet: Mapping[str, Link] = {link.subnet: link for link in links}
    pairs = [(link, by_subnet[link.subnet]) for link in expected]
    mine, astray = next(pair for place, pair in enumerate(pairs) if links[place] is not pair[1])
    moved = [
        edit(f"give {link.interface} of {name} an address in {mine.subnet} in {NETPLAN}")
        for mine, link in zip(expected, links, strict=True)
        if mine.subnet != link.subnet
    ]
    swap = Remedy(f"swap the two cables at {name}, if p0 is connected to p1 of {reference}", instead=True)
    remedy = (*moved, NETPLAN_APPLY, *([swap] if len(links) > 2 else ()))
    return Seen(
        f"the twins of {name} are in a different order than on {reference}",
        f"{reference}'s {mine.interface} ({_pci(context, reference, mine)}) is in {mine.subnet} with {name}'s"
        f" {astray.interface} ({_pci(context, name, astray)})",
        remedy,
        node=name,
    )
