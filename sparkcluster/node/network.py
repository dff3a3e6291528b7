"""The node's network: interfaces, HCAs with their GIDs, listening sockets, from /sys and /proc."""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import time
from collections.abc import Container
from typing import Any

from sparkcluster.node.machine import Machine
from sparkcluster.node.shared import HCA_ERRORS

_NET = "/sys/class/net"
_INFINIBAND = "/sys/class/infiniband"
_EMPTY_GIDS = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000")
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s, drivers/pci/probe.c
_LISTEN = "0A"  # TCP_LISTEN in linux's tcp_states.h
_ANY = ("0.0.0.0", "::")
# Address, port, user and inode of a listening socket.
Socket = tuple[str, int, int, str]
_PROCESS_SEARCH_S = 0.4  # finding a listener's process is optional, and a busy node has many descriptors


def interfaces(machine: Machine) -> list[dict[str, Any]]:
    """All interfaces except lo and the veth ends of containers."""
    addresses = machine.addresses()
    found = []
    for name in machine.names(_NET):
        here = "%s/%s/" % (_NET, name)
        mtu = machine.line(here + "mtu")
        if name == "lo" or name.startswith("veth") or mtu is None or not mtu.isdigit():
            continue
        speed = machine.line(here + "speed") or ""
        device = dict(line.split("=", 1) for line in machine.text(here + "device/uevent", "").splitlines())
        found.append(
            {
                "name": name,
                "mac": machine.line(here + "address") or "",
                "operstate": machine.line(here + "operstate") or "unknown",
                # reading the carrier of an interface that is down fails with EINVAL
                "carrier": machine.line(here + "carrier") == "1",
                "mtu": int(mtu),
                # -1 while the link is down; some drivers report 4294967295
                "speed_mbps": int(speed) if re.match(r"^[1-9]\d{0,8}$", speed, re.ASCII) else None,
                "addresses": addresses.get(name, []),
                "phys_port_name": machine.line(here + "phys_port_name"),
                "driver": device.get("DRIVER"),
                "pci": device.get("PCI_SLOT_NAME"),
                "wireless": machine.exists(here + "wireless") or machine.exists(here + "phy80211"),
            }
        )
    return found


def rdma_bytes(machine: Machine, counter: str) -> dict[str, int]:
    """Bytes since boot by HCA, from a ``counter`` of its port: ``port_xmit_data`` or ``port_rcv_data``."""
    found = {}
    for name in machine.names(_INFINIBAND):
        word = machine.line("%s/%s/ports/1/counters/%s" % (_INFINIBAND, name, counter)) or ""
        if word.isdigit():
            found[name] = 4 * int(word)  # in units of four octets (IBTA's PortXmitData, PortRcvData)
    return found


def errors(machine: Machine) -> dict[str, dict[str, int]]:
    """The ``HCA_ERRORS`` counters of each HCA's port."""
    found: dict[str, dict[str, int]] = {}
    for name, folder, counter in itertools.product(machine.names(_INFINIBAND), ("counters", "hw_counters"), HCA_ERRORS):
        word = machine.line("%s/%s/ports/1/%s/%s" % (_INFINIBAND, name, folder, counter)) or ""
        if word.isdigit():
            found.setdefault(name, {})[counter] = int(word)
    return found


def traffic(machine: Machine, counted: dict[str, dict[str, int]]) -> dict[str, dict[str, Any]]:
    """Bytes sent and received since boot by HCA, with its error counters in ``counted``."""
    sent, received = rdma_bytes(machine, "port_xmit_data"), rdma_bytes(machine, "port_rcv_data")
    return {
        name: {"sent_bytes": sent[name], "received_bytes": received[name], "errors": counted.get(name, {})}
        for name in sent
        if name in received
    }


def hcas(machine: Machine) -> list[dict[str, Any]]:
    """All RDMA devices, with port 1; empty without a cable, since a Spark then hides the card."""
    found = []
    for name in machine.names(_INFINIBAND):
        port = "%s/%s/ports/1/" % (_INFINIBAND, name)
        entries = gids(machine, port)
        names = machine.names("%s/%s/device/net" % (_INFINIBAND, name))
        netdevs = [entry["netdev"] for entry in entries if entry["netdev"]] or names
        found.append(
            {
                "name": name,
                "netdev": netdevs[0] if netdevs else None,
                "state": (machine.line(port + "state") or "UNKNOWN").rpartition(": ")[2],
                "phys_state": (machine.line(port + "phys_state") or "UNKNOWN").rpartition(": ")[2],
                "firmware": machine.line("%s/%s/fw_ver" % (_INFINIBAND, name)),
                "pcie": pcie(machine, "%s/%s/device/" % (_INFINIBAND, name)),
                "gids": entries,
            }
        )
    return found


