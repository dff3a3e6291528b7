"""Checks of the interconnect: cables, addresses, GIDs, MTU, speed."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterator

from sparkcluster.checks.check import (
    NETPLAN_APPLY,
    Context,
    Seen,
    check,
    interconnect_check,
    link_check,
    member_check,
)
from sparkcluster.checks.netplan import cabled_twins, remedy
from sparkcluster.facts.base import Unread, read
from sparkcluster.findings import edit, on_node
from sparkcluster.printable import shell
from sparkcluster.topology import candidates
from sparkcluster.topology.candidates import LINK_LOCAL, is_up
from sparkcluster.topology.model import Group, Link, Member
from sparkcluster.topology.netplan import MTU, NETPLAN

# A healthy link, as ethtool prints it on a Spark: 200000Mb/s.
FULL_SPEED_MBPS = 200_000
LANES = 4
CABLE = "connect the QSFP cable at both ends"
PREFIX_VARIABLE = "NCCL_IB_SUBNET_PREFIX_LEN"


@interconnect_check(
    "NET-001",
    "The nodes of a group share an interconnect with RDMA",
    source="NVIDIA DGX Spark stacking guide; public figures: TCP gives 1-3 GB/s, RDMA 22",
    remedy=(
        "connect the QSFP cable at both ends, then run `ip -br addr` on every node",
        edit("give both twins of the port an address on every node, each in its own subnet"),
        edit("list the management network under interconnect.rails to run over TCP", instead=True),
    ),
    step="netplan",
)
def interconnect(context: Context) -> Iterator[Seen]:
    """Without it, tensor parallelism runs over TCP at 1 to 3 GB/s instead of 22, or the ranks never connect.

    An error if there is no rail at all: Ray and the engine would listen on the management network. If only some nodes
    lack rails, these are named. A ConnectX-7 without a cable is absent from PCI, so no HCA is listed.
    """
    for group in context.topology.groups:
        if group.kind == "management":
            yield from _unjoined(context, group)
        for member in group.members if group.kind not in {"management", "single"} else ():
            if not member.hcas:
                yield Seen(
                    f"{member.name} has no RDMA on its rails",
                    f"{', '.join(link.interface for link in member.links)} without an HCA",
                    (on_node("ibdev2netdev"), "use the QSFP ports as rails, or accept TCP speed"),
                    severity="warning",
                    node=member.name,
                    step="",
                )


def _unjoined(context: Context, group: Group) -> Iterator[Seen]:
    """A finding for each node without usable interfaces; one finding for the group if all or none lack them."""
    names = group.names
    without = [name for name in names if not candidates.automatic(name, context.facts[name])]
    suspects: list[str | None] = [*without] if 0 < len(without) < len(names) else [None]
    for name in suspects:
        yield Seen(
            f"{name} has no interconnect with the rest of {context.called(group)}"
            if name
            else f"the nodes of {context.called(group)} share no interconnect",
            "; ".join(f"{member.name}: {_cabled(context, member)}" for member in group.members),
            node=name,
            step=None if all(cabled_twins(context.facts[member]) for member in names) else "",
        )


@link_check(
    "NET-002",
    "Every rail is up, and the port of its HCA is ACTIVE",
    source="NVIDIA DGX Spark stacking guide; owners' reports: `state DOWN physical_state LINK_UP` occurs",
    remedy=(on_node("sudo ip link set {interface} up"), CABLE),
)
def carrier(context: Context, name: str, link: Link) -> Iterator[Seen]:
    """The group hangs in its first collective, waiting for the node with the rail that is down.

    NCCL skips a port that is not ACTIVE, and the ranks then use different numbers of HCAs.
    """
    interface, hca = context.facts[name].interface(link.interface), context.hca_of(name, link)
    if interface is not None and not is_up(interface):
        seen = f"state {interface.operstate}, carrier {'yes' if interface.carrier else 'no'}"
        yield Seen(f"{link.interface} of {name} is down", seen, values={"interface": link.interface})
    elif hca is not None and not hca.active:
        seen = f"state {hca.state}, physical state {hca.phys_state}"
        yield Seen(f"{hca.name} of {name} is not ACTIVE", seen, (CABLE, on_node("rdma link")))


@link_check(
    "NET-003",
    "Every HCA in use has a RoCE v2 GID for its address",
    source="MiaAI-Lab DeepSeek-v4-Flash-DSpark #10, #11",
    remedy=(on_node("sudo ip addr flush dev {interface} && sudo netplan apply"), on_node("show_gids {hca}")),
)
def gid(context: Context, name: str, link: Link) -> Iterator[Seen]:
    """The rank fails in ibv_modify_qp (errno 61) or hangs about a minute into the launch.

    The index of that GID differs between nodes and HCAs and changes over time: 3, 4, 5 and 6 were reported. Every run
    looks it up: type `RoCE v2`, IPv4-mapped, equal to the interface's address.
    """
    hca = context.hca_of(name, link)
    if hca is None:
        return
    expected = hca.roce_v2_index(link.address)
    if expected is None:
        table = ", ".join(f"{gid.index} {gid.type} {gid.ipv4 or 'link-local'}" for gid in hca.gids)
        yield Seen(
            f"{hca.name} of {name} has no RoCE v2 GID for {link.address}",
            f"GID table: {table or 'empty'}",
            values={"interface": link.interface, "hca": hca.name},
        )
    elif link.gid_index != expected:
        yield Seen(
            f"GID index {link.gid_index} of {hca.name} is not the RoCE v2 GID of {link.address}",
            f"that GID has index {expected}",
            [edit(f"set interconnect.gid_index of {name} to {expected}, or remove it")],
        )


@member_check(
    "NET-005",
    "Each rail has its own subnet, and a configured address in it",
    source="docs.nvidia.com/sync, Cluster Assistant: one interface per device on a given subnet; NVIDIA's guides for a"
    " switch and for a ring of three differ; NVIDIA DGX Spark netplan: link-local: [ ipv4 ]",
    remedy=(edit(f"give each twin an address in its own /24 in {NETPLAN}"), NETPLAN_APPLY),
    step="netplan",
)
def subnets(context: Context, name: str, member: Member) -> Iterator[Seen]:
    """Half of the bandwidth is lost: of twins in one subnet only one carries traffic.

    NVIDIA's guide for switches uses one DHCP server for both twins; its file for two Sparks uses link-local addresses
    (169.254/16), which change at every reboot. An error only if the inventory lists both twins of this node, since NCCL
    then hangs or runs at half speed. A warning in a ring, where NVIDIA's own example does this.
    """
    of_subnet: dict[str, list[str]] = {}
    for link in (*member.links, *member.idle_twins):
        of_subnet.setdefault(link.subnet, []).append(link.interface)
    idle, used = (Counter(link.subnet for link in links) for links in (member.idle_twins, member.links))
    for subnet, interfaces in of_subnet.items():
        if idle[subnet] and len(set(interfaces)) > 1:
            yield Seen(
                f"{idle[subnet] + 1} interfaces of {name} share the subnet {subnet}, and only one is used",
                f"{', '.join(interfaces)}; one twin gives 11 to 12 GB/s, two in separate subnets 22 to 24",
                remedy(context, name),
                severity="warning",
            )
        if used[subnet] > 1:
            ring = context.topology.group_of(name).kind == "ring"
            yield Seen(
                f"{used[subnet]} interfaces of {name} share the subnet {subnet}",
                ", ".join(link.interface for link in member.links if link.subnet == subnet),
                severity="warning" if ring or ipaddress.IPv4Network(subnet) == LINK_LOCAL else "error",
            )
    for link in member.links:
        if link.ip in LINK_LOCAL:
            summary = f"{link.interface} of {name} has a link-local address"
            yield Seen(summary, link.address, remedy(context, name), severity="warning")


@interconnect_check(
    "NET-027",
    "The subnets of a ring have the same prefix length",
    source="NVIDIA/nccl v2.30.7-1, src/transport/net_ib/connect.cc: NCCL_IB_SUBNET_PREFIX_LEN, by default 24",
    remedy=(edit(f"give every rail a /24 in {NETPLAN}"), NETPLAN_APPLY),
    step="netplan",
)
def prefixes(context: Context) -> Iterator[Seen]:
    """Ranks hang in the first collective: NCCL compares one prefix length to find the HCA that reaches a peer.

    If all rails have the same length, sparkcluster sets it for NCCL.
    """
    for group in context.topology.groups:
        lengths = group.prefix_lengths
        if group.kind == "ring" and len(lengths) > 1 and PREFIX_VARIABLE not in context.spec.playbook.env:
            seen = ", ".join(sorted({link.subnet for member in group.members for link in member.links}))
            yield Seen(f"the rails of {context.called(group)} have different prefix lengths", seen)


@interconnect_check(
    "NET-006",
    "The MTU is the same on every node of a rail, and large enough for jumbo frames",
    source="practitioners' reports: `ping -M do -s 8972` fails while a small ping passes; ib_write_bw figures:"
    " 93-98 Gb/s per twin at MTU 1500, 108-112 at 9000",
    remedy="sudo ip link set INTERFACE mtu MTU, also while the cluster serves; permanently: set mtu in /etc/netplan",
    step="netplan",
)
def mtu(context: Context) -> Iterator[Seen]:
    """The first collective deadlocks: one node drops the jumbo frames of the others, while small pings still pass.

    Info if all nodes have the same small MTU: RDMA sends 1 KB packets instead of 4 KB and loses a tenth of the
    bandwidth.
    """
    small: dict[str, list[str]] = {}
    wrong: dict[str, list[tuple[Link, int]]] = defaultdict(list)
    for rail in context.topology.rails:
        common = Counter(link.mtu for _, link in rail.links).most_common()
        # On a tie the larger value, since it was set on purpose.
        expected = max(value for value, count in common if count == common[0][1])
        for node, link in rail.links:
            if link.mtu != expected:
                wrong[node].append((link, expected))
        if len(common) == 1 and expected < MTU and all(link.hca for _, link in rail.links):
            small[rail.subnet] = [f"{node} {link.interface} {link.mtu}" for node, link in rail.links]
    for node, links in wrong.items():
        commands = " && ".join(shell("sudo ip link set", link.interface, "mtu", expected) for link, expected in links)
        own = ", ".join(f"{link.interface} has {link.mtu}" for link, _ in links)
        others = " or ".join(sorted({str(expected) for _, expected in links}))
        yield Seen(
            f"the MTU of {node} differs from the other nodes",
            f"{own}; the others have {others}",
            [on_node(commands)],
            node=node,
            live=True,
        )
    if small:
        seen = "; ".join(", ".join(sizes) for sizes in small.values())
        larger = edit(f"set mtu: {MTU} for both twins in {NETPLAN} of every node")
        yield Seen(
            f"the rails {', '.join(small)} do not carry jumbo frames", seen, (larger, NETPLAN_APPLY), severity="info"
        )


@link_check(
    "NET-009",
    "Links run at full speed, and the PCIe link of every HCA has four lanes",
    severity="warning",
    source="DGX Spark owners' reports: ethtool says 100000Mb/s after a bad negotiation; firmware before April 2026"
    " trained the second at Gen5 x2 (tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark#35)",
    remedy="reseat the cable at both ends, then reboot both nodes with it connected",
)
def speed(context: Context, name: str, link: Link) -> Iterator[Seen]:
    """A port that negotiated 100 Gb/s halves the bandwidth of tensor parallelism.

    A PCIe link of two lanes has half the bandwidth of its twin's link, and NCCL waits for it, although the network port
    still reports 200 Gb/s.
    """
    if link.hca and link.speed_mbps is not None and 0 < link.speed_mbps < FULL_SPEED_MBPS:
        seen = f"{link.speed_mbps} Mb/s, not {FULL_SPEED_MBPS}"
        yield Seen(f"{link.interface} of {name} is slower than its port", seen)
    hca = context.hca_of(name, link)
    generation, _, width = (hca.pcie or "" if hca is not None else "").partition(" x")
    if width and int(width) < LANES:
        yield Seen(
            f"the PCIe link of {link.hca} of {name} has {width} lanes",
            f"{generation} x{width}; a Spark has Gen5 x{LANES}",
            (
                on_node("sudo fwupdmgr refresh && sudo fwupdmgr update"),
                on_node("sudo reboot", "with the cable connected"),
                on_node(shell("cat", f"/sys/class/infiniband/{link.hca}/device/current_link_width"), "shows it"),
            ),
        )


@member_check(
    "NET-010",
    "RDMA device nodes exist for the container",
    source="public logs: `NET/IB : No device found`, `Using network Socket`",
    remedy=[on_node("sudo modprobe -a ib_uverbs rdma_ucm")],
)
def devices(context: Context, name: str, member: Member) -> Iterator[Seen]:
    """NCCL logs `No device found` and falls back to sockets without an error: 1 to 3 GB/s instead of 22."""
    if member.hcas and not context.facts[name].infiniband_devices:
        yield Seen(f"{name} has HCAs but no /dev/infiniband", ", ".join(member.hcas))


@interconnect_check(
    "NET-011",
    "No two nodes have the same address",
    source="general",
    remedy=(edit("give each node its own address in /etc/netplan"), NETPLAN_APPLY),
    step="netplan",
)
def unique(context: Context) -> Iterator[Seen]:
    """Both nodes reply for the address, and packets for one node reach the other."""
    owners: dict[str, set[str]] = defaultdict(set)
    for member in context.topology.members.values():
        if context.topology.group_of(member.name).kind != "single":
            for address in {member.address, *(link.address for link in member.links)}:
                owners[address].add(member.name)
    for address, names in owners.items():
        if len(names) > 1:
            yield Seen(f"{' and '.join(sorted(names))} both have {address}", address)


@check(
    "NET-012",
    "The API listens on an address of the head",
    source="general",
    remedy=[edit("set api.host to management, interconnect or an address of the head")],
)
def api(context: Context) -> Iterator[Seen]:
    """The engine loads the model, then exits because it cannot bind the address."""
    for group in context.topology.groups:
        address = ipaddress.ip_address(group.api_host)
        facts = context.facts[group.head.name]
        anywhere = address.version == 6 or address.is_loopback or address.is_unspecified
        if not (isinstance(facts.interfaces, Unread) or anywhere or facts.interface_of(group.api_host)):
            yield Seen(
                f"{group.head.name} has no address {group.api_host} for the API",
                ", ".join(address for interface in facts.interfaces for address in interface.addresses),
                node=group.head.name,
            )


def _cabled(context: Context, member: Member) -> str:
    """Description of a node's interconnect."""
    facts = context.facts[member.name]
    if isinstance(facts.hcas, Unread):
        return f"its HCAs could not be read ({facts.hcas.unread})"
    if not facts.hcas:
        return "no HCA (a ConnectX-7 appears only while a cable is connected)"
    up = [hca for hca in facts.hcas if hca.active]
    if not up:
        return "no HCA is ACTIVE: the cable is not connected"
    addresses = {interface.name: ", ".join(interface.addresses) for interface in read(facts.interfaces) or ()}
    return ", ".join(f"{hca.netdev} {addresses.get(hca.netdev or '') or 'without address'}" for hca in up)
