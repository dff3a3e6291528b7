"""GPU and driver, from nvidia-smi, the kernel and its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sparkcluster.node.machine import Machine, Unreadable, failed

# Fields of nvidia-smi by fact; ``throttle`` is a bit mask, clocksEventReasons in nvml.h.
_FIELDS = {
    "name": "name",
    "compute_capability": "compute_cap",
    "power_w": "power.draw",
    "sm_clock_mhz": "clocks.sm",
    "utilization_percent": "utilization.gpu",
    "vbios": "vbios_version",
    "temperature_c": "temperature.gpu",
    "throttle": "clocks_event_reasons.active",
}
SAMPLED = ("utilization_percent", "power_w", "sm_clock_mhz")
VITALS = (*SAMPLED, "temperature_c", "throttle")
_PROBED = ("name", "compute_capability", "power_w", "sm_clock_mhz", "utilization_percent", "vbios")


def query(facts: Iterable[str], *options: str) -> list[str]:
    """The command that prints these facts, a line for each GPU."""
    fields = ",".join(_FIELDS[name] for name in facts)
    return ["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits", *options]


def row(facts: Iterable[str], line: str) -> dict[str, Any]:
    """Parse a line of ``query``; ValueError if it is invalid."""
    return {name: _value(name, field) for name, field in zip(facts, line.strip().split(", "), strict=True)}


def gpus(machine: Machine, facts: Iterable[str] = _PROBED) -> list[dict[str, Any]]:
    """These facts of every GPU, from nvidia-smi; None for values reported as ``[N/A]``.

    Raises:
        Unreadable: it is not installed, did not answer, or failed; with the first line of its output.
    """
    names = list(facts)
    exit_code, output = machine.run(query(names))
    if exit_code:
        raise failed("nvidia-smi", exit_code, output, 0)
    return [row(names, line) for line in output.splitlines()]


def driver(machine: Machine) -> str:
    """Version of the loaded driver, as reported by the kernel."""
    path = "/proc/driver/nvidia/version"
    found = re.search(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)\b", machine.text(path), re.MULTILINE)
    if not found:
        raise Unreadable("no version: %s" % path)
    return found.group(1)


def module(machine: Machine, kernel: str) -> str | None:
    """Version of the nvidia module on disk for ``kernel``; None without a module."""
    exit_code, output = machine.run(["modinfo", "-F", "version", "-k", kernel, "nvidia"])
    return None if exit_code else output.strip()


def _value(name: str, field: str) -> Any:
    if field.startswith("["):
        return None
    if name == "throttle":
        return int(field, 16)
    return float(field) if name in VITALS else field
