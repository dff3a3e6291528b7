"""Checks of the two halves of each port: whether both are in use on every node, and if not, why."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal

from sparkcluster.checks.network import NETPLAN
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.checks.wording import listed
from sparkcluster.facts.model import Facts, Interface, read
from sparkcluster.spec.inventory import Interconnect
from sparkcluster.topology.candidates import LINK_LOCAL, is_up
from sparkcluster.topology.model import Member

Cause = Literal["absent", "down", "bare", "unnamed", "elsewhere"]


@dataclasses.dataclass(frozen=True, slots=True)
class Idle:
    """One port of which a single twin is in use.

    Attributes:
        used: interface of the twin that is.
        other: interface of the one that is not, None where the port has none.
        cause: ``absent`` there is none, ``down`` it carries nothing, ``bare`` it has no address, ``unnamed`` the
            inventory leaves it out, ``elsewhere`` its subnet is not that of the other nodes' twins.
    """

    member: Member
    port: str
    used: str
    other: Interface | None
    cause: Cause


@check(
    "NET-004",
    "Both twins of a cabled port are in use",
    needs=("hcas",),
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark stacking guide; public NCCL figures of one twin and of two",
    remedy="bring the other twin up, with an address in a subnet of its own, on every node",
)
def twins(context: Context) -> Iterator[Seen]:
    """Half of the bandwidth is lost: 11 to 12 GB/s in place of 22 to 24, for each twin has half of the PCIe lanes.

    Told of the node whose twin is down, is missing or is left out by the inventory. A twin that is up and has no
    address is NET-015, one in another subnet than those of the other nodes is NET-025.
    """
    for one in _idle(context):
        name = one.member.name
        remedy: tuple[str, ...]
        if one.cause == "absent":
            seen, remedy = f"{one.used} alone is there", ("sudo reboot", "lspci | grep ConnectX", "ibdev2netdev")
        elif one.cause == "down" and one.other is not None:
            seen = f"{one.other.name} is {one.other.operstate}, {one.used} is in use"
            remedy = (f"sudo ip link set {one.other.name} up", "ibdev2netdev", "sudo netplan apply")
        elif one.cause == "unnamed" and one.other is not None:
            seen = f"the inventory leaves out {one.other.name} ({', '.join(one.other.addresses)})"
            remedy = (
                f"add {one.other.name} or its subnet to interconnect in the inventory",
                f"ip -br addr   on {name}",
            )
        else:
            continue
        yield Seen(name, f"only one twin of port {one.port} of {name} is in use", seen, remedy)


@check(
    "NET-015",
    "Every twin that is cabled has an address",
    needs=("interfaces", "hcas"),
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark stacking guide: both interfaces of the cabled port get an address",
    remedy=f"an address in a subnet of its own, in {NETPLAN}",
)
def addressless(context: Context) -> Iterator[Seen]:
    """Half of the bandwidth is lost, and an HCA without a GID for NCCL is listed as if it could be used.

    One cable lights two interfaces, and each needs its own address, in a subnet of its own that is the same one on
    every node.
    """
    for one in _idle(context):
        if one.cause != "bare" or one.other is None:
            continue
        name = one.member.name
        yield Seen(
            name,
            f"{one.other.name} of {name} is cabled and has no address",
            f"{', '.join(one.other.addresses) or 'no IPv4 address'}; its twin {one.used} is in use",
            (
                f"give {one.other.name} an address of its own subnet in {NETPLAN}{_example(context, one)}",
                "sudo netplan apply",
            ),
        )


@check(
    "NET-025",
    "Twins share their subnets with those of the other nodes",
    needs=("interfaces", "hcas"),
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark stacking guide",
    remedy=f"the same subnet for the same twin on every node, in {NETPLAN}",
)
def strayed(context: Context) -> Iterator[Seen]:
    """Half of the bandwidth is lost: a twin whose subnet no other node has meets nobody."""
    found = [one for one in _idle(context) if one.cause == "elsewhere" and one.other is not None]
    for group in context.topology.groups:
        own = {one.member.name: one for one in found if one.member.name in group.names}
        networks = {
            name: next(iter(sorted(str(address.network) for address in one.other.ipv4())), "")
            for name, one in own.items()
            if one.other is not None
        }
        common, count = Counter(networks.values()).most_common(1)[0] if networks else ("", 0)
        for name, network in networks.items():
            # Where no two agree, nobody but the head can be right.
            right = network == common if count > 1 else name == group.head.name
            if right and len(networks) > 1:
                continue
            one = own[name]
            if one.other is None:
                continue
            others = listed(
                [f"{other} has {seen}" for other, seen in networks.items() if other != name] or ["none has"]
            )
            yield Seen(
                name,
                f"{one.other.name} of {name} is in a subnet that the other nodes are not in",
                f"{', '.join(one.other.addresses)}; {others}",
                (
                    f"give {one.other.name} an address in {networks[group.head.name]} in {NETPLAN}"
                    if group.head.name in networks and name != group.head.name
                    else f"give the same twin of every node an address in one subnet, in {NETPLAN}",
                    "sudo netplan apply",
                ),
            )


@check(
    "NET-014",
    "Every node of a group has as many HCAs in use",
    needs=("hcas",),
    severity="warning",
    scope="interconnect",
    source="MiaAI-Lab DeepSeek-v4-Flash-DSpark #10: four HCAs listed though two are up",
    remedy="the same number of interfaces with an HCA under interconnect of every node",
)
def as_many(context: Context) -> Iterator[Seen]:
    """Ranks that count unlike numbers of HCAs pair their channels wrongly: slow, or hanging in the first collective.

    It comes from interfaces that the inventory names, or from a rail on which one node has no HCA.
    """
    blamed = {one.member.name for one in _idle(context)}
    for group in context.topology.groups:
        counts = {member.name: len(member.hcas) for member in group.members if member.links}
        if group.kind == "ring" or blamed & set(group.names) or not all(counts.values()):
            continue
        most = max(counts.values(), default=0)
        for name, count in counts.items():
            if count < most:
                others = [other for other, many in counts.items() if many == most]
                yield Seen(
                    name,
                    f"{name} has fewer HCAs in use than the others",
                    f"{count} on {name}, {most} on {listed(others)}",
                    (f"ibdev2netdev   on {name}", f"name interfaces with an HCA under interconnect of {name}"),
                )


def _idle(context: Context) -> list[Idle]:
    """Ports of which one twin is in use, with the reason; those that only follow from another node are left out."""
    found: list[Idle] = []
    for group in context.topology.groups:
        own = [one for member in group.members for one in _idle_of(context, member)]
        causes = {one.cause for one in own}
        # A twin that is fine goes unused where its partner on another node is not: that one is told.
        found += [one for one in own if one.cause != "elsewhere" or causes == {"elsewhere"}]
    return found


def _idle_of(context: Context, member: Member) -> Iterator[Idle]:
    facts = context.facts[member.name]
    ports: dict[str, list[str]] = defaultdict(list)
    for link in member.links:
        if link.hca:
            ports[port_of(facts, link.interface)].append(link.interface)
    for port, used in ports.items():
        if len(used) == 1:
            other = _other(facts, port, used[0])
            yield Idle(member, port, used[0], other, _cause(context, facts, member, other))


def _other(facts: Facts, port: str, used: str) -> Interface | None:
    """The other interface of ``port``; its name begins differently where two cards have ports of one name."""
    owned = {one.netdev for one in read(facts.hcas) or ()}
    for interface in read(facts.interfaces) or ():
        if interface.name in owned and interface.name != used and port_of(facts, interface.name) == port:
            return interface
    return None


def _cause(context: Context, facts: Facts, member: Member, other: Interface | None) -> Cause:
    if other is None:
        return "absent"
    hca = facts.hca_of(other.name)
    if not is_up(other) or hca is None or not hca.active:
        return "down"
    if not [own for own in other.ipv4() if own.ip not in LINK_LOCAL]:
        return "bare"
    written = context.spec.inventory.interconnect
    named = next((node.interconnect for node in context.spec.inventory.nodes if node.label == member.name), None)
    if named is not None or isinstance(written, Interconnect):
        return "unnamed"
    return "elsewhere"


def port_of(facts: Facts, name: str) -> str:
    """Physical port of a twin, as its driver or its name tells."""
    for interface in read(facts.interfaces) or ():
        if interface.name == name and interface.phys_port_name:
            return interface.phys_port_name
    return "p1" if "f1" in name else "p0"


def _example(context: Context, one: Idle) -> str:
    """`, as 192.168.178.12/24`, where another node's twin tells the subnet."""
    number = next((link.address.rpartition(".")[2] for link in one.member.links if link.interface == one.used), "")
    for other in context.topology.group_of(one.member.name).members:
        facts = context.facts[other.name]
        if other.name == one.member.name:
            continue
        used = {link.interface for link in other.links}
        for interface in read(facts.interfaces) or ():
            if interface.name in used or facts.hca_of(interface.name) is None or not is_up(interface):
                continue
            for own in interface.ipv4():
                if own.ip not in LINK_LOCAL and own.network.prefixlen == 24:
                    return f", as {str(own.network.network_address).rpartition('.')[0]}.{number}/24"
    return ""
