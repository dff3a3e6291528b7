"""Checks of the interconnect."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import Hca, read
from sparkcluster.topology.candidates import LINK_LOCAL, is_up
from sparkcluster.topology.model import Link, Member

# What a healthy cable negotiates: `ethtool` on a Spark says 200000Mb/s.
FULL_SPEED_MBPS = 200_000


@check("NET-001", "The nodes of a group are joined by an interconnect with RDMA")
def interconnect(context: Context) -> Iterator[Seen]:
    """Without one, tensor parallelism runs over TCP, at 1 to 3 GB/s in place of 22.

    Where there is no rail at all, Ray and the engine would listen on the management network besides.
    """
    for group in context.topology.groups:
        if group.kind == "management":
            yield Seen(
                "error",
                None,
                f"group {group.name} has no interconnect that all its nodes share",
                "; ".join(f"{member.name}: {_cabled(context, member)}" for member in group.members),
                (
                    "plug the QSFP cable in on both ends, then `ip -br addr` on every node",
                    "give both twins of the port an address on every node, each twin in a subnet of its own",
                    "or name the management network under interconnect.rails, to run over TCP there",
                ),
            )
        elif group.kind != "single":
            for member in group.members:
                if not member.hcas:
                    yield Seen(
                        "warning",
                        member.name,
                        f"{member.name} has no RDMA on its rails",
                        f"{', '.join(link.interface for link in member.links)} without an HCA",
                        ("ibdev2netdev", "use the QSFP ports as rails, or accept TCP"),
                    )


@check("NET-002", "Every rail is up on every node")
def carrier(context: Context) -> Iterator[Seen]:
    """A rail that is down on one side leaves the group waiting in its first collective."""
    for member, link in context.links():
        interface = next(
            (one for one in read(context.facts[member.name].interfaces) or () if one.name == link.interface),
            None,
        )
        if interface is not None and not is_up(interface):
            yield Seen(
                "error",
                member.name,
                f"{link.interface} of {member.name} is down",
                f"state {interface.operstate}, carrier {'yes' if interface.carrier else 'no'}",
                (f"sudo ip link set {link.interface} up", "plug the QSFP cable in on both ends"),
            )


@check("NET-003", "Every HCA in use has a RoCE v2 GID for its address")
def gid(context: Context) -> Iterator[Seen]:
    """Without it the rank dies in ibv_modify_qp (errno 61) or hangs, about a minute into the launch."""
    for member, link in context.links():
        hca = _hca(context, member, link)
        if hca is None:
            continue
        right = hca.roce_v2_index(link.address)
        if right is None:
            table = ", ".join(f"{one.index} {one.type} {one.ipv4 or 'link-local'}" for one in hca.gids)
            yield Seen(
                "error",
                member.name,
                f"{hca.name} of {member.name} has no RoCE v2 GID for {link.address}",
                f"its table: {table or 'empty'}",
                (
                    f"sudo ip addr flush dev {link.interface} && sudo netplan apply",
                    f"show_gids {hca.name}",
                ),
            )
        elif link.gid_index != right:
            yield Seen(
                "error",
                member.name,
                f"GID index {link.gid_index} of {hca.name} is not the RoCE v2 GID of {link.address}",
                f"that one has index {right}",
                (f"set interconnect.gid_index of {member.name} to {right}, or leave it out",),
            )


@check("NET-004", "Both twins of a cabled port are in use")
def twins(context: Context) -> Iterator[Seen]:
    """Each twin has half of the port's PCIe lanes: one alone gives 11 to 12 GB/s in place of 22 to 24."""
    for member in context.topology.members.values():
        ports: dict[str, list[str]] = defaultdict(list)
        for link in member.links:
            if link.hca:
                ports[_port(context, member, link)].append(link.interface)
        for port, used in ports.items():
            if len(used) == 1:
                yield Seen(
                    "warning",
                    member.name,
                    f"only one twin of port {port} of {member.name} is in use",
                    used[0],
                    (
                        "give the other twin an address in a subnet of its own, on every node",
                        "ibdev2netdev",
                    ),
                )


@check("NET-005", "Each rail has a subnet of its own")
def subnets(context: Context) -> Iterator[Seen]:
    """Twins in one subnet make NCCL hang or run at half speed: the kernel answers for either of them."""
    for member in context.topology.members.values():
        shared = Counter(link.subnet for link in member.links)
        for subnet, count in shared.items():
            if count > 1:
                kind = context.topology.group_of(member.name).kind
                grave = kind != "ring" and ipaddress.IPv4Network(subnet) != LINK_LOCAL
                names = [link.interface for link in member.links if link.subnet == subnet]
                yield Seen(
                    "error" if grave else "warning",
                    member.name,
                    f"{count} interfaces of {member.name} share the subnet {subnet}",
                    ", ".join(names),
                    ("give each twin an address in its own subnet in /etc/netplan, then sudo netplan apply",),
                )


