"""The cables: one network namespace of switches per lab, one namespace per virtual Spark.

All bridges are in the switch namespace, not on the machine. So the machine's packet filter (Docker sets FORWARD to
DROP) never sees a frame between two Sparks, the rails reach only Sparks, and the machine has a single device per lab:
its end of the management network.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.errors import LabError
from sparkcluster.lab.machine import run
from sparkcluster.lab.spec import Function, LabSpec
from sparkcluster.lab.state import Node, State, network_namespaces

BRIDGE_MTU = 9978
"""Largest MTU of the ConnectX-7 interfaces; the switches must forward whatever a Spark sends."""

LINK_LOCAL_GROUPS = 0xFFF8
"""Addresses 01:80:c2:00:00:03 to :0f; the kernel allows no bridge to forward the first three."""

OUI = "4c:bb:47"
"""Vendor part of a Spark's ConnectX-7 addresses, from posted show_gids output."""


def mac(index: int, spark: int, tail: int) -> str:
    """MAC address: unique across labs and Sparks, with tails +0 +1 +4 +5 for the four functions."""
    number = 0x200000 + (index << 12) + (spark << 4) + tail
    return f"{OUI}:{number >> 16:02x}:{number >> 8 & 0xFF:02x}:{number & 0xFF:02x}"


def peer(spark: int, function: Function | None) -> str:
    """The switch's end of a cable; without a function, of the management network."""
    return f"s{spark}mgmt" if function is None else f"s{spark}{function.hca[4:]}"


def bridges(spec: LabSpec) -> list[str]:
    """All bridges of a lab: the management network, and the switch or the cables of the ConnectX-7 ports."""
    wires = {wire for index in range(len(spec.sparks)) for wire in spec.wires(index).values()}
    return ["mgmt", *sorted(wires)]


def forwards(bridge: str) -> str:
    """Options of a bridge: a cable forwards frames that switches do not, such as LLDP (IEEE 802.1D, table 7-10)."""
    return f" group_fwd_mask {LINK_LOCAL_GROUPS}" if bridge.startswith("cable") else ""


def ip(netns: str | None, lines: list[str]) -> None:
    """Run several ``ip`` commands in one process.

    Raises:
        LabError: a command failed.
    """
    if lines:
        argv = ["ip", *(["-n", netns] if netns else []), "-batch", "-"]
        run(argv, text_in="".join(line + "\n" for line in lines))


def up(state: State) -> None:
    """Create all namespaces, switches and cables of a lab.

    Raises:
        LabError: the kernel refused something.
    """
    ip(None, [f"netns add {name}" for name in (state.switch, *(node.unit for node in state.nodes))])
    # Bridged frames must bypass the machine's packet filter.
    script = "for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ -e $f ] && echo 0 > $f; done; true"
    run(["ip", "netns", "exec", state.switch, "sh", "-c", script])
    ip(
        state.switch,
        [
            line
            for name in bridges(state.spec)
            for line in (
                f"link add {name} type bridge{forwards(name)}",
                f"link set {name} addrgenmode none",
                f"link set {name} mtu {BRIDGE_MTU} up",
            )
        ],
    )
    ip(
        None,
        [
            f"link add {state.host_device} type veth peer name uplink netns {state.switch}",
            f"addr add {state.gateway}/24 dev {state.host_device}",
            f"addr add {state.registry}/24 dev {state.host_device}",
            f"link set {state.host_device} up",
        ],
    )
    ip(state.switch, ["link set uplink master mgmt up"])
    for node in state.nodes:
        ip(state.switch, cables(node))


def cables(node: Node) -> list[str]:
    """``ip`` commands in the switch namespace that connect a Spark; ports without a cable stay down."""
    spark, netns, wires = node.spec, node.unit, node.state.spec.wires(node.index)
    management = peer(node.index, None)
    lines = [
        f"link add {management} type veth peer name {spark.management} netns {netns}",
        f"link set {management} master mgmt up",
    ]
    for function in spark.functions:
        name = peer(node.index, function)
        lines.append(
            f"link add {name} mtu {BRIDGE_MTU} type veth peer name {spark.netdev(function)} "
            f"address {mac(node.state.index, node.index, function.mac_tail)} netns {netns}"
        )
        if function.netdev in wires:
            lines.append(f"link set {name} master {wires[function.netdev]} up")
    return lines


