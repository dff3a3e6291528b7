"""The cables: one network namespace of switches per lab, one namespace per virtual Spark.

All bridges are in the switch namespace, not on the machine. So the machine's packet filter (Docker
sets FORWARD to DROP) never sees a frame between two Sparks, the rails reach only Sparks, and the
machine has a single device per lab: its end of the management network.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from sparkcluster.errors import LabError
from sparkcluster.lab.machine import run
from sparkcluster.lab.spec import FUNCTIONS, Function, LabSpec
from sparkcluster.lab.state import State

BRIDGE_MTU = 9978
"""Largest MTU of the ConnectX-7 interfaces; the switches must pass whatever a Spark sends."""

OUI = "4c:bb:47"
"""Maker's half of a Spark's ConnectX-7 addresses, from posted show_gids output."""


def mac(index: int, spark: int, tail: int) -> str:
    """Hardware address: unique across labs and Sparks, tails +0 +1 +4 +5 over the four functions."""
    number = 0x200000 + (index << 12) + (spark << 4) + tail
    return f"{OUI}:{number >> 16:02x}:{number >> 8 & 0xFF:02x}:{number & 0xFF:02x}"


def guid(index: int, spark: int, tail: int) -> str:
    """Node GUID in sysfs form; the tails run as those of the hardware addresses."""
    number = 0x200000 + (index << 12) + (spark << 4) + tail
    return f"4cbb:4703:{number >> 16:04x}:{number & 0xFFFF:04x}"


def wifi_peer(spark: int) -> str:
    """The far end of a Spark's WiFi: an access point in the management network."""
    return f"s{spark}wifi"


def peer(spark: int, function: Function | None) -> str:
    """The switch's end of a cable; without a function, that of the management network."""
    return f"s{spark}mgmt" if function is None else f"s{spark}{function.hca[4:]}"


def bridges(spec: LabSpec) -> list[str]:
    """All bridges of a lab."""
    rails = {rail for index in range(len(spec.sparks)) for rail in spec.rails(index).values()}
    return ["mgmt", *(f"rail{rail}" for rail in sorted(rails))]


def ip(netns: str | None, lines: list[str]) -> None:
    """Run several ``ip`` commands in a single process.

    Raises:
        LabError: a command failed.
    """
    if lines:
        argv = ["ip", *(["-n", netns] if netns else []), "-batch", "-"]
        run(argv, text_in="".join(line + "\n" for line in lines))


def up(state: State) -> None:
    """Make all namespaces, switches and cables of a lab.

    Raises:
        LabError: the kernel refused something.
    """
    spec = state.spec
    nodes = range(len(spec.sparks))
    ip(None, [f"netns add {name}" for name in (state.switch, *(state.netns(node) for node in nodes))])
    quiet_bridges(state.switch)
    ip(
        state.switch,
        [
            line
            for name in bridges(spec)
            for line in (f"link add {name} type bridge", f"link set {name} mtu {BRIDGE_MTU} up")
        ],
    )
    ip(
        None,
        [
            f"link add {state.host_device} type veth peer name uplink netns {state.switch}",
            f"addr add {state.gateway}/24 dev {state.host_device}",
            f"link set {state.host_device} up",
        ],
    )
    ip(state.switch, ["link set uplink master mgmt up"])
    for node in nodes:
        ip(state.switch, cables(state, node))


def cables(state: State, node: int) -> list[str]:
    """``ip`` commands in the switch namespace that connect a Spark; ports without a cable stay down."""
    spark = state.spec.sparks[node]
    netns = state.netns(node)
    rails = state.spec.rails(node)
    lines = [
        f"link add {peer(node, None)} type veth peer name {spark.management} netns {netns}",
        f"link set {peer(node, None)} master mgmt up",
        # Its far end stays down: a Spark with a cable is on no WiFi.
        f"link add {wifi_peer(node)} type veth peer name {spark.wifi} netns {netns}",
        f"link set {wifi_peer(node)} master mgmt",
    ]
    for function in FUNCTIONS if spark.cabled else ():
        name = peer(node, function)
        lines.append(
            f"link add {name} mtu {BRIDGE_MTU} type veth peer name {spark.netdev(function)} "
            f"address {mac(state.index, node, function.mac_tail)} netns {netns}"
        )
        if function.netdev in rails:
            lines.append(f"link set {name} master rail{rails[function.netdev]} up")
    return lines


