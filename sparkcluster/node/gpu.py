"""GPU and driver, from nvidia-smi, the kernel and its modules."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any

from sparkcluster.node.machine import Machine, Unreadable, failed

_FIGURE = r"\d{1,18}(\.\d{1,18})?"
# By fact: the field of nvidia-smi, and what a value looks like; any other, such as [N/A], is None.
_FIELDS = {
    "name": ("name", ".*"),
    "compute_capability": ("compute_cap", r"\d+\.\d+"),
    "driver_version": ("driver_version", r"\d+\.\d.*"),
    "memory_total_bytes": ("memory.total", _FIGURE),
    "power_w": ("power.draw", _FIGURE),
    "sm_clock_mhz": ("clocks.sm", _FIGURE),
    "utilization_percent": ("utilization.gpu", _FIGURE),
    "temperature_c": ("temperature.gpu", _FIGURE),
    "vbios": ("vbios_version", r"[0-9A-F]{2}(\.[0-9A-F]{2})+"),
}
# Not every driver of a GB10 supports these, and what it refuses must not cost the others.
_OPTIONAL = ("temperature_c", "vbios")
# CUDA version of each driver branch, from NVIDIA's release notes of CUDA 13.0 and 13.1.
_CUDA = {"580": "13.0", "590": "13.1"}
_REFUSED = "not a valid field"  # nvidia-smi: Field "x" is not a valid field to query.
_MIB = 1024 * 1024
# Below /lib/modules/KERNEL: of DKMS, of linux-modules-nvidia-* of Ubuntu, of others.
_MODULE_DIRS = ("updates/dkms", "updates", "extra", "kernel/drivers/video", "kernel/drivers/video/nvidia")
_SECTION_BYTES = 1 << 22  # nvidia.ko has some 50 sections, its .modinfo a few KB
_MODULE_FILES = ("nvidia.ko", "nvidia.ko.zst", "nvidia.ko.xz", "nvidia.ko.gz")


def query(machine: Machine, facts: Iterable[str]) -> list[dict[str, Any]]:
    """These facts of every GPU, from nvidia-smi.

    Raises:
        Unreadable: it is not installed, did not answer, or failed, with its first line.
    """
    names = list(facts)
    fields = ",".join(_FIELDS[name][0] for name in names)
    exit_code, output = machine.run(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"])
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if exit_code:
        raise failed("nvidia-smi", exit_code, output, 0)
    rows = [[field.strip() for field in line.split(",")] for line in lines]
    if not rows or any(len(row) != len(names) for row in rows):
        raise Unreadable("nvidia-smi: %s" % (lines or ["no output"])[0])
    return [{name: _value(name, row[at]) for at, name in enumerate(names)} for row in rows]


def gpus(machine: Machine) -> list[dict[str, Any]]:
    """All facts of every GPU, with the version of the driver; Unreadable as in ``query``."""
    try:
        return query(machine, _FIELDS)
    except Unreadable as error:
        if _REFUSED not in str(error):
            raise
    found = query(machine, [name for name in _FIELDS if name not in _OPTIONAL])
    return [dict(each, **dict.fromkeys(_OPTIONAL)) for each in found]


def driver(module: Any, listed: Any) -> Any:
    """Version of the loaded module; that of nvidia-smi, which is taken out of ``listed``, if the kernel has no file.

    Both are readings: a value, or ``{"unread": "why"}``.
    """
    versions = [each.pop("driver_version") for each in listed] if isinstance(listed, list) else []
    if isinstance(module, str):
        return module
    if not versions:
        return {"unread": "%s; %s" % (module["unread"], listed["unread"])}
    return versions[0] or module


def cuda(machine: Machine, driver_version: Any) -> str:
    """CUDA version of the loaded driver, for a branch in ``_CUDA`` without a process; else of the host's toolkit."""
    branch = driver_version.partition(".")[0] if isinstance(driver_version, str) else ""
    if branch in _CUDA:
        return _CUDA[branch]
    try:
        # newer drivers print "CUDA UMD Version"
        found = re.search(r"CUDA(?: \w+)? Version\s*:\s*(\d+\.\d+)", machine.run(["nvidia-smi"])[1], re.ASCII)
    except Unreadable:
        found = None
    if found:
        return found.group(1)
    try:
        version = machine.document("/usr/local/cuda/version.json")["cuda"]["version"]
        return ".".join(str(version).split(".")[:2])
    except (Unreadable, KeyError, TypeError):
        raise Unreadable("no version in nvidia-smi or /usr/local/cuda/version.json") from None


def loaded(text: str) -> str:
    """Driver version in ``/proc/driver/nvidia/version``."""
    found = re.search(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)\b", text, re.MULTILINE)
    if not found:
        raise Unreadable("no version: /proc/driver/nvidia/version")
    return found.group(1)


def module(machine: Machine, kernel: str) -> str | None:
    """Version of the nvidia module on disk for ``kernel``, ``present`` if it has none, None without a module.

    Raises:
        Unreadable: there are no modules for this kernel, as in a container.
    """
    top = "/lib/modules/%s" % kernel
    if not machine.is_dir(top):
        raise Unreadable("no such directory: %s" % top)
    packaged = ["kernel/" + name for name in machine.names(top + "/kernel") if name.startswith("nvidia")]
    for folder in [*_MODULE_DIRS, *packaged]:
        for name in _MODULE_FILES:
            path = "%s/%s/%s" % (top, folder, name)
            if machine.exists(path):
                return _version(machine, path)
    return None


def _value(name: str, field: str) -> Any:
    """The value in a field of nvidia-smi, or None."""
    pattern = _FIELDS[name][1]
    if not re.match("^(?:%s)$" % pattern, field, re.ASCII):
        return None
    if pattern != _FIGURE:
        return field
    return int(float(field)) * _MIB if name == "memory_total_bytes" else float(field)


def _version(machine: Machine, path: str) -> str:
    """The version in the module's .modinfo, or from modinfo if the file is compressed."""
    version = _modinfo_version(machine, path)
    if version is None:
        try:
            exit_code, output = machine.run(["modinfo", "-F", "version", machine.at(path)])
        except Unreadable:
            return "present"
        version = "" if exit_code else output.strip()
    return version if re.match(r"^\d{3,}\.[\d.]+$", version, re.ASCII) else "present"


def _modinfo_version(machine: Machine, path: str) -> str | None:
    """``version`` in section .modinfo of an ELF file (elf(5), 64 bit, little endian); None if there is none."""
    try:
        with open(machine.at(path), "rb") as file:

            def part(offset: int, size: int) -> bytes:
                file.seek(offset)
                return file.read(min(size, _SECTION_BYTES))

            head = part(0, 64)
            if head[:6] != b"\x7fELF\2\1":
                return None
            table = struct.unpack_from("<Q", head, 40)[0]
            count, names_at = struct.unpack_from("<HH", head, 60)
            headers = part(table, 64 * count)
            # name, type, flags, address, offset, size
            sections = [struct.unpack_from("<IIQQQQ", headers, 64 * number) for number in range(count)]
            names = part(*sections[names_at][4:])
            for name, _, _, _, offset, size in sections:
                if names[name:].startswith(b".modinfo\0"):
                    found = re.search(rb"(?:^|\0)version=([^\0]*)", part(offset, size))
                    return found.group(1).decode("ascii", "replace") if found else None
    except (OSError, OverflowError, ValueError, IndexError, struct.error):
        pass
    return None
