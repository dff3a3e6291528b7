"""GPU and driver, from nvidia-smi, the kernel and its modules."""

from __future__ import annotations

import re
import struct
from typing import Any, Dict, List, Optional

from sparkcluster.node.machine import Machine, Unreadable

# Every driver of a GB10 supports these; a field that an older or newer one refuses must not cost the others.
_FIELDS = ("name", "compute_cap", "driver_version", "memory.total", "power.draw", "clocks.sm", "utilization.gpu")
_MORE = ("temperature.gpu", "vbios_version")
# CUDA version of each driver branch, from NVIDIA's release notes of CUDA 13.0 and 13.1.
_CUDA = {"580": "13.0", "590": "13.1"}
_REFUSED = "not a valid field"  # nvidia-smi: Field "x" is not a valid field to query.
_MIB = 1024 * 1024
# Below /lib/modules/KERNEL: of DKMS, of linux-modules-nvidia-* of Ubuntu, of others.
_MODULE_DIRS = ("updates/dkms", "updates", "extra", "kernel/drivers/video", "kernel/drivers/video/nvidia")
_SECTION_BYTES = 1 << 22  # nvidia.ko has some 50 sections, its .modinfo a few KB
_MODULE_FILES = ("nvidia.ko", "nvidia.ko.zst", "nvidia.ko.xz", "nvidia.ko.gz")


def smi(machine: Machine) -> Any:
    """Exit code and output of one nvidia-smi query, or of a second if a field was refused.

    Raises:
        Unreadable: it is not installed or did not answer.
    """
    exit_code, output = machine.run(_query(_FIELDS + _MORE))
    if exit_code and _REFUSED in output:
        return machine.run(_query(_FIELDS))
    return exit_code, output


def gpus(answer: Any) -> List[Dict[str, Any]]:
    """GPUs listed by nvidia-smi; ``[N/A]`` and ``[Not Supported]`` are None."""
    found = []
    for fields in _rows(answer):
        memory = figure(fields[3])
        vbios = fields[8] if len(fields) > 8 else ""
        found.append(
            {
                "name": fields[0],
                "compute_capability": fields[1] if re.match(r"^\d+\.\d+$", fields[1]) else None,
                "memory_total_bytes": None if memory is None else int(memory) * _MIB,
                "power_w": figure(fields[4]),
                "sm_clock_mhz": figure(fields[5]),
                "utilization_percent": figure(fields[6]),
                "temperature_c": figure(fields[7]) if len(fields) > 7 else None,
                "vbios": vbios if re.match(r"^[0-9A-F]{2}(\.[0-9A-F]{2})+$", vbios) else None,
            }
        )
    return found


def driver(module: Any, answer: Any) -> Any:
    """Version of the loaded module; that of nvidia-smi if the kernel's file does not exist."""
    if isinstance(module, str):
        return module
    try:
        version = _rows(answer)[0][2]
    except Unreadable as error:
        return {"unread": "%s; %s" % (module["unread"], error)}
    return version if re.match(r"^\d+\.\d", version) else module


def cuda(machine: Machine, driver_version: Any) -> str:
    """CUDA version of the driver, else of the toolkit on the host.

    Args:
        machine: the node.
        driver_version: of the loaded driver; for a branch in ``_CUDA`` no process is needed.
    """
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


def module(machine: Machine, kernel: str) -> Optional[str]:
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


def figure(text: str) -> Optional[float]:
    """The number in a field of nvidia-smi, or None."""
    return float(text) if re.match(r"^\d{1,18}(\.\d{1,18})?$", text, re.ASCII) else None


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


def _modinfo_version(machine: Machine, path: str) -> Optional[str]:
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


def _query(fields: Any) -> List[str]:
    return ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]


def _rows(answer: Any) -> List[List[str]]:
    """Rows of the output of nvidia-smi.

    Raises:
        Unreadable: with its exit code and first line.
    """
    if not isinstance(answer, tuple):
        raise Unreadable(answer["unread"])
    exit_code, output = answer
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if exit_code:
        raise Unreadable("nvidia-smi exit %d: %s" % (exit_code, lines[0] if lines else "no output"))
    rows = [[field.strip() for field in line.split(",")] for line in lines]
    if not rows or any(len(row) not in (len(_FIELDS), len(_FIELDS + _MORE)) for row in rows):
        raise Unreadable("nvidia-smi: %s" % (lines[0] if lines else "no output"))
    return rows
