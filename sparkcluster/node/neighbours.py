"""Finds machines that answer on the QSFP ports of this node.

A port without an IPv4 address has the link-local IPv6 address from the kernel; a configured port has only an IPv4
address.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterable
from typing import Any

from sparkcluster.node.machine import LIMIT_S, Machine, Readings

DRIVER = "mlx5_core"  # driver of ConnectX-7
_ALL_NODES = "ff02::1"  # RFC 4291, 2.7.1
_DISCARD = 9  # the receiver discards datagrams to this port, RFC 863
_BIND_TO_DEVICE = 25  # SO_BINDTODEVICE in asm-generic/socket.h
_ANSWER_S = 0.25  # an answer on a link takes less than 1 ms
_ANSWERED = {"REACHABLE", "STALE", "DELAY", "PROBE"}


def neighbours(
    machine: Machine, interfaces: list[dict[str, Any]], look_for: Iterable[str] = ()
) -> list[dict[str, str]]:
    """Machines that answer on ConnectX-7 interfaces with a carrier: interface, mac and address.

    Args:
        machine: this node.
        interfaces: result of ``network.interfaces``.
        look_for: IPv4 addresses of other nodes that may be at the other end.
    """
    names = [each["name"] for each in _cabled(interfaces)]
    own = {each["mac"].lower() for each in interfaces}
    if not names:
        return []
    began = time.monotonic()
    answers = Readings(LIMIT_S)
    # A configured port has no IPv6 address; a ping from it would wait a second in vain. A single ping, since iputils
    # waits a second before the next; it ends with the first answer, often this node's own, but the kernel still
    # records later ones.
    pinged = having_ipv6(machine).intersection(names)
    for name in pinged:
        argv = ["ping", "-6", "-n", "-q", "-c", "1", "-W", "1", "%s%%%s" % (_ALL_NODES, name)]
        answers.start(name, lambda argv=argv: machine.run(argv))  # type: ignore[misc]
    asked = list(look_for)
    for name in names:
        resolve(name, asked)
    for name in pinged:
        answers.value(name)
    if asked or pinged:
        time.sleep(max(0.0, began + _ANSWER_S - time.monotonic()))
    found: dict[tuple[str, str], dict[str, str]] = {}
    for each in table(machine):
        key = each["interface"], each["mac"]
        # an IPv4 address is more useful than the IPv6 address that the kernel derived from the MAC address
        if each["interface"] in names and each["mac"] not in own and (key not in found or "." in each["address"]):
            found[key] = each
    return list(found.values())


def unaddressed(machine: Machine, interfaces: list[dict[str, Any]]) -> list[str]:
    """ConnectX-7 interfaces with a carrier but no address; they cannot find neighbours."""
    having = having_ipv6(machine)
    return [each["name"] for each in _cabled(interfaces) if not each["addresses"] and each["name"] not in having]


def _cabled(interfaces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in interfaces if each["driver"] == DRIVER and each["carrier"]]


def having_ipv6(machine: Machine) -> set[str]:
    """Interfaces with an IPv6 address: the last field of each line."""
    return {line.split()[-1] for line in machine.text("/proc/net/if_inet6", "").splitlines()}


def resolve(interface: str, addresses: Iterable[str]) -> None:
    """Make the kernel send ARP requests for IPv4 ``addresses`` on ``interface``; needs neither address nor route.

    Sends an empty datagram to each. Binding to an interface needs no privilege since Linux 5.7.
    """
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as sender:
        sender.setsockopt(socket.SOL_SOCKET, _BIND_TO_DEVICE, interface.encode())
        for address in addresses:
            with contextlib.suppress(OSError):
                sender.sendto(b"", (address, _DISCARD))


def table(machine: Machine) -> list[dict[str, str]]:
    """Entries of the kernel's neighbour table, IPv4 and IPv6, that have answered.

    The complete table is read: for a single interface, iproute2 6.1 omits the interface's name.
    """
    return [
        {"interface": each["dev"], "mac": each["lladdr"].lower(), "address": each["dst"]}
        for each in json.loads(machine.run(["ip", "-j", "neigh", "show"])[1])
        if each.get("lladdr") and _ANSWERED.intersection(each["state"])
    ]
