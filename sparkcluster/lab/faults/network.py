"""Faults of cables, interfaces and addresses. All are real except speed and GID tables."""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.lab import network
from sparkcluster.lab.faults.base import Fault, Steps, command, hardware, links, number, undone_by, until
from sparkcluster.lab.shims.services import CHAIN, UFW_CONF
from sparkcluster.lab.sparks import Spark, sparks_of
from sparkcluster.lab.spec import FUNCTIONS, GID_LAYOUTS, Function

IPTABLES = "/usr/sbin/iptables -w"
FIREWALL_OFF = f"""
{IPTABLES} -D INPUT -j {CHAIN}
{IPTABLES} -F {CHAIN}
{IPTABLES} -X {CHAIN}
sed -i 's/^ENABLED=.*/ENABLED=no/' {UFW_CONF}
"""

# Packets from the Spark to the machine get an Ethernet address that does not exist: a packet filter would return an
# error to the sender.
SILENCE = f"""
set -e
/usr/sbin/ip neigh replace "$1" lladdr 02:00:00:00:00:00 nud permanent dev "$2"
{IPTABLES} -I INPUT -s "$1" -j DROP
"""
SILENCE_OFF = f"""
while {IPTABLES} -D INPUT -s "$1" -j DROP 2> /dev/null; do :; done
/usr/sbin/ip neigh del "$1" dev "$2" 2> /dev/null || true
"""

# A veth pair needs a moment to report its carrier; the arguments are the files to read.
WAIT_FOR_CARRIER = """
for try in $(seq 50); do
  cat "$@" 2> /dev/null | grep -q 0 || break
  sleep 0.02
done
"""


def _cabled(spark: Spark) -> list[Function]:
    if not spark.cabled:
        raise UsageError(f"{spark.name} has no cable", hint="set `ports: p1` in its spec")
    return spark.cabled


def _chosen(spark: Spark, name: str, names: Sequence[str]) -> Sequence[str]:
    _cabled(spark)
    if name and name not in names:
        raise UsageError(f"{spark.name} has no cable in {name}", hint=f"it has {', '.join(names)}")
    return [name] if name else names


def _devices(spark: Spark) -> list[str]:
    return [spark.spec.netdev(function) for function in _cabled(spark)]


def _address(spark: Spark, function: Function) -> ipaddress.IPv4Interface:
    text = spark.address(function)
    if text is None:
        raise UsageError(f"{spark.spec.netdev(function)} of {spark.name} has no address in its spec")
    return ipaddress.IPv4Interface(text)


def _cable_out(spark: Spark, port: str = "") -> Steps:
    ports = _chosen(spark, port, spark.spec.cabled)
    ends = network.cable_ends(spark, ports)
    devices = [spark.spec.netdev(function) for function in spark.cabled if function.port in ports]
    carriers = [f"/sys/class/net/{device}/carrier" for device in devices]
    off, on = ([f"link set {end} {state}" for end in ends] for state in ("down", "up"))
    steps = links(spark, spark.state.switch, off, on)
    return steps + undone_by(spark, ["sh", "-c", WAIT_FOR_CARRIER, "sh", *carriers])


def _mtu(spark: Spark, mtu: str) -> Steps:
    new = number(mtu, 68, network.BRIDGE_MTU, "an MTU")
    lines, undo = ([f"link set {name} mtu {size}" for name in _devices(spark)] for size in (new, spark.spec.mtu))
    return links(spark, spark.unit, lines, undo)


def _path_mtu(spark: Spark, mtu: str) -> Steps:
    """Set the MTU at the switch's ends of the cables: larger frames are dropped silently."""
    new = number(mtu, 68, network.BRIDGE_MTU, "an MTU")
    ends = [network.peer(spark.index, function) for function in _cabled(spark)]
    lines, undo = ([f"link set {end} mtu {size}" for end in ends] for size in (new, network.BRIDGE_MTU))
    return links(spark, spark.state.switch, lines, undo)


def _set_functions(spark: Spark, hcas: Sequence[str], **values: Any) -> Steps:
    """Change the simulated functions of some HCAs."""

    def change(facts: dict[str, Any]) -> None:
        for function in facts["functions"]:
            if function["hca"] in hcas:
                function.update(values)

    return hardware(spark, change)


def _hcas(spark: Spark) -> list[str]:
    return [function.hca for function in _cabled(spark)]


def _gid_missing(spark: Spark, hca: str = "") -> Steps:
    # A shift affects all HCAs of a node, a missing entry only one: by default the second twin.
    chosen = _chosen(spark, hca, _hcas(spark))[-1:]
    return _set_functions(spark, chosen, gids=GID_LAYOUTS["missing"])


def _slow(spark: Spark, rate: str) -> Steps:
    _cabled(spark)
    network.shape(spark, rate)
    return [{"rate": None}]


def _speed(spark: Spark, mbps: str) -> Steps:
    speed = number(mbps, 10, 800_000, "a speed in Mb/s")
    return _set_functions(spark, _hcas(spark), speed_mbps=speed)


def _readdress(spark: Spark, function: Function, fresh: str | None) -> Steps:
    """Replace the address of an interface, or remove it."""
    device, before = spark.spec.netdev(function), str(_address(spark, function))
    lines, undo = (
        [f"addr flush dev {device}", *([f"addr add {address} brd + dev {device}"] if address else [])]
        for address in (fresh, before)
    )
    return links(spark, spark.unit, lines, undo)


