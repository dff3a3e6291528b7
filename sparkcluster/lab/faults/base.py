"""The type of a fault, and building blocks of faults: each returns the steps that undo it."""

from __future__ import annotations

import copy
import dataclasses
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.lab import network, node_files
from sparkcluster.lab.sparks import Spark, sparks_of

Steps = list[dict[str, Any]]
"""Steps that undo a fault, in this order, as JSON; :func:`undo` has the kinds of steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Attributes:
        argument: name of its argument; None if it takes none; in brackets if optional.
        put: injects it into a Spark, with its argument if any; returns the steps that undo it.
        simulated: whether it only changes the output of the Spark's tools, since the machine itself cannot be changed.
    """

    argument: str | None
    put: Callable[..., Steps]
    simulated: bool = False


def undo(spark: Spark, steps: Steps) -> None:
    """Undo a fault.

    Raises:
        LabError: a step failed.
    """
    for step in steps:
        match step:
            case {"hardware": values}:
                node_files.write_hardware(spark, values)
            case {"file": path, "text": None}:
                spark.run(["rm", "-f", path])
            case {"file": path, "text": text}:
                _write(spark, path, text)
            case {"ip": lines, "netns": netns}:
                network.ip(netns, lines)
            case {"run": argv, "on": index}:
                sparks_of(spark.state)[index].run(argv)
            case {"rate": rate}:
                network.shape(spark, rate)
    spark.sync_hardware()


def hardware(spark: Spark, change: Callable[[dict[str, Any]], object]) -> Steps:
    """Change the simulated hardware of a Spark."""
    values = json.loads(node_files.hardware_file(spark).read_text())
    before = copy.deepcopy(values)
    change(values)
    node_files.write_hardware(spark, values)
    spark.sync_hardware()
    return [{"hardware": before}]


def changed(**values: Any) -> Callable[[Spark], Steps]:
    """A fault that sets values of the simulated hardware."""
    return lambda spark: hardware(spark, lambda facts: facts.update(values))


def put_file(spark: Spark, path: str, text: str) -> Steps:
    """Write a file on a Spark in place, keeping owner and mode; its undo removes a file that did not exist."""
    before = spark.run(["cat", path], check=False)
    _write(spark, path, text)
    return [{"file": path, "text": before.stdout if before.returncode == 0 else None}]


def _write(spark: Spark, path: str, text: str) -> None:
    spark.run(["sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path], text_in=text)


def links(spark: Spark, netns: str, lines: list[str], undo: list[str]) -> Steps:
    """Run ``ip`` commands in the network namespace of the Spark or of the switches."""
    network.ip(netns, lines)
    spark.sync_hardware()
    return [{"ip": undo, "netns": netns}]


def command(spark: Spark, argv: Sequence[str], undo: Sequence[str]) -> Steps:
    """Run a program on a Spark."""
    spark.run(argv)
    return undone_by(spark, undo)


def undone_by(spark: Spark, argv: Sequence[str]) -> Steps:
    """The undo step that runs a program on a Spark."""
    return [{"run": list(argv), "on": spark.index}]


TIMER = """
import subprocess, sys, time
time.sleep(int(sys.argv[2]))
subprocess.run(sys.argv[3:])
"""


def until(spark: Spark, seconds: str, undo: Sequence[str]) -> Steps:
    """The undo step that runs a program on a Spark; it also runs after ``seconds``, if given.

    Raises:
        UsageError: ``seconds`` is not a number.
    """
    name = f"undo-{uuid.uuid4().hex}"
    if seconds:
        after = str(number(seconds, 1, 86400, "a time in seconds"))
        detached = ["sh", "-c", 'setsid --fork "$@" < /dev/null > /dev/null 2>&1', "sh"]
        spark.run([*detached, "python3", "-c", TIMER, name, after, *undo])
    return undone_by(spark, ["sh", "-c", f'pkill -KILL -f "{name} [0-9]"; exec "$@"', "sh", *undo])


def number(text: str, low: int, high: int, quantity: str) -> int:
    """The number in ``text``.

    Raises:
        UsageError: it is not a number, or not between ``low`` and ``high``.
    """
    if not text.isdigit() or not low <= int(text) <= high:
        raise UsageError(f"{quantity} must be a number from {low} to {high}, not {text!r}")
    return int(text)