def configure(state: State, node: int) -> None:
    """Configure the interfaces of a Spark, as its network configuration does at boot."""
    spark = state.spec.sparks[node]
    lines = [
        "link set lo up",
        f"addr flush dev {spark.management}",
        f"addr add {state.management(node)}/24 brd + dev {spark.management}",
        f"link set {spark.management} up",
        f"route replace default via {state.gateway} dev {spark.management}",
        f"addr flush dev {spark.wifi}",
        f"link set {spark.wifi} addrgenmode none up",
    ]
    for function in FUNCTIONS if spark.cabled else ():
        name = spark.netdev(function)
        cabled = function.port in spark.cabled
        lines += [
            f"link set {name} addrgenmode none mtu {spark.mtu if cabled else 1500}",
            f"addr flush dev {name}",
        ]
        address = state.spec.address(node, function)
        if address is not None:
            lines.append(f"addr add {address} brd + dev {name}")
        lines.append(f"link set {name} up")
    ip(state.netns(node), lines)


def quiet_bridges(netns: str) -> None:
    """Keep the machine's packet filter off bridged frames."""
    script = "for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ -e $f ] && echo 0 > $f; done; true"
    run(["ip", "netns", "exec", netns, "sh", "-c", script])


def down(state: State) -> None:
    """Remove all namespaces, switches and cables of a lab, however many of them were made."""
    names = [path.name for path in Path("/run/netns").glob(f"sclab{state.index}-*")]
    if Path(f"/sys/class/net/{state.host_device}").exists():
        run(["ip", "link", "del", state.host_device], check=False)
    for name in names:
        run(["ip", "netns", "del", name], check=False)
        # A namespace whose creation was interrupted is a plain file.
        with contextlib.suppress(OSError):
            (Path("/run/netns") / name).unlink(missing_ok=True)


def processes(netns: str) -> set[int]:
    """Ids of all processes whose network is ``netns``."""
    try:
        wanted = (Path("/run/netns") / netns).stat().st_ino
    except OSError:
        return set()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns" / "net").stat().st_ino == wanted:
                    found.add(int(entry.name))
    return found - {os.getpid()}


def set_carrier(state: State, node: int, ports: tuple[str, ...], *, on: bool) -> None:
    """Plug the cables of ``ports`` in or out, both twins of each.

    On a direct cable or in a ring, the Spark at the other end loses its carrier too.
    """
    own = state.spec.rails(node)
    lines = []
    for function in FUNCTIONS:
        if function.port not in ports or function.netdev not in own:
            continue
        for other in range(len(state.spec.sparks)):
            rails = state.spec.rails(other)
            for far in FUNCTIONS:
                at_end = other == node and far == function
                same_cable = state.spec.topology != "switch" and rails.get(far.netdev) == own[function.netdev]
                if at_end or same_cable:
                    lines.append(f"link set {peer(other, far)} {'up' if on else 'down'}")
    ip(state.switch, sorted(set(lines)))


def shape(state: State, node: int, rate: str | None) -> None:
    """Limit what the cabled interfaces of a Spark send and receive; None removes the limit.

    Raises:
        LabError: ``rate`` is not a rate that tc accepts.
    """
    if rate is not None and not re.fullmatch(r"[0-9.]+([kmg]i?bit|bit)", rate.lower()):
        raise LabError(f"{rate!r} is not a rate", hint="write it as 200mbit or 13gbit")
    spark = state.spec.sparks[node]
    for function in FUNCTIONS:
        if function.netdev not in state.spec.rails(node):
            continue
        ends = ((state.netns(node), spark.netdev(function)), (state.switch, peer(node, function)))
        for netns, device in ends:
            argv = ["tc", "-n", netns, "qdisc"]
            if rate is None:
                run([*argv, "del", "dev", device, "root"], check=False)
            else:
                limit = ["tbf", "rate", rate, "burst", "512kb", "latency", "50ms"]
                run([*argv, "replace", "dev", device, "root", *limit])
