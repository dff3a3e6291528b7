"""The measurements of scripts/bench-start, which runs this."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import ENVIRONMENT, PROGRAM, PYTHON, Turns, show, timed

from sparkcluster.cli.commands import COMMANDS

INVENTORY = "cluster: c\nplaybook: gpt-oss-120b\nnodes: [{host: 10.0.0.1, name: alpha}, {host: 10.0.0.2, name: beta}]\n"
TABS = {
    "a command": "sparkcluster st",
    "a flag": "sparkcluster up mine.yaml --pl",
    "an inventory": "sparkcluster status mi",
    "a node": "sparkcluster logs mine.yaml ",
    "a playbook": "sparkcluster up mine.yaml --playbook ",
    "a check": "sparkcluster checks NET",
    "a setup step": "sparkcluster setup mine.yaml --only ",
    "a fault of the lab": "sparkcluster lab fault 1 ",
}
TAB_S = 0.150


def tab(line: str, directory: Path) -> Callable[[], float]:
    """The completion that a shell requests when Tab is pressed after ``line``."""
    answer = directory / "answer"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}

    def measure() -> float:
        answer.write_text("")
        seconds = timed([PROGRAM], env=ENVIRONMENT | asked, cwd=directory)
        if not answer.read_text():
            sys.exit(f"no completion for: {line}")
        return seconds

    return measure


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-start", description="the start-up time of the program, as ratios")
    parser.add_argument("--quick", action="store_true", help="fewer runs, and --help of three commands")
    quick = parser.parse_args().quick
    commands = ["status", "up", "lint"] if quick else list(COMMANDS)
    lines = [[PYTHON, "-c", "pass"], [PROGRAM, "--version"], [PROGRAM, "--help"]]
    lines += [[PROGRAM, name, "--help"] for name in commands]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "mine.yaml").write_text(INVENTORY)
        measures: list[Callable[[], float]] = [partial(timed, line) for line in lines]
        measures += [tab(line, Path(name)) for line in TABS.values()]
        turns = Turns(7 if quick else 25, *measures)

    within = [
        show(f"{' '.join(lines[at][1:])} / pass", turns.ratio(at, 0), turns.detail(at, 0), at_most=2)
        for at in range(1, len(lines))
    ]
    for at, what in enumerate(TABS, len(lines)):
        seconds = turns.median(at)
        within.append(show(f"Tab: {what}, / 150 ms", seconds / TAB_S, f"{seconds * 1000:.0f} ms", at_most=1))
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