def _twin_subnet(spark: Spark) -> Steps:
    first, second = _cabled(spark)[:2]
    network = _address(spark, first).network
    taken = {node.address(function) for node in spark.state.nodes for function in FUNCTIONS}
    # From the top of the subnet, so that two Sparks with this fault get different addresses.
    fresh = [
        f"{network.broadcast_address - 1 - step}/{network.prefixlen}" for step in range(len(taken) + spark.index + 1)
    ]
    return _readdress(spark, second, [address for address in fresh if address not in taken][spark.index])


def _twin_down(spark: Spark) -> Steps:
    device = _devices(spark)[1]
    return links(spark, spark.unit, [f"link set {device} down"], [f"link set {device} up"])


def _others(spark: Spark) -> list[Spark]:
    """The other Sparks of the lab, the next one first."""
    sparks = sparks_of(spark.state)
    return sparks[spark.index + 1 :] + sparks[: spark.index]


def _other(spark: Spark, name: str) -> Spark:
    """Another Spark on a rail of this one, by name; the next one by default."""
    rails = spark.state.spec.rails
    found = [other for other in _others(spark) if name in ("", other.name)]
    for other in found:
        # Other pairs have the same addresses on other rails.
        if set(rails(spark.index).values()) & set(rails(other.index).values()):
            return other
    if found:
        raise UsageError(f"{spark.name} and {name or 'the others'} share no rail")
    names = ", ".join(sorted(other.name for other in _others(spark)))
    raise UsageError(f"no other Spark is named {name}", hint=f"Sparks: {names or 'none'}")


def _duplicate_address(spark: Spark, name: str = "") -> Steps:
    other = _other(spark, name)
    rail = _address(other, _cabled(other)[0])
    function = next((f for f in _cabled(spark) if _address(spark, f).network == rail.network), None)
    if function is None:
        raise UsageError(f"{spark.name} and {other.name} share no rail")
    return _readdress(spark, function, str(rail))


def _firewall(spark: Spark, source: str = "") -> Steps:
    """Like an enabled ufw: allows SSH and pings, and no other new connections; or blocks only the argument."""
    rules = ["-p tcp --dport 22 -j ACCEPT", "-p tcp --syn -j DROP", "-p udp -j DROP"]
    if source.isdigit():
        rules = [f"-p tcp --dport {number(source, 1, 65535, 'a port')} --syn -j DROP"]
    elif source:
        other = _other(spark, source)
        addresses = [str(_address(other, function).ip) for function in _cabled(other)]
        rules = [f"-s {address} -p {kind} -j DROP" for address in addresses for kind in ("tcp", "udp")]
    changes = [f"-N {CHAIN}", f"-A INPUT -j {CHAIN}", *(f"-A {CHAIN} {rule}" for rule in ("-i lo -j ACCEPT", *rules))]
    lines = [FIREWALL_OFF, "set -e", *(f"{IPTABLES} {change}" for change in changes)]
    lines.append(f"sed -i 's/^ENABLED=.*/ENABLED=yes/' {UFW_CONF}")
    return command(spark, ["sh", "-c", "\n".join(lines)], ["sh", "-c", FIREWALL_OFF])


def _silence(spark: Spark, seconds: str = "") -> Steps:
    """Drop every packet between the Spark and the machine, where the operator is; other Sparks can reach it."""
    change, back = (
        ["sh", "-c", script, "sh", spark.state.gateway, spark.spec.management] for script in (SILENCE, SILENCE_OFF)
    )
    steps = until(spark, seconds, back)
    spark.run(change)
    return steps


def _flip_byte(spark: Spark, which: str) -> Steps:
    """Redirect connections to the Spark's rails through a proxy that changes bytes that the Spark sends."""
    devices, text = _devices(spark), which.removeprefix("every-")
    at = number(text, 0 if text == which else 1, 1 << 50, "a byte offset")
    name = f"flip-byte-{uuid.uuid4().hex}"
    source = Path(__file__).with_name("flip_byte.py").read_text()
    port = spark.run(["python3", "-c", source, name, str(at), "once" if text == which else "every"]).stdout.strip()
    put, away = (
        [
            f"{IPTABLES} -t nat {flag} PREROUTING -i {device} -p tcp ! --dport 22 -j REDIRECT --to-ports {port}"
            for device in devices
        ]
        for flag in ("-I", "-D")
    )
    away.append(f"pkill -KILL -f '{name} [0-9]' || true")
    back = "\n".join(away)
    return command(spark, ["sh", "-c", f"{' && '.join(put)} || {{\n{back}\nexit 1\n}}"], ["sh", "-c", back])


FAULTS: dict[str, Fault] = {
    "cable-out": Fault("[p0|p1]", _cable_out),
    "mtu": Fault("N", _mtu),
    "path-mtu": Fault("N", _path_mtu),
    "gid-missing": Fault("[HCA]", _gid_missing, simulated=True),
    "slow-link": Fault("RATE", _slow),
    "speed": Fault("MBPS", _speed, simulated=True),
    "twin-down": Fault(None, _twin_down),
    "twin-subnet": Fault(None, _twin_subnet),
    "no-address": Fault(None, lambda spark: _readdress(spark, _cabled(spark)[1], None)),
    "duplicate-address": Fault("[SPARK]", _duplicate_address),
    "firewall": Fault("[PORT|SPARK]", _firewall),
    "silence": Fault("[SECONDS]", _silence),
    "flip-byte": Fault("N|every-N", _flip_byte),
}
"""Faults of the network, by kind."""
