"""GPU and driver, from nvidia-smi, the kernel and its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sparkcluster.node.machine import Machine, Unreadable, failed

_FIGURE = r"\d{1,18}(\.\d{1,18})?"
# By fact: the field of nvidia-smi, and what a value looks like; any other, such as [N/A], is None.
_FIELDS = {
    "name": ("name", ".*"),
    "compute_capability": ("compute_cap", r"\d+\.\d+"),
    "driver_version": ("driver_version", r"\d+\.\d.*"),
    "power_w": ("power.draw", _FIGURE),
    "sm_clock_mhz": ("clocks.sm", _FIGURE),
    "utilization_percent": ("utilization.gpu", _FIGURE),
    "vbios": ("vbios_version", r"[0-9A-F]{2}(\.[0-9A-F]{2})+"),
}
SAMPLED = ("utilization_percent", "power_w", "sm_clock_mhz")
_OPTIONAL = "vbios"  # not every driver of a GB10 supports it, and what it refuses must not cost the others
_REFUSED = "not a valid field"  # nvidia-smi: Field "x" is not a valid field to query.
_VERSION = r"\d{3,}\.\d+(?:\.\d+)*"


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
    return [{**each, _OPTIONAL: None} for each in query(machine, [name for name in _FIELDS if name != _OPTIONAL])]


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


def loaded(text: str) -> str:
    """Driver version in ``/proc/driver/nvidia/version``."""
    found = re.search(r"^NVRM version:.*?\s(%s)\b" % _VERSION, text, re.MULTILINE)
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
    exit_code, output = machine.run(["modinfo", "-F", "version", "-k", kernel, "nvidia"])
    if exit_code:
        return None
    return output.strip() if re.fullmatch(_VERSION, output.strip(), re.ASCII) else "present"


def _value(name: str, field: str) -> Any:
    """The value in a field of nvidia-smi, or None."""
    pattern = _FIELDS[name][1]
    if not re.fullmatch(pattern, field, re.ASCII):
        return None
    return float(field) if pattern == _FIGURE else field
