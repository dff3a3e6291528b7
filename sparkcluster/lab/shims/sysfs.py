"""Updates /sys/class/infiniband and similar files from the Spark's live links and addresses."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from . import hardware

TREE = hardware.DIRECTORY + "/infiniband"
NET = hardware.DIRECTORY + "/net"
MODULES = "/usr/lib/modules"
GID_COUNT = 256
"""Entries of a ConnectX-7's GID table."""

EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
REFUSES = "/sys/class/net/lo/speed"
"""A real sysfs file that fails with EINVAL on read, like the type of an empty slot."""

USED = {
    "/sys/fs/cgroup/memory.stat": ("anon", "shmem"),
    "/sys/fs/cgroup/memory/memory.stat": ("total_rss", "total_shmem"),
}
"""Memory that cannot be reclaimed, in the statistics of a Spark's control group: version 2, and version 1."""

VERSION_NAMES = {1: "IB/RoCE v1", 2: "RoCE v2"}


def sync() -> None:
    """Update every outdated file of the simulated hardware."""
    facts = hardware.load()
    functions = hardware.functions()
    present = set()
    for function in functions:
        present.add(function["hca"])
        _hca(facts, function)
        _netdev(function)
    for name in os.listdir(TREE) if os.path.isdir(TREE) else []:
        if name not in present:
            shutil.rmtree(os.path.join(TREE, name))
    if facts["driver"] == "none":
        _unlink("/proc/driver/nvidia/version")
    else:
        _write("/proc/driver/nvidia/version", _driver(facts))
    _module(facts)
    sync_memory()
    write_in_place("/proc/sys/kernel/osrelease", facts["kernel"] + "\n")


def sync_memory() -> None:
    """Update /proc/meminfo."""
    write_in_place("/proc/meminfo", meminfo(hardware.load(), used_kb()))


def show_gids(args: list[str]) -> int:
    """Print the GID tables; the IPv4 column is blank if there is no address, as in NVIDIA's script."""
    sys.stdout.write("DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n")
    sys.stdout.write("---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n")
    count = 0
    for function in hardware.functions(*args[:1]):
        for index, (gid, version, address) in sorted(hardware.gid_table(function).items()):
            row = (function["hca"], 1, index, gid, "%-15s" % address, "v%d" % version, function["netdev"])
            sys.stdout.write("%s\t%d\t%d\t%s\t%s\t%s\t%s\n" % row)
            count += 1
    sys.stdout.write("n_gids_found=%d\n" % count)
    return 0


