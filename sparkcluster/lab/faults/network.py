"""Faults of cables, interfaces and addresses. All are real but speed and GID tables."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Sequence
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.lab import network
from sparkcluster.lab.faults.base import Fault, Undo, hardware, number, restore_hardware
from sparkcluster.lab.machine import wait_until
from sparkcluster.lab.shims.services import CHAIN, UFW_CONF
from sparkcluster.lab.sparks import Spark
from sparkcluster.lab.spec import FUNCTIONS, GID_LAYOUTS, Function


def _ports(spark: Spark, args: Sequence[str]) -> tuple[str, ...]:
    cabled = spark.spec.cabled
    if not cabled:
        raise UsageError(f"{spark.name} has no cable", hint="give its spec `ports: p1`")
    if args and args[0] not in cabled:
        raise UsageError(f"{spark.name} has no cable in {args[0]}", hint=f"it has {', '.join(cabled)}")
    return (args[0],) if args else cabled


def _cabled(spark: Spark) -> list[Function]:
    """Functions with a cable, the first twin of each port before the second."""
    _ports(spark, ())
    rails = spark.state.spec.rails(spark.index)
    return sorted((f for f in FUNCTIONS if f.netdev in rails), key=lambda f: rails[f.netdev])


def _address(spark: Spark, function: Function) -> ipaddress.IPv4Interface:
    text = spark.state.spec.address(spark.index, function)
    if text is None:
        raise UsageError(f"{spark.spec.netdev(function)} of {spark.name} has no address by its spec")
    return ipaddress.IPv4Interface(text)


def _cable_out(spark: Spark, args: Sequence[str]) -> Undo:
    ports = _ports(spark, args)
    network.set_carrier(spark.state, spark.index, ports, on=False)
    spark.sync_hardware()
    return {"ports": ports}


def _cable_in(spark: Spark, undo: Undo) -> None:
    network.set_carrier(spark.state, spark.index, tuple(undo["ports"]), on=True)
    devices = [spark.spec.netdev(function) for function in FUNCTIONS if function.port in undo["ports"]]

    def lit() -> bool:
        return "0" not in spark.run(["cat", *(f"/sys/class/net/{name}/carrier" for name in devices)]).stdout

    wait_until(lit, limit_s=1.0, sleep=time.sleep)
    spark.sync_hardware()


def _set_mtu(spark: Spark, mtu: int) -> None:
    devices = [spark.spec.netdev(f) for f in FUNCTIONS if f.netdev in spark.state.spec.rails(spark.index)]
    network.ip(spark.state.netns(spark.index), [f"link set {device} mtu {mtu}" for device in devices])
    spark.sync_hardware()


def _mtu(spark: Spark, args: Sequence[str]) -> Undo:
    _ports(spark, ())
    _set_mtu(spark, number(args[0], 68, network.BRIDGE_MTU, "an MTU"))
    return {}


def _path_mtu(spark: Spark, args: Sequence[str]) -> Undo:
    mtu = number(args[0], 68, network.BRIDGE_MTU, "an MTU")
    _set_path_mtu(spark, mtu)
    return {}


def _set_path_mtu(spark: Spark, mtu: int) -> None:
    """Set the MTU at the switch's ends of the cables: larger frames are dropped there without notice."""
    ends = [network.peer(spark.index, function) for function in _cabled(spark)]
    network.ip(spark.state.switch, [f"link set {end} mtu {mtu}" for end in ends])


def _gids(layout: str) -> Callable[[Spark, Sequence[str]], Undo]:
    def put_layout(spark: Spark, args: Sequence[str]) -> Undo:
        rails = spark.state.spec.rails(spark.index)
        cabled = [function.hca for function in FUNCTIONS if function.netdev in rails]
        if not cabled or (args and args[0] not in cabled):
            raise UsageError(f"{spark.name} has no such HCA with a cable", hint=f"it has {', '.join(cabled)}")
        # A shift affects all HCAs of a node, a missing entry a single HCA: by default the second twin.
        chosen = list(args) or (cabled if layout == "shifted" else cabled[-1:])

        def change(values: dict[str, Any]) -> None:
            for function in values["functions"]:
                if function["hca"] in chosen:
                    function["gids"] = GID_LAYOUTS[layout]

        return hardware(spark, change)

    return put_layout


