"""What a fault is, and what several of them share."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.lab import node_files
from sparkcluster.lab.sparks import Spark

Undo = dict[str, Any]
"""What heals a fault: its kind and the previous state, as JSON."""

Put = Callable[[Spark, Sequence[str]], Undo | None]
Heal = Callable[[Spark, Undo], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Attributes:
        argument: its argument; None for none; in brackets if optional.
        put: injects it; returns what undoes it, None if there is nothing to undo.
        heal: undoes it; None if there is nothing to undo.
        simulated: whether it changes only what the Spark's tools show, since the machine itself cannot be changed.
    """

    argument: str | None
    put: Put
    heal: Heal | None = None
    simulated: bool = False


def hardware(spark: Spark, change: Callable[[dict[str, Any]], None]) -> Undo:
    """Change the simulated hardware of a Spark; what undoes it."""
    values = node_files.read_hardware(spark.state, spark.index)
    before = json.loads(json.dumps(values))
    change(values)
    _write_hardware(spark, values)
    return {"hardware": before}


def restore_hardware(spark: Spark, undo: Undo) -> None:
    """Restore the simulated hardware as it was before a fault."""
    _write_hardware(spark, undo["hardware"])


def _write_hardware(spark: Spark, values: dict[str, Any]) -> None:
    node_files.write_hardware(spark.state, spark.index, values)
    spark.sync_hardware()


def changed(**values: Any) -> Callable[[Spark, Sequence[str]], Undo]:
    """A fault that sets values of the simulated hardware; its argument is not used."""

    def put(spark: Spark, args: Sequence[str]) -> Undo:
        del args
        return hardware(spark, lambda facts: facts.update(values))

    return put


def put_file(spark: Spark, path: str, text: str) -> Undo:
    """Write a file on a Spark in place, so that owner and mode stay; what undoes it."""
    before = spark.run(["cat", path], check=False)
    spark.run(["sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path], text_in=text)
    return {"path": path, "text": before.stdout if before.returncode == 0 else None}


def restore_file(spark: Spark, undo: Undo) -> None:
    """Restore a file; one that did not exist is removed."""
    if undo["text"] is None:
        spark.run(["rm", "-f", undo["path"]])
    else:
        put_file(spark, undo["path"], undo["text"])


def number(text: str, low: int, high: int, what: str) -> int:
    """The number in ``text``.

    Raises:
        UsageError: it is not one, or not between ``low`` and ``high``.
    """
    if not text.isdigit() or not low <= int(text) <= high:
        raise UsageError(f"{what} is a number from {low} to {high}, not {text!r}")
    return int(text)


def matching(spark: Spark, wanted: Callable[[list[str]], bool]) -> list[int]:
    """Processes of a Spark by their command line."""
    return [pid for pid in sorted(spark.processes()) if (found := words(pid)) and wanted(found)]


def words(pid: int) -> list[str]:
    """Command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def send(pids: Sequence[int], what: signal.Signals) -> None:
    """Send a signal to processes that may have ended already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)
