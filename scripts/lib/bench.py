"""Helpers of the benchmarks: commands, the lab, and ratios that tolerate some other load on the machine."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from sparkcluster.lab import Lab

PYTHON = sys.executable
PROGRAM = str(Path(PYTHON).with_name("sparkcluster"))
# Keep bytecode, as installed programs do: otherwise a benchmark measures Python's compiler on both sides.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
BUSY = 0.2


def timed(argv: list[str], **options: Any) -> float:
    """Seconds that a command takes; if it fails, the benchmark exits with the command's output."""
    began = time.monotonic()
    options = {"env": ENVIRONMENT, **options}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{shlex.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


class Turns:
    """Measurements taken in turns, so that a slow minute of the machine affects all of them."""

    def __init__(self, times: int, *measures: Callable[[], float]) -> None:
        wait_until_quiet()
        self.runs = [[measure() for measure in measures] for _ in range(times)]

    def median(self, at: int) -> float:
        """Median of one measure, in seconds."""
        return statistics.median(run[at] for run in self.runs)

    def ratio(self, at: int, over: int) -> float:
        """Median of the ratios within each turn."""
        return statistics.median(run[at] / run[over] for run in self.runs)

    def detail(self, at: int, over: int) -> str:
        """Both medians."""
        return f"{self.median(at):.3g} s / {self.median(over):.3g} s"


def busy() -> float:
    """CPU utilization of the machine over one second, 0 to 1."""

    def taken() -> tuple[int, int]:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4], sum(fields)

    used, whole = taken()
    time.sleep(1)
    used_after, whole_after = taken()
    return (used_after - used) / max(1, whole_after - whole)


def wait_until_quiet(limit_s: float = 60) -> None:
    """Wait until the machine is almost idle, at most ``limit_s``; print its CPU utilization."""
    until = time.monotonic() + limit_s
    share = busy()
    while share > BUSY and time.monotonic() < until:
        share = busy()
    word = "warning: " if share > BUSY else ""
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{word}{cores} cores, {share:.0%} busy before the measurement, load {load:.2f}", file=sys.stderr)


def show(what: str, ratio: float, detail: str, *, at_most: float | None = None, at_least: float | None = None) -> bool:
    """Print one ratio with its bound; return whether it is within the bound."""
    within = (at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least)
    bound = f"(≤ {at_most:g})" if at_most is not None else f"(≥ {at_least:g})" if at_least is not None else ""
    verdict = "" if not bound else "ok" if within else "FAILED"
    print(f"{what:<58} {ratio:6.2f} {bound:<8} {verdict:<6} {detail}", flush=True)
    return within


def lab(sparks: int, engine: str) -> Lab:
    """Virtual Sparks; a context manager."""
    return Lab.up(sparks, engine=engine, name=f"bench{sparks}", report=lambda line: print(line, file=sys.stderr))


def ssh(inventory: Path) -> list[list[str]]:
    """The plain ssh command of every node."""
    document = yaml.safe_load(inventory.read_text())
    options = document["ssh"]
    known_hosts = f"UserKnownHostsFile={options['known_hosts']}"
    common = ["ssh", "-i", options["identity"], "-o", known_hosts, "-o", "BatchMode=yes"]
    return [[*common, f"{options['user']}@{node['host']}"] for node in document["nodes"]]
