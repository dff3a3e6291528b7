"""Which machines answer on the QSFP ports of this node.

A port without IPv4 address has the link-local IPv6 address that the kernel gives it; one that was set up has an IPv4
address and no other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterable
from typing import Any

from sparkcluster.node.machine import LIMIT_S, Machine
from sparkcluster.node.readings import Readings

DRIVER = "mlx5_core"  # of a ConnectX-7
_ALL_NODES = "ff02::1"  # RFC 4291, 2.7.1
_DISCARD = 9  # a datagram to this port is thrown away where it arrives, RFC 863
_BIND_TO_DEVICE = 25  # SO_BINDTODEVICE in asm-generic/socket.h
_ANSWER_S = 0.25  # for an answer on one link, which takes less than 1 ms
_ANSWERED = ("REACHABLE", "STALE", "DELAY", "PROBE")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII)
_LLDP_SOCKETS = ("/run/lldpd.socket", "/var/run/lldpd.socket")
_MOST = 256  # of one interface: 32 Sparks with two ports of two twins are 128
_MOST_ASKED = 256


def neighbours(
    machine: Machine, interfaces: list[dict[str, Any]], look_for: Iterable[str] = ()
) -> list[dict[str, str | None]]:
    """Who answers on the interfaces of ConnectX-7 that have a carrier: interface, mac, address and name.

    Args:
        machine: this node.
        interfaces: what ``network.interfaces`` found.
        look_for: IPv4 addresses of other nodes that may be at the other end.
    """
    names = [each["name"] for each in _cabled(interfaces)]
    own = {each["mac"].lower() for each in interfaces}
    if not names:
        return []
    began = time.monotonic()
    answers = Readings(LIMIT_S)
    # One that was set up has no such address, and a ping from it waits a second for nothing. There is one ping, since
    # iputils leaves a second before the next; it ends with the first answer, often its own, and others come meanwhile.
    pinged = names_with_ipv6(machine, names)
    for name in pinged:
        argv = ["ping", "-6", "-n", "-q", "-c", "1", "-W", "1", "%s%%%s" % (_ALL_NODES, name)]
        answers.start(name, lambda argv=argv: machine.run(argv))  # type: ignore[misc]
    answers.start("lldp", lambda: lldp(machine))
    asked = list(look_for)[:_MOST_ASKED]
    for name in names:
        resolve(name, asked)
    for name in names:
        answers.value(name)  # None for one without
    if asked or pinged:
        time.sleep(max(0.0, began + _ANSWER_S - time.monotonic()))
    found: dict[tuple[str, str], dict[str, str | None]] = {}
    count = dict.fromkeys(names, 0)
    named = answers.value("lldp")
    for each in [*table(machine), *(named if isinstance(named, list) else [])]:
        interface, mac = str(each["interface"]), str(each["mac"])
        if interface not in count or mac in own:
            continue
        known = found.get((interface, mac))
        if known is None:
            count[interface] += 1
            if count[interface] <= _MOST:
                found[interface, mac] = each
        else:
            # An IPv4 address says more than the IPv6 address that the kernel derived from the hardware address.
            if each["address"] and ("." in each["address"] or not known["address"]):
                known["address"] = each["address"]
            known["name"] = known["name"] or each["name"]
    return list(found.values())


def unaddressed(machine: Machine, interfaces: list[dict[str, Any]]) -> list[str]:
    """Interfaces of ConnectX-7 that have a carrier and no address, without which they find no neighbour."""
    names = [each["name"] for each in _cabled(interfaces) if not each["addresses"]]
    having = names_with_ipv6(machine, names)
    return [name for name in names if name not in having]


def _cabled(interfaces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in interfaces if each["driver"] == DRIVER and each["carrier"]]


def names_with_ipv6(machine: Machine, names: list[str]) -> list[str]:
    """Those of ``names`` that have an IPv6 address; its interface is the last field of a line."""
    lines = machine.text("/proc/net/if_inet6", "").splitlines()
    having = {line.split()[-1] for line in lines if line.strip()}
    return [name for name in names if name in having]


def resolve(interface: str, addresses: Iterable[str]) -> None:
    """Let the kernel ask by ARP who has IPv4 ``addresses`` on ``interface``, which needs neither address nor route.

    What is sent is one empty datagram to each. Binding to an interface needs no privilege since Linux 5.7.
    """
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as sender:
        sender.setsockopt(socket.SOL_SOCKET, _BIND_TO_DEVICE, interface.encode())
        for address in addresses:
            with contextlib.suppress(OSError):
                sender.sendto(b"", (address, _DISCARD))


def table(machine: Machine) -> list[dict[str, str | None]]:
    """The kernel's table of neighbours, IPv4 and IPv6, of those that answered.

    It is read whole, since iproute2 6.1 leaves the interface out where it is asked for that of one.
    """
    exit_code, output = machine.run(["ip", "-j", "neigh", "show"])
    try:
        entries = json.loads(output) if exit_code == 0 and output.strip() else []
    except (ValueError, RecursionError):
        entries = []
    found = []
    for entry in entries if isinstance(entries, list) else []:
        states = entry.get("state") if isinstance(entry, dict) else None
        if not isinstance(states, list) or not any(each in _ANSWERED for each in states):
            continue
        interface, mac, address = entry.get("dev"), str(entry.get("lladdr")).lower(), entry.get("dst")
        if isinstance(interface, str) and _MAC.fullmatch(mac):
            found.append(_neighbour(interface, mac, address))
    return found


def lldp(machine: Machine) -> list[dict[str, str | None]]:
    """What lldpd heard, if this user may ask it: switches have no other name here."""
    if not any(os.access(machine.at(path), os.R_OK | os.W_OK) for path in _LLDP_SOCKETS):
        return []
    exit_code, output = machine.run(["lldpcli", "-f", "json0", "show", "neighbors"])
    return lldp_neighbours(output) if exit_code == 0 else []


def lldp_neighbours(output: str) -> list[dict[str, str | None]]:
    """Neighbours in the output of ``lldpcli -f json0 show neighbors``: all of its values are lists."""
    try:
        document = json.loads(output)
    except (ValueError, RecursionError):
        return []
    found = []
    for heard in _each(_each([document], "lldp"), "interface"):
        chassis, interface = _each([heard], "chassis"), heard.get("name")
        name = next((each["value"] for each in _each(chassis, "name") if isinstance(each.get("value"), str)), None)
        # the port's hardware address is that of its interface; a switch may have one for all of its ports
        for each in [*_each(_each([heard], "port"), "id"), *_each(chassis, "id")]:
            mac = str(each.get("value")).lower()
            if each.get("type") == "mac" and _MAC.fullmatch(mac) and isinstance(interface, str):
                found.append(_neighbour(interface, mac, None, name))
                break
    return found


def _each(parents: list[Any], key: str) -> list[dict[str, Any]]:
    """The objects in the lists that ``parents`` have as ``key``."""
    lists = [parent.get(key) for parent in parents if isinstance(parent, dict)]
    return [each for found in lists if isinstance(found, list) for each in found if isinstance(each, dict)]


def _neighbour(interface: str, mac: str, address: Any, name: str | None = None) -> dict[str, str | None]:
    address = address[:64] if isinstance(address, str) else None
    return {"interface": interface, "mac": mac, "address": address, "name": name and name[:255]}
