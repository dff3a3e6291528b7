"""Checks of the interconnect: cables, addresses, GIDs, MTU, speed."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import Hca, Unread, read
from sparkcluster.topology import candidates
from sparkcluster.topology.candidates import LINK_LOCAL, is_up
from sparkcluster.topology.model import Group, Link, Member

# What a healthy cable negotiates: `ethtool` on a Spark says 200000Mb/s.
FULL_SPEED_MBPS = 200_000
# The MTU of NVIDIA's own guides; the ports take up to 9978.
JUMBO = 9000
NETPLAN = "/etc/netplan/40-cx7.yaml"


@check(
    "NET-001",
    "The nodes of a group are joined by an interconnect with RDMA",
    scope="interconnect",
    source="NVIDIA DGX Spark stacking guide; public figures: TCP gives 1-3 GB/s, RDMA 22",
    remedy="the QSFP cable, and addresses for both twins on every node",
)
def interconnect(context: Context) -> Iterator[Seen]:
    """Tensor parallelism runs over TCP, at 1 to 3 GB/s in place of 22, if the ranks meet at all.

    An error where there is no rail at all: Ray and the engine would listen on the management network besides. Told
    of the node that lacks it, where others have it. A ConnectX-7 without a cable hides from PCI: no HCA is listed.
    """
    for group in context.topology.groups:
        if group.kind == "management":
            yield from _unjoined(context, group)
        elif group.kind != "single":
            for member in group.members:
                if not member.hcas:
                    yield Seen(
                        member.name,
                        f"{member.name} has no RDMA on its rails",
                        f"{', '.join(link.interface for link in member.links)} without an HCA",
                        ("ibdev2netdev", "use the QSFP ports as rails, or accept TCP"),
                        severity="warning",
                    )


def _unjoined(context: Context, group: Group) -> Iterator[Seen]:
    """One finding for each node that has nothing to join by; where all or none have it, one for the group."""
    bare = [one.name for one in group.members if not candidates.automatic(one.name, context.facts[one.name])]
    blamed: list[str | None] = [*bare] if 0 < len(bare) < len(group.members) else [None]
    for name in blamed:
        yield Seen(
            name,
            f"{name} has no interconnect with the rest of group {group.name}"
            if name
            else f"group {group.name} has no interconnect that all its nodes share",
            "; ".join(f"{member.name}: {_cabled(context, member)}" for member in group.members),
            (
                "plug the QSFP cable in on both ends, then `ip -br addr` on every node",
                "give both twins of the port an address on every node, each twin in a subnet of its own",
                "or name the management network under interconnect.rails, to run over TCP there",
            ),
        )


@check(
    "NET-002",
    "Every rail is up on every node",
    needs=("interfaces",),
    scope="interconnect",
    source="NVIDIA DGX Spark stacking guide",
    remedy="sudo ip link set INTERFACE up; the cable",
)
def carrier(context: Context) -> Iterator[Seen]:
    """The group waits in its first collective for the side whose rail is down."""
    for member, link in context.links():
        interface = next(
            (one for one in read(context.facts[member.name].interfaces) or () if one.name == link.interface),
            None,
        )
        if interface is not None and not is_up(interface):
            yield Seen(
                member.name,
                f"{link.interface} of {member.name} is down",
                f"state {interface.operstate}, carrier {'yes' if interface.carrier else 'no'}",
                (f"sudo ip link set {link.interface} up", "plug the QSFP cable in on both ends"),
            )


@check(
    "NET-003",
    "Every HCA in use has a RoCE v2 GID for its address",
    needs=("hcas",),
    scope="interconnect",
    source="MiaAI-Lab DeepSeek-v4-Flash-DSpark #10, #11",
    remedy="sudo ip addr flush dev INTERFACE && sudo netplan apply",
)
def gid(context: Context) -> Iterator[Seen]:
    """The rank dies in ibv_modify_qp (errno 61) or hangs, about a minute into the launch.

    The index of that GID differs per node and per HCA, and drifts: 3, 4, 5 and 6 have been seen. It is looked up
    anew each time: type `RoCE v2`, IPv4-mapped, equal to the interface's own address.
    """
    for member, link in context.links():
        hca = _hca(context, member, link)
        if hca is None:
            continue
        right = hca.roce_v2_index(link.address)
        if right is None:
            table = ", ".join(f"{one.index} {one.type} {one.ipv4 or 'link-local'}" for one in hca.gids)
            yield Seen(
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
                member.name,
                f"GID index {link.gid_index} of {hca.name} is not the RoCE v2 GID of {link.address}",
                f"that one has index {right}",
                (f"set interconnect.gid_index of {member.name} to {right}, or leave it out",),
            )


@check(
    "NET-005",
    "Each rail has a subnet of its own",
    scope="interconnect",
    source="NVIDIA DGX Spark stacking guide; its three-node ring example does otherwise",
    remedy=f"an address in its own /24 for each twin, in {NETPLAN}",
)
def subnets(context: Context) -> Iterator[Seen]:
    """NCCL hangs or runs at half speed with twins in one subnet: the kernel answers for either of them.

    A warning in a ring, where NVIDIA's own example has it so, and for addresses that nobody gave (169.254/16).
    """
    for member in context.topology.members.values():
        shared = Counter(link.subnet for link in member.links)
        for subnet, count in shared.items():
            if count > 1:
                kind = context.topology.group_of(member.name).kind
                grave = kind != "ring" and ipaddress.IPv4Network(subnet) != LINK_LOCAL
                names = [link.interface for link in member.links if link.subnet == subnet]
                yield Seen(
                    member.name,
                    f"{count} interfaces of {member.name} share the subnet {subnet}",
                    ", ".join(names),
                    (f"give each twin an address in its own subnet in {NETPLAN}", "sudo netplan apply"),
                    severity="error" if grave else "warning",
                )


@check(
    "NET-006",
    "MTU is the same along a rail",
    scope="interconnect",
    source="practitioners' reports: `ping -M do -s 8972` fails while a small one passes",
    remedy="sudo ip link set INTERFACE mtu MTU, and mtu in /etc/netplan",
)
def mtu(context: Context) -> Iterator[Seen]:
    """The first collective deadlocks on jumbo frames that one side drops, while a small ping still passes."""
    for rail in context.topology.rails:
        common = Counter(link.mtu for _, link in rail.links).most_common()
        # Where it is even, the larger one: it is what somebody meant to set everywhere.
        wanted = max(value for value, count in common if count == common[0][1])
        for node, link in rail.links:
            if link.mtu != wanted:
                yield Seen(
                    node,
                    f"MTU differs along the rail {rail.subnet}",
                    f"{link.interface} of {node} has {link.mtu}, the others have {wanted}",
                    (f"sudo ip link set {link.interface} mtu {wanted}", "set mtu in /etc/netplan likewise"),
                )


@check(
    "NET-007",
    "The port of every HCA in use is ACTIVE",
    needs=("hcas",),
    scope="interconnect",
    source="DGX Spark owners' reports: `state DOWN physical_state LINK_UP` occurs",
    remedy="the QSFP cable on both ends",
)
def active(context: Context) -> Iterator[Seen]:
    """NCCL skips a port that is not ACTIVE, and the ranks then disagree on how many there are."""
    for member, link in context.links():
        hca = _hca(context, member, link)
        if hca is not None and not hca.active:
            yield Seen(
                member.name,
                f"{hca.name} of {member.name} is not ACTIVE",
                f"state {hca.state}, physical state {hca.phys_state}",
                ("plug the QSFP cable in on both ends", "rdma link"),
            )


@check(
    "NET-008",
    "Rails have addresses that somebody gave them",
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark netplan: link-local: [ ipv4 ]",
    remedy=f"an address in {NETPLAN}",
)
def addressed(context: Context) -> Iterator[Seen]:
    """Addresses out of 169.254/16 are drawn anew at a reboot, and both twins draw from one subnet."""
    for member, link in context.links():
        if ipaddress.IPv4Address(link.address) in LINK_LOCAL:
            yield Seen(
                member.name,
                f"{link.interface} of {member.name} has a link-local address",
                link.address,
                (f"give {link.interface} an address in {NETPLAN}", "sudo netplan apply"),
            )


@check(
    "NET-009",
    "Cables run at full speed",
    severity="warning",
    scope="interconnect",
    source="DGX Spark owners' reports: ethtool says 100000Mb/s after a bad negotiation",
    remedy="reseat the cable on both ends, reboot both nodes with it in",
)
def speed(context: Context) -> Iterator[Seen]:
    """Tensor parallelism gets half of its bandwidth from a port that negotiated 100 Gb/s."""
    for member, link in context.links():
        if link.hca and link.speed_mbps is not None and 0 < link.speed_mbps < FULL_SPEED_MBPS:
            yield Seen(
                member.name,
                f"{link.interface} of {member.name} is slower than its port",
                f"{link.speed_mbps} Mb/s, not {FULL_SPEED_MBPS}",
                ("reseat the cable on both ends, then reboot both nodes with it in",),
            )


@check(
    "NET-010",
    "RDMA device nodes are there for the container",
    scope="interconnect",
    source="public logs: `NET/IB : No device found`, `Using network Socket`",
    remedy="sudo modprobe -a ib_uverbs rdma_ucm",
)
def devices(context: Context) -> Iterator[Seen]:
    """NCCL says `No device found` and falls back to sockets without an error: 1 to 3 GB/s in place of 22."""
    for member in context.topology.members.values():
        if member.hcas and not context.facts[member.name].infiniband_devices:
            yield Seen(
                member.name,
                f"{member.name} has HCAs but no /dev/infiniband",
                ", ".join(member.hcas),
                ("sudo modprobe -a ib_uverbs rdma_ucm",),
            )


@check(
    "NET-011",
    "No two nodes have one address",
    scope="interconnect",
    source="general",
    remedy="an address of its own for each node, in /etc/netplan",
)
def unique(context: Context) -> Iterator[Seen]:
    """Both nodes answer for the address, and what was meant for one reaches the other."""
    owners: dict[str, set[str]] = defaultdict(set)
    for member in context.topology.members.values():
        if context.topology.group_of(member.name).kind != "single":
            for address in {member.address, *(link.address for link in member.links)}:
                owners[address].add(member.name)
    for address, names in owners.items():
        if len(names) > 1:
            yield Seen(
                None,
                f"{' and '.join(sorted(names))} both have {address}",
                address,
                ("give each node an address of its own in /etc/netplan, then sudo netplan apply",),
            )


@check(
    "NET-012",
    "The API listens on an address of the head",
    source="general",
    remedy="api.host: management, interconnect or an address of the head",
)
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
                group.head.name,
                f"{group.head.name} has no address {group.api_host} for the API",
                ", ".join(own for one in read(facts.interfaces) or () for own in one.addresses),
                ("set api.host to management, interconnect or an address of the head",),
            )


@check(
    "NET-013",
    "The HCAs of a node share one GID index",
    severity="info",
    needs=("hcas",),
    scope="interconnect",
    source="MiaAI-Lab DeepSeek-v4-Flash-DSpark #10, #11",
    remedy="nothing has to be done; a flushed and re-applied address often evens them",
)
def one_index(context: Context) -> Iterator[Seen]:
    """No single NCCL_IB_GID_INDEX is right on this node: whoever sets one by hand makes a rank hang.

    sparkcluster leaves it unset there, and NCCL finds each HCA's entry by address family and range.
    """
    for member in context.topology.members.values():
        indices = {}
        for link in member.links:
            hca = _hca(context, member, link)
            if hca is not None:
                indices[hca.name] = hca.roce_v2_index(link.address)
        known = {index for index in indices.values() if index is not None}
        if len(known) > 1:
            names = " ".join(link.interface for link in member.links if link.hca)
            yield Seen(
                member.name,
                f"the HCAs of {member.name} have their GIDs at unlike places",
                ", ".join(f"{name} {'none' if index is None else index}" for name, index in indices.items()),
                (
                    "leave NCCL_IB_GID_INDEX out of env in the playbook",
                    f"for i in {names}; do sudo ip addr flush dev $i; done; sudo netplan apply",
                ),
            )


@check(
    "NET-023",
    "Rails carry jumbo frames",
    severity="info",
    scope="interconnect",
    source="public ib_write_bw figures: 93-98 Gb/s a twin at MTU 1500, 108-112 at 9000",
    remedy="mtu: 9000 on both twins of every node",
)
def jumbo(context: Context) -> Iterator[Seen]:
    """RDMA moves 1 KB at a time in place of 4, and a tenth of the bandwidth is lost.

    Told once, and only where all agree: an MTU that differs is NET-006.
    """
    small: dict[str, list[str]] = {}
    for rail in context.topology.rails:
        sizes = {link.mtu for _, link in rail.links}
        if len(sizes) == 1 and max(sizes) < JUMBO and all(link.hca for _, link in rail.links):
            small[rail.subnet] = [f"{node} {link.interface} {link.mtu}" for node, link in rail.links]
    if small:
        yield Seen(
            None,
            f"the rails {', '.join(small)} carry no jumbo frames",
            "; ".join(", ".join(one) for one in small.values()),
            (f"set mtu: {JUMBO} for these interfaces in {NETPLAN} of every node", "sudo netplan apply"),
        )


def _hca(context: Context, member: Member, link: Link) -> Hca | None:
    return next((one for one in read(context.facts[member.name].hcas) or () if one.name == link.hca), None)


def _cabled(context: Context, member: Member) -> str:
    """What one node has of an interconnect, in words."""
    facts = context.facts[member.name]
    if isinstance(facts.hcas, Unread):
        return f"its HCAs could not be read ({facts.hcas.unread})"
    if not facts.hcas:
        return "no HCA (a ConnectX-7 shows itself only with a cable in)"
    up = [hca for hca in facts.hcas if hca.active]
    if not up:
        return "no HCA is ACTIVE, the cable is out"
    owned = {one.name: ", ".join(one.addresses) for one in read(facts.interfaces) or ()}
    return ", ".join(f"{hca.netdev} {owned.get(hca.netdev or '') or 'without address'}" for hca in up)