def configure(node: Node) -> None:
    """Configure the interfaces of a Spark, like its network configuration at boot."""
    if node.state.spec.bare:
        ip(node.unit, _unconfigured(node))
        return
    spark = node.spec
    lines = [
        "link set lo up",
        f"addr flush dev {spark.management}",
        f"addr add {node.host}/24 brd + dev {spark.management}",
        f"link set {spark.management} up",
        f"route replace default via {node.state.gateway} dev {spark.management}",
    ]
    for function in spark.functions:
        name = spark.netdev(function)
        cabled = function.port in spark.cabled
        lines += [
            f"link set {name} addrgenmode none mtu {spark.mtu if cabled else 1500}",
            f"addr flush dev {name}",
        ]
        address = node.address(function)
        if address is not None:
            lines.append(f"addr add {address} brd + dev {name}")
        lines.append(f"link set {name} up")
    ip(node.unit, lines)


def _unconfigured(node: Node) -> list[str]:
    """``ip`` commands that reset a bare Spark to its first boot: its DHCP address, and ports without addresses.

    Its first process then applies its netplan files.
    """
    spark = node.spec
    ports = [spark.netdev(function) for function in spark.functions]
    lines = ["link set lo up"]
    for name in (spark.management, *ports):
        # The kernel assigns the IPv6 link-local address only when a link comes up.
        lines += [f"link set {name} down addrgenmode eui64 mtu 1500", f"addr flush dev {name}"]
    return [
        *lines,
        f"addr add {node.host}/24 brd + dev {spark.management}",
        *(f"link set {name} up" for name in (spark.management, *ports)),
        f"route replace default via {node.state.gateway} dev {spark.management}",
    ]


def down(state: State) -> None:
    """Remove all namespaces, switches and cables of a lab, even if only some exist."""
    namespaces = network_namespaces(state.index)
    if Path(f"/sys/class/net/{state.host_device}").exists():
        run(["ip", "link", "del", state.host_device], check=False)
    for path in namespaces:
        run(["ip", "netns", "del", path.name], check=False)
        # A namespace whose creation was interrupted is a plain file.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def processes(netns: str) -> set[int]:
    """IDs of all processes in network namespace ``netns``."""
    try:
        inode = (Path("/run/netns") / netns).stat().st_ino
    except OSError:
        return set()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns" / "net").stat().st_ino == inode:
                    found.add(int(entry.name))
    return found - {os.getpid()}


def cable_ends(node: Node, ports: Sequence[str]) -> list[str]:
    """The switch's ends of the cables in ``ports``, both twins of each; if one end is down, its cable has no carrier.

    For a direct cable or a ring, they include the ends of the Spark at the other end.
    """
    nodes = [node] if node.state.spec.topology == "switch" else node.state.nodes
    rails = {node.rails[function.netdev] for function in node.cabled if function.port in ports}
    return sorted(
        peer(other.index, function)
        for other in nodes
        for function in other.cabled
        if other.rails[function.netdev] in rails
    )


def shape(node: Node, rate: str | None) -> None:
    """Limit the rate of the cabled interfaces of a Spark in both directions; None removes the limit.

    Raises:
        LabError: ``rate`` is not a rate that tc accepts.
    """
    if rate is not None and not re.fullmatch(r"[0-9.]+([kmg]i?bit|bit)", rate.lower()):
        raise LabError(f"{rate!r} is not a rate", hint="write it as 200mbit or 13gbit")
    for function in node.cabled:
        ends = ((node.unit, node.spec.netdev(function)), (node.state.switch, peer(node.index, function)))
        for netns, device in ends:
            argv = ["tc", "-n", netns, "qdisc"]
            if rate is None:
                run([*argv, "del", "dev", device, "root"], check=False)
            else:
                limit = ["tbf", "rate", rate, "burst", "512kb", "latency", "50ms"]
                run([*argv, "replace", "dev", device, "root", *limit])
