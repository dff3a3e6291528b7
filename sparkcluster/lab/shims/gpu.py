"""nvidia-smi and the hook of NVIDIA's container toolkit, with the answers of a GB10."""

from __future__ import annotations

import sys
import time
from typing import Any

from . import hardware

NAME = "NVIDIA GB10"
BUS = "0000000F:01:00.0"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)

STATES = {
    "idle": {"power.draw": "4.10", "clocks.sm": "208", "utilization.gpu": "0", "temperature.gpu": "42", "pstate": "P8"},
    # Full load at a third of its clock and a fifth of its power (minefield PR 55: 799 MHz measured).
    "wedged": {
        "power.draw": "17.20",
        "clocks.sm": "799",
        "utilization.gpu": "95",
        "temperature.gpu": "48",
        "pstate": "P0",
    },
    # A hung collective spins at full clock.
    "hung": {
        "power.draw": "24.30",
        "clocks.sm": "2405",
        "utilization.gpu": "96",
        "temperature.gpu": "51",
        "pstate": "P0",
    },
}
"""Live values of the GPU, by its simulated state."""

# Memory is unified: the GB10 reports [N/A].
FIELDS = {
    "name": NAME,
    "gpu_name": NAME,
    "index": "0",
    "count": "1",
    "uuid": "GPU-6b1a0c55-0000-4b10-b10b-000000000000",
    "pci.bus_id": BUS,
    "compute_cap": "12.1",
    "vbios_version": "9A.0B.25.00.00",
    "memory.total": "[N/A]",
    "memory.used": "[N/A]",
    "memory.free": "[N/A]",
    "power.limit": "[N/A]",
    "clocks.max.sm": "3003",
    "utilization.memory": "0",
    "clocks_event_reasons.active": "0x0000000000000000",
}
UNITS = {
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "power.draw": "W",
    "clocks.sm": "MHz",
    "clocks.max.sm": "MHz",
}


OPTIONS = ("--query-gpu", "--format", "-L", "--list-gpus")


def nvidia_smi(args: list[str]) -> int:
    """Print the answer to a query, with ``-l SECONDS`` repeatedly; exit status as in the real program."""
    if "-l" in args:
        place = args.index("-l")
        return _loop(args[:place] + args[place + 2 :], float(args[place + 1]))
    facts = hardware.load()
    if facts["driver"] == "none":
        sys.stdout.write(NO_DRIVER)
        return 9
    if facts["gpu"] == "lost":
        sys.stdout.write("No devices were found\n")
        return 6
    options = dict(arg.partition("=")[::2] for arg in args)
    unsupported = [arg for arg in args if arg.partition("=")[0] not in OPTIONS]
    if unsupported:
        return hardware.refuse('Invalid combination of input arguments: the lab has no option "%s"' % unsupported[0], 2)
    if "--query-gpu" in options:
        return _query(facts, options["--query-gpu"].split(","), options.get("--format", "csv").split(","))
    sys.stdout.write("GPU 0: %s (UUID: %s)\n" % (NAME, FIELDS["uuid"]))
    return 0


def _loop(args: list[str], every_s: float) -> int:
    while not (status := nvidia_smi(args)):
        sys.stdout.flush()
        time.sleep(every_s)
    return status


def _query(facts: dict[str, Any], fields: list[str], form: list[str]) -> int:
    available = dict(FIELDS, **STATES[facts.get("gpu_state", "idle")], driver_version=facts["driver"])
    available["timestamp"] = time.strftime("%Y/%m/%d %H:%M:%S.000")
    heads, cells = [], []
    for field in (field.strip() for field in fields):
        if field not in available:
            sys.stdout.write('Field "%s" is not a valid field to query.\n\n' % field)
            return 2
        unit = UNITS.get(field, "")
        heads.append(field + (" [%s]" % unit if unit else ""))
        cells.append(available[field] + (" " + unit if unit and "nounits" not in form else ""))
    if "noheader" not in form:
        sys.stdout.write(", ".join(heads) + "\n")
    sys.stdout.write(", ".join(cells) + "\n")
    return 0


def nvidia_container_runtime_hook(args: list[str]) -> int:
    """Called by Docker before a container with ``--gpus`` starts; fails like the real hook."""
    del args
    facts = hardware.load()
    if facts["driver"] == "none" or facts["gpu"] == "lost":
        problem = "driver not loaded" if facts["driver"] == "none" else "no devices found"
        return hardware.refuse("nvidia-container-cli: initialization error: nvml error: " + problem)
    return 0
