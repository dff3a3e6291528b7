"""The simulated hardware of this Spark, and the real state of its network."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from typing import Any

DIRECTORY = "/run/gb10"
HARDWARE = DIRECTORY + "/hardware.json"


def load() -> dict[str, Any]:
    """The simulated hardware, from the lab's file, which faults change."""
    with open(HARDWARE) as file:
        found: dict[str, Any] = json.load(file)
    return found


def links() -> dict[str, Any]:
    """Live links by name: ``up`` (has a carrier), ``mtu``, and ``ipv4``, the addresses."""
    text = subprocess.run(["/usr/sbin/ip", "-j", "addr"], stdout=subprocess.PIPE, check=True).stdout
    found = {}
    for entry in json.loads(text.decode() or "[]"):
        if not entry.get("ifname"):
            continue
        addresses = entry.get("addr_info", [])
        found[entry["ifname"]] = {
            "up": "LOWER_UP" in entry.get("flags", []),
            "mtu": entry.get("mtu", 1500),
            "ipv4": [a["local"] for a in addresses if a.get("family") == "inet"],
        }
    return found


DARK = {"up": False, "mtu": 1500, "ipv4": []}


def functions(hca: str | None = None) -> list[Any]:
    """Every PCI function of the ConnectX-7, or of one HCA, with its live ``link``; empty if no cable is plugged in.

    Without a cable the ConnectX-7 disappears from PCI (NVIDIA's dgx-spark-mlnx-hotplug).
    """
    live = links()
    return [dict(f, link=live.get(f["netdev"], DARK)) for f in load()["functions"] if hca in (None, f["hca"])]


def rdma_mtu(function: dict[str, Any]) -> int:
    """Largest RDMA MTU in bytes that fits into the frames of the link."""
    mtu = function["link"]["mtu"]
    return 4096 if mtu >= 4200 else 2048 if mtu >= 2200 else 1024


def colons(packed: bytes) -> str:
    """A GID in sysfs format: eight full groups."""
    text = packed.hex()
    return ":".join(text[start : start + 4] for start in range(0, 32, 4))


def mac_gid(mac: str) -> str:
    """Link-local GID derived from a MAC address (EUI-64)."""
    octets = [int(part, 16) for part in mac.split(":")]
    eui = [octets[0] ^ 2, octets[1], octets[2], 0xFF, 0xFE, octets[3], octets[4], octets[5]]
    return colons(bytes([0xFE, 0x80, 0, 0, 0, 0, 0, 0, *eui]))


def privacy_gid(mac: str) -> str:
    """A stable-privacy link-local GID: the same on every boot, but not derived from the MAC address."""
    return colons(bytes([0xFE, 0x80, 0, 0, 0, 0, 0, 0]) + hashlib.sha256(mac.encode()).digest()[:8])


def ipv4_gid(address: str) -> str:
    """IPv4-mapped GID."""
    return colons(bytes(10) + b"\xff\xff" + socket.inet_aton(address))


def gid_table(function: dict[str, Any]) -> dict[int, tuple[str, int, str]]:
    """GID entries of an HCA: index to (gid, RoCE version, IPv4 address or empty).

    A port without a carrier has only the entries of its MAC address; with a carrier also those of its live addresses,
    at the indices of the table's layout. A second address gets the next free indices.
    """
    link = function["link"]
    table: dict[int, tuple[str, int, str]] = {}
    rows = {int(index): row.split() for index, row in function["gids"].items()}
    for index, (kind, version) in rows.items():
        if kind == "mac" or link["up"]:
            gid, address = _gid(kind, function["mac"], link["ipv4"])
            if gid:
                table[index] = (gid, int(version[1:]), address)
    if link["up"] and any(kind == "ipv4" for kind, _ in rows.values()):
        free = max(table, default=-1) + 1
        for offset, address in enumerate(link["ipv4"][1:]):
            for version in (1, 2):
                table[free + 2 * offset + version - 1] = (ipv4_gid(address), version, address)
    return table


def _gid(kind: str, mac: str, ipv4: list[str]) -> tuple[str, str]:
    """GID and IPv4 address of a row; both empty if the port has no such address."""
    if kind == "mac":
        return mac_gid(mac), ""
    if kind == "privacy":
        return privacy_gid(mac), ""
    if kind == "ipv4":
        return (ipv4_gid(ipv4[0]), ipv4[0]) if ipv4 else ("", "")
    if ":" in kind:
        return colons(socket.inet_pton(socket.AF_INET6, kind)), ""
    return ipv4_gid(kind), kind


def is_root() -> bool:
    """Whether this process runs as root."""
    return os.geteuid() == 0


def refuse(message: str, code: int = 1) -> int:
    """Print a tool's error; return the exit status."""
    sys.stderr.write(message + "\n")
    return code


def replace(path: str, text: str) -> None:
    """Replace a file atomically."""
    fresh = "%s.%d.new" % (path, os.getpid())
    with open(fresh, "w") as file:
        file.write(text)
    os.rename(fresh, path)