@check("NET-006", "MTU is the same along a rail")
def mtu(context: Context) -> Iterator[Seen]:
    """Jumbo frames that one side drops deadlock the first collective, while a small ping still passes."""
    for rail in context.topology.rails:
        common = Counter(link.mtu for _, link in rail.links).most_common()
        # Where it is even, the larger one: it is what somebody meant to set everywhere.
        wanted = max(value for value, count in common if count == common[0][1])
        for node, link in rail.links:
            if link.mtu != wanted:
                yield Seen(
                    "error",
                    node,
                    f"MTU differs along the rail {rail.subnet}",
                    f"{link.interface} of {node} has {link.mtu}, the others have {wanted}",
                    (f"sudo ip link set {link.interface} mtu {wanted}", "set mtu in /etc/netplan likewise"),
                )


@check("NET-007", "The port of every HCA in use is ACTIVE")
def active(context: Context) -> Iterator[Seen]:
    """NCCL skips a port that is not ACTIVE; the ranks then disagree on how many there are."""
    for member, link in context.links():
        hca = _hca(context, member, link)
        if hca is not None and not hca.active:
            yield Seen(
                "error",
                member.name,
                f"{hca.name} of {member.name} is not ACTIVE",
                f"state {hca.state}, physical state {hca.phys_state}",
                ("plug the QSFP cable in on both ends", "rdma link"),
            )


@check("NET-008", "Rails have addresses that somebody gave them")
def addressed(context: Context) -> Iterator[Seen]:
    """Addresses out of 169.254/16 are drawn anew at a reboot, and both twins draw from one subnet."""
    for member, link in context.links():
        if ipaddress.IPv4Address(link.address) in LINK_LOCAL:
            yield Seen(
                "warning",
                member.name,
                f"{link.interface} of {member.name} has a link-local address",
                link.address,
                ("give it an address in /etc/netplan, then sudo netplan apply",),
            )


@check("NET-009", "Cables run at full speed")
def speed(context: Context) -> Iterator[Seen]:
    """A port that negotiated 100 Gb/s halves what tensor parallelism gets."""
    for member, link in context.links():
        if link.hca and link.speed_mbps is not None and 0 < link.speed_mbps < FULL_SPEED_MBPS:
            yield Seen(
                "warning",
                member.name,
                f"{link.interface} of {member.name} is slower than its port",
                f"{link.speed_mbps} Mb/s, not {FULL_SPEED_MBPS}",
                ("reseat the cable on both ends, then reboot both nodes with it in",),
            )


@check("NET-010", "RDMA device nodes are there for the container")
def devices(context: Context) -> Iterator[Seen]:
    """Without /dev/infiniband NCCL says `No device found` and falls back to sockets without an error."""
    for member in context.topology.members.values():
        if member.hcas and not context.facts[member.name].infiniband_devices:
            yield Seen(
                "error",
                member.name,
                f"{member.name} has HCAs but no /dev/infiniband",
                ", ".join(member.hcas),
                ("sudo modprobe -a ib_uverbs rdma_ucm",),
            )


@check("NET-011", "No two nodes have one address")
def unique(context: Context) -> Iterator[Seen]:
    """Both answer for it, and what was meant for one reaches the other."""
    owners: dict[str, set[str]] = defaultdict(set)
    for member in context.topology.members.values():
        if context.topology.group_of(member.name).kind != "single":
            for address in {member.address, *(link.address for link in member.links)}:
                owners[address].add(member.name)
    for address, names in owners.items():
        if len(names) > 1:
            yield Seen(
                "error",
                None,
                f"{' and '.join(sorted(names))} both have {address}",
                address,
                ("give each node an address of its own in /etc/netplan, then sudo netplan apply",),
            )


@check("NET-012", "The API listens on an address of the head")
def api(context: Context) -> Iterator[Seen]:
    """The engine cannot bind an address that its node does not have, and ends after loading the model."""
    for group in context.topology.groups:
        address = ipaddress.ip_address(group.api_host)
        facts = context.facts[group.head.name]
        known = isinstance(facts.interfaces, tuple) and address.version == 4
        if not known or address.is_loopback or address.is_unspecified:
            continue
        if facts.interface_of(group.api_host) is None:
            yield Seen(
                "error",
                group.head.name,
                f"{group.head.name} has no address {group.api_host} for the API",
                ", ".join(own for one in read(facts.interfaces) or () for own in one.addresses),
                ("set api.host to management, interconnect or an address of the head",),
            )


def _hca(context: Context, member: Member, link: Link) -> Hca | None:
    return next((one for one in read(context.facts[member.name].hcas) or () if one.name == link.hca), None)


def _cabled(context: Context, member: Member) -> str:
    """What one node has of an interconnect, in words."""
    facts = context.facts[member.name]
    hcas = read(facts.hcas) or ()
    if not hcas:
        return "no HCA (a ConnectX-7 shows itself only with a cable in)"
    up = [hca for hca in hcas if hca.active]
    if not up:
        return "no HCA is ACTIVE, the cable is out"
    owned = {one.name: ", ".join(one.addresses) for one in read(facts.interfaces) or ()}
    return ", ".join(f"{hca.netdev} {owned.get(hca.netdev or '') or 'without address'}" for hca in up)


def _port(context: Context, member: Member, link: Link) -> str:
    """Physical port of a twin, as its driver or its name tells."""
    for interface in read(context.facts[member.name].interfaces) or ():
        if interface.name == link.interface and interface.phys_port_name:
            return interface.phys_port_name
    return "p1" if "f1" in link.interface else "p0"
