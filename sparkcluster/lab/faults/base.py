"""What a fault is, and what several of them do alike."""

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
"""What heals a fault: its kind and what was there before, as JSON."""

Put = Callable[[Spark, Sequence[str]], Undo | None]
Heal = Callable[[Spark, Undo], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        argument: what it takes, for the help; None for nothing; in brackets where it may be left out.
        says: what it does, for the help.
        put: does it; returns what undoes it, None where there is nothing to undo.
        heal: undoes it; None where nothing is to be undone.
        pretended: whether only what the Spark's tools show is changed, since the machine itself cannot be.
    """

    argument: str | None
    says: str
    put: Put
    heal: Heal | None = None
    pretended: bool = False


def hardware(spark: Spark, change: Callable[[dict[str, Any]], None]) -> Undo:
    """Change the false hardware of a Spark; what undoes it."""
    values = node_files.read_hardware(spark.state, spark.index)
    before = json.loads(json.dumps(values))
    change(values)
    _show(spark, values)
    return {"hardware": before}


def old_hardware(spark: Spark, undo: Undo) -> None:
    """Put the false hardware back as it was before one fault."""
    _show(spark, undo["hardware"])


def _show(spark: Spark, values: dict[str, Any]) -> None:
    node_files.write_hardware(spark.state, spark.index, values)
    spark.tell_hardware_changed()


def changed(**values: Any) -> Callable[[Spark, Sequence[str]], Undo]:
    """A fault that sets values of the false hardware, whatever its argument."""

    def put(spark: Spark, args: Sequence[str]) -> Undo:
        del args
        return hardware(spark, lambda facts: facts.update(values))

    return put


def put_file(spark: Spark, path: str, text: str) -> Undo:
    """Write a file on a Spark, over itself so that owner and mode stay; what undoes it."""
    before = spark.run(["cat", path], check=False)
    spark.run(["sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path], text_in=text)
    return {"path": path, "text": before.stdout if before.returncode == 0 else None}


def old_file(spark: Spark, undo: Undo) -> None:
    """Put a file back as it was; one that was not there is removed."""
    if undo["text"] is None:
        spark.run(["rm", "-f", undo["path"]])
    else:
        put_file(spark, undo["path"], undo["text"])


def number(text: str, low: int, high: int, what: str) -> int:
    """The number in ``text``.

    Raises:
        UsageError: it is none, or not between ``low`` and ``high``.
    """
    if not text.isdigit() or not low <= int(text) <= high:
        raise UsageError(f"{what} is a number from {low} to {high}, not {text!r}")
    return int(text)


def matching(spark: Spark, wanted: Callable[[list[str]], bool]) -> list[int]:
    """Processes of a Spark by the words of their command line."""
    return [pid for pid in sorted(spark.processes()) if (found := words(pid)) and wanted(found)]


def words(pid: int) -> list[str]:
    """Command line of a process, empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def send(pids: Sequence[int], what: signal.Signals) -> None:
    """Send a signal to processes that may be gone by now."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)