def pcie(machine: Machine, device: str) -> str | None:
    """The negotiated PCIe link of a device, such as ``Gen5 x4``; None if the kernel does not report it."""
    generation = _GENERATIONS.get((machine.line(device + "current_link_speed") or "").partition(" ")[0])
    width = machine.line(device + "current_link_width") or ""
    return "Gen%d x%s" % (generation, width) if generation and re.match(r"^[1-9]\d?$", width, re.ASCII) else None


def gids(machine: Machine, port: str) -> list[dict[str, Any]]:
    """Non-empty entries of a port's GID table, by index.

    The complete table is read, since removed entries leave gaps.
    """
    found = []
    for index in sorted(map(int, machine.names(port + "gids"))):
        value = machine.line("%sgids/%d" % (port, index))
        if value is None or value in _EMPTY_GIDS:
            continue
        found.append(
            {
                "index": index,
                "value": value,
                "type": machine.line("%sgid_attrs/types/%d" % (port, index)),
                "netdev": machine.line("%sgid_attrs/ndevs/%d" % (port, index)),
            }
        )
    return found


def has_infiniband_devices(machine: Machine) -> bool:
    """Whether user space can open an HCA: ``/dev/infiniband/uverbsN``."""
    return any(name.startswith("uverbs") for name in machine.names("/dev/infiniband"))


def listeners(machine: Machine) -> list[dict[str, Any]]:
    """Listening TCP sockets, with the process if this user may see it."""
    found = listening(machine)
    sockets = {inode: {"address": address, "port": port, "process": None} for address, port, _, inode in found}
    # processes of other users are visible to root only
    searched = {inode for _, _, uid, inode in found if os.geteuid() in (0, uid)}
    for inode, process in _processes(machine, searched, _PROCESS_SEARCH_S).items():
        sockets[inode]["process"] = process
    return sorted(sockets.values(), key=lambda each: (each["port"], each["address"]))


def wildcards(machine: Machine, mark: str | None, allowed: Container[int]) -> dict[int, str]:
    """Ports, except ``allowed``, on which a rank listens on all addresses, each with its process.

    The rank's processes are those with ``mark`` in their environment; without a mark, all visible processes (in its
    container).
    """
    ports = {inode: port for address, port, _, inode in listening(machine) if address in _ANY and port not in allowed}
    return {ports[inode]: process for inode, process in _processes(machine, set(ports), 10, mark).items()}


def listening(machine: Machine) -> list[Socket]:
    """All listening TCP sockets, from /proc/net/tcp and tcp6; IPv4-mapped addresses as IPv4."""
    lines = machine.text("/proc/net/tcp").splitlines() + machine.text("/proc/net/tcp6", "").splitlines()
    rows = map(str.split, lines)
    return [(*endpoint(row[1]), int(row[7]), row[9]) for row in rows if row[3] == _LISTEN]


def endpoint(text: str) -> tuple[str, int]:
    """Address and port from ``0100007F:1F90``, the format of /proc/net/tcp; IPv4-mapped addresses as IPv4."""
    address, _, port = text.partition(":")
    words = struct.unpack(">%dL" % (len(address) // 8), bytes.fromhex(address))
    packed = struct.pack("=%dL" % len(words), *words)  # each word is in host byte order
    shown = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return shown.removeprefix("::ffff:"), int(port, 16)


def _processes(machine: Machine, inodes: set[str], limit_s: float, mark: str | None = None) -> dict[str, str]:
    """Process name of each socket, if visible to this user and, with ``mark``, if that is in its environment."""
    links = {"socket:[%s]" % inode: inode for inode in inodes}
    found: dict[str, str] = {}
    until = time.monotonic() + limit_s
    for pid in machine.names("/proc"):
        if len(found) == len(links) or time.monotonic() > until:
            break
        if not pid.isdigit() or (mark and mark not in machine.text("/proc/%s/environ" % pid, "").split("\0")):
            continue
        folder = machine.at("/proc/%s/fd" % pid) + "/"
        try:
            descriptors = os.listdir(folder)
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                inode = links.get(os.readlink(folder + descriptor))
            except OSError:
                continue
            if inode is not None and inode not in found:
                found[inode] = machine.line("/proc/%s/comm" % pid) or pid
    return found
