"""Faults that ``lab fault`` injects into a virtual Spark, and their undo.

A fault is real wherever the kernel allows it (cables, MTU, rates, packet filters, processes, files, disks). Faults of
hardware (driver, GID table, GPU) are changes of the simulated hardware that the Spark's tools read.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.errors import UsageError
from sparkcluster.lab.faults import files, host, network, services
from sparkcluster.lab.faults.base import Fault, undo
from sparkcluster.lab.sparks import Spark

FAULTS: dict[str, Fault] = {**network.FAULTS, **host.FAULTS, **files.FAULTS, **services.FAULTS}
"""Every kind of fault."""

EXAMPLES = {"mtu": "1500", "path-mtu": "1500", "port-busy": "8000", "clock": "30"}
"""Arguments to show in a hint; for other kinds it shows the name of the argument."""


def put(spark: Spark, kind: str, args: Sequence[str]) -> str:
    """Inject a fault into a Spark; return a line that describes it.

    Raises:
        UsageError: no such fault, or its argument is invalid.
        LabError: the fault could not be injected.
    """
    fault = FAULTS.get(kind)
    if fault is None:
        kinds = ", ".join(f"{name} {each.argument or ''}".strip() for name, each in FAULTS.items())
        raise UsageError(f"unknown fault {kind}" if kind else "KIND is missing", hint=f"one of: {kinds}")
    least = 0 if fault.argument is None or fault.argument.startswith("[") else 1
    if not least <= len(args) <= (fault.argument is not None):
        expected = "takes no argument" if fault.argument is None else f"takes {fault.argument}"
        example = EXAMPLES.get(kind, fault.argument or "") if least else ""
        raise UsageError(
            f"fault {kind} {expected}", hint=f"sparkcluster lab fault {spark.name} {kind} {example}".rstrip()
        )
    steps = fault.put(spark, *args)
    if steps:
        spark.state.faults.setdefault(spark.name, []).append({"kind": kind, "undo": steps})
    return " ".join([spark.name, kind, *args])


def heal(sparks: Sequence[Spark]) -> list[str]:
    """Undo all faults of ``sparks``, the latest first; return a line for each.

    Raises:
        LabError: a fault cannot be undone.
    """
    lines = []
    for spark in sparks:
        if spark.pid is None:
            spark.reboot()
            lines.append(f"{spark.name} booted")
        faults = spark.state.faults.get(spark.name, [])
        while faults:
            undo(spark, faults[-1]["undo"])
            lines.append(f"{spark.name} healed: {faults.pop()['kind']} undone")
            spark.state.write()
        spark.state.faults.pop(spark.name, None)
    return lines