def _hca(facts: dict[str, Any], function: dict[str, Any]) -> None:
    root = os.path.join(TREE, function["hca"])
    up = function["link"]["up"]
    port = os.path.join(root, "ports/1")
    if not os.path.isdir(os.path.join(port, "gids")):
        for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "counters", "hw_counters"):
            os.makedirs(os.path.join(port, part))
        os.makedirs(os.path.join(root, "device/net", function["netdev"]))
        for index in range(GID_COUNT):
            _empty_slot(port, index)
        # RDMA counters follow the socket counters, since sockets carry what RDMA would.
        for name, sockets in (("port_xmit_data", "tx_bytes"), ("port_rcv_data", "rx_bytes")):
            _link("/sys/class/net/%s/statistics/%s" % (function["netdev"], sockets), "%s/counters/%s" % (port, name))
    attributes = (
        ("fw_ver", facts["firmware"]),
        ("ports/1/state", "4: ACTIVE" if up else "1: DOWN"),
        ("ports/1/phys_state", "5: LinkUp" if up else "3: Disabled"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/counters/link_downed", "0"),
        ("ports/1/hw_counters/out_of_sequence", "0"),
    )
    for name, value in attributes:
        _write(os.path.join(root, name), value + "\n")
    table = hardware.gid_table(function)
    for index in _occupied(port) - set(table):
        _empty_slot(port, index)
    for slot, (gid, version, _) in table.items():
        _write("%s/gids/%d" % (port, slot), gid + "\n")
        _write("%s/gid_attrs/types/%d" % (port, slot), VERSION_NAMES[version] + "\n")
        _write("%s/gid_attrs/ndevs/%d" % (port, slot), function["netdev"] + "\n")


def _occupied(port: str) -> set[int]:
    types = port + "/gid_attrs/types"
    # Another sync may be writing here: files that are not renamed yet have other names.
    slots = [name for name in os.listdir(types) if name.isdigit()]
    return {int(name) for name in slots if not os.path.islink(os.path.join(types, name))}


def _empty_slot(port: str, index: int) -> None:
    _write("%s/gids/%d" % (port, index), EMPTY_GID + "\n")
    for part in ("types", "ndevs"):
        _link(REFUSES, "%s/gid_attrs/%s/%d" % (port, part, index))


def _netdev(function: dict[str, Any]) -> None:
    speed = str(function["speed_mbps"]) if function["link"]["up"] else "-1"
    os.makedirs(os.path.join(NET, function["netdev"]), exist_ok=True)
    _write(os.path.join(NET, function["netdev"], "speed"), speed + "\n")


def _driver(facts: dict[str, Any]) -> str:
    return (
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  %s  Release Build  (dvs-builder)\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n" % facts["driver"]
    )


def _module(facts: dict[str, Any]) -> None:
    """Write or remove the driver's module for the running kernel, at the path used by its packages."""
    root = os.path.join(MODULES, facts["kernel"])
    file = os.path.join(root, "kernel/nvidia-580-open/nvidia.ko")
    if facts["module"]:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        version = facts["module"] if isinstance(facts["module"], str) else facts["driver"]
        # A driver that is not loaded leaves the file of the previous driver in place.
        if version != "none" or not os.path.exists(file):
            fields = ("version=" + version, "supported=external", "license=Dual MIT/GPL", "name=nvidia")
            _write(file, "\n".join(fields) + "\n")
        _write(os.path.join(root, "modules.dep"), "kernel/nvidia-580-open/nvidia.ko:\n")
    else:
        _unlink(file)
        _write(os.path.join(root, "modules.dep"), "")


def used_kb() -> int:
    """Memory of all processes in this Spark's control group, including its containers; without page cache."""
    for path, names in USED.items():
        if os.path.exists(path):
            with open(path) as file:
                found = dict(line.split() for line in file)
            return sum(int(found[name]) for name in names) // 1024
    return 0


def meminfo(facts: dict[str, Any], used_kb: int) -> str:
    """/proc/meminfo of a Spark: sizes from the lab's spec minus memory used by its processes; all in kB."""
    memory = facts["memory"]
    cached = max(memory["available_kb"] - memory["free_kb"], 0)
    used_kb *= memory.get("scale", 1)
    rows = (
        ("MemTotal", memory["total_kb"]),
        ("MemFree", max(memory["free_kb"] - used_kb, 0)),
        ("MemAvailable", max(memory["available_kb"] - used_kb, 0)),
        ("Buffers", cached // 10),
        ("Cached", cached - cached // 10),
        ("SwapCached", 0),
        ("SwapTotal", 16777212),
        ("SwapFree", memory.get("swap_free_kb", 16777212)),
        ("AnonPages", used_kb),
        ("Shmem", 10240),
        ("CmaTotal", memory.get("cma_kb", 131072)),
        ("CmaFree", min(120000, memory.get("cma_kb", 120000))),
    )
    return "".join("%-15s %10d kB\n" % (name + ":", size_kb) for name, size_kb in rows)


def _write(path: str, text: str) -> None:
    """Replace a file atomically, unless it already has that text or its directory is missing."""
    try:
        if not os.path.islink(path):
            with open(path) as file:
                if file.read() == text:
                    return
    except OSError:
        pass
    try:
        hardware.replace(path, text)
    except OSError:
        if os.path.isdir(os.path.dirname(path)):
            raise


def _unlink(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def write_in_place(path: str, text: str) -> None:
    """Change a file that is bind-mounted over another; a new file would not be visible."""
    with open(path, "r+") as file:
        if file.read() != text:
            file.seek(0)
            file.write(text)
            file.truncate()


def _link(target: str, path: str) -> None:
    if os.path.islink(path):
        return
    fresh = "%s.%d" % (path, os.getpid())
    os.symlink(target, fresh)
    os.rename(fresh, path)