def _slow(spark: Spark, args: Sequence[str]) -> Undo:
    _ports(spark, ())
    network.shape(spark.state, spark.index, args[0])
    return {}


def _speed(spark: Spark, args: Sequence[str]) -> Undo:
    speed = number(args[0], 10, 800_000, "a speed in Mb/s")
    cabled = [function.hca for function in _cabled(spark)]

    def change(values: dict[str, Any]) -> None:
        for function in values["functions"]:
            if function["hca"] in cabled:
                function["speed_mbps"] = speed

    return hardware(spark, change)


def _readdress(spark: Spark, function: Function, fresh: str | None) -> Undo:
    """Give an interface another address, or none."""
    device, before = spark.spec.netdev(function), str(_address(spark, function))
    lines = [f"addr flush dev {device}", *([f"addr add {fresh} brd + dev {device}"] if fresh else [])]
    network.ip(spark.state.netns(spark.index), lines)
    spark.sync_hardware()
    return {"device": device, "before": before}


def _restore_address(spark: Spark, undo: Undo) -> None:
    device = undo["device"]
    lines = [f"addr flush dev {device}", f"addr add {undo['before']} brd + dev {device}"]
    network.ip(spark.state.netns(spark.index), lines)
    spark.sync_hardware()


def _twin_subnet(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    first, second = _cabled(spark)[:2]
    network = _address(spark, first).network
    spec = spark.state.spec
    taken = {spec.address(index, function) for index in range(len(spec.sparks)) for function in FUNCTIONS}
    # From the top of the subnet, so that two Sparks with this fault get different addresses.
    fresh = [
        f"{network.broadcast_address - 1 - step}/{network.prefixlen}" for step in range(len(taken) + spark.index + 1)
    ]
    return _readdress(spark, second, [address for address in fresh if address not in taken][spark.index])


def _twin_down(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    second = _cabled(spark)[1]
    network.ip(spark.state.netns(spark.index), [f"link set {spark.spec.netdev(second)} down"])
    spark.sync_hardware()
    return {"device": spark.spec.netdev(second)}


def _twin_up(spark: Spark, undo: Undo) -> None:
    network.ip(spark.state.netns(spark.index), [f"link set {undo['device']} up"])
    spark.sync_hardware()


def _no_address(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    return _readdress(spark, _cabled(spark)[1], None)


def _other(spark: Spark, name: str | None) -> Spark:
    """Another Spark of the lab, by name; the next one by default."""
    sparks = [Spark(spark.state, index) for index in range(len(spark.state.spec.sparks))]
    others = [other for other in sparks[spark.index + 1 :] + sparks[: spark.index] if name in (None, other.name)]
    if not others:
        names = ", ".join(other.name for other in sparks if other.index != spark.index)
        raise UsageError(f"no other Spark is named {name}", hint=f"Sparks: {names or 'none'}")
    return others[0]


def _duplicate_address(spark: Spark, args: Sequence[str]) -> Undo:
    other = _other(spark, args[0] if args else None)
    rail = _address(other, _cabled(other)[0])
    own = next((f for f in _cabled(spark) if _address(spark, f).network == rail.network), None)
    if own is None:
        raise UsageError(f"{spark.name} and {other.name} share no rail")
    return _readdress(spark, own, str(rail))


def _iptables(spark: Spark, *lines: str) -> None:
    for line in lines:
        spark.run(["/usr/sbin/iptables", "-w", *line.split()])


def _firewall(spark: Spark, args: Sequence[str]) -> Undo:
    """As an enabled ufw does: SSH and pings come in, no other new connection; or only what the argument says."""
    rules = ["-p tcp --dport 22 -j ACCEPT", "-p tcp --syn -j DROP", "-p udp -j DROP"]
    if args and args[0].isdigit():
        rules = [f"-p tcp --dport {number(args[0], 1, 65535, 'a port')} --syn -j DROP"]
    elif args:
        other = _other(spark, args[0])
        addresses = [str(_address(other, function).ip) for function in _cabled(other)]
        rules = [f"-s {address} -p {kind} -j DROP" for address in addresses for kind in ("tcp", "udp")]
    _firewall_off(spark, {})
    lines = [f"-A {CHAIN} {rule}" for rule in rules]
    _iptables(spark, f"-N {CHAIN}", f"-A INPUT -j {CHAIN}", f"-A {CHAIN} -i lo -j ACCEPT", *lines)
    spark.run(["sed", "-i", "s/^ENABLED=.*/ENABLED=yes/", UFW_CONF])
    return {}


def _firewall_off(spark: Spark, undo: Undo) -> None:
    del undo
    for line in (f"-D INPUT -j {CHAIN}", f"-F {CHAIN}", f"-X {CHAIN}"):
        spark.run(["/usr/sbin/iptables", "-w", *line.split()], check=False)
    spark.run(["sed", "-i", "s/^ENABLED=.*/ENABLED=no/", UFW_CONF])


def wifi_address(spark: Spark) -> str:
    """Address of a Spark's WiFi while it is connected."""
    return str(ipaddress.IPv4Address(spark.host) + 100)


def _name_by_wifi(spark: Spark, args: Sequence[str]) -> Undo:
    """Connect the Spark's WiFi to the management network and resolve its name to it on the others, as mDNS does."""
    del args
    network.ip(spark.state.switch, [f"link set {network.wifi_peer(spark.index)} up"])
    network.ip(spark.state.netns(spark.index), [f"addr add {wifi_address(spark)}/24 brd + dev {spark.spec.wifi}"])
    _rename(spark, spark.host, wifi_address(spark))
    return {}


def _restore_name(spark: Spark, undo: Undo) -> None:
    del undo
    network.ip(spark.state.switch, [f"link set {network.wifi_peer(spark.index)} down"])
    network.ip(spark.state.netns(spark.index), [f"addr flush dev {spark.spec.wifi}"])
    _rename(spark, wifi_address(spark), spark.host)


def _rename(spark: Spark, before: str, after: str) -> None:
    """Have the others resolve the Spark's name to another address."""
    for index in range(len(spark.state.spec.sparks)):
        if index != spark.index:
            expression = f"s/^{before.replace('.', '[.]')} /{after} /"
            Spark(spark.state, index).run(["sed", "-i", expression, "/etc/hosts"])


FAULTS: dict[str, Fault] = {
    "cable-out": Fault("[p0|p1]", _cable_out, _cable_in),
    "mtu": Fault("N", _mtu, lambda spark, _: _set_mtu(spark, spark.spec.mtu)),
    "path-mtu": Fault("N", _path_mtu, lambda spark, _: _set_path_mtu(spark, network.BRIDGE_MTU)),
    "gid-shift": Fault("[HCA]", _gids("shifted"), restore_hardware, simulated=True),
    "gid-missing": Fault("[HCA]", _gids("missing"), restore_hardware, simulated=True),
    "slow-link": Fault("RATE", _slow, lambda spark, _: network.shape(spark.state, spark.index, None)),
    "speed": Fault("MBPS", _speed, restore_hardware, simulated=True),
    "twin-down": Fault(None, _twin_down, _twin_up),
    "twin-subnet": Fault(None, _twin_subnet, _restore_address),
    "no-address": Fault(None, _no_address, _restore_address),
    "duplicate-address": Fault("[SPARK]", _duplicate_address, _restore_address),
    "firewall": Fault("[PORT|SPARK]", _firewall, _firewall_off),
    "name-by-wifi": Fault(None, _name_by_wifi, _restore_name),
}
"""Faults of the network, by kind."""
