"""What bench-start measures; run by scripts/bench-start."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench import ENVIRONMENT, PROGRAM, PYTHON, Turns, show, timed

from sparkcluster.cli.commands import COMMANDS

INVENTORY = "cluster: c\nplaybook: gpt-oss-120b\nnodes: [{host: 10.0.0.1, name: alpha}, {host: 10.0.0.2, name: beta}]\n"
TABS = {
    "a command": "sparkcluster st",
    "a flag": "sparkcluster up mine.yaml --pl",
    "a node": "sparkcluster logs mine.yaml ",
    "a playbook": "sparkcluster up mine.yaml --playbook ",
    "a check": "sparkcluster checks NET",
    "a setup step": "sparkcluster setup mine.yaml --only ",
    "a fault of the lab": "sparkcluster lab fault 1 ",
}
TAB_S = 0.150


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-start", description="the start of the program, as ratios")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    times = 7 if parser.parse_args().quick else 25
    ok = True
    bare, argparse_alone = [PYTHON, "-c", "pass"], [PYTHON, "-c", "import argparse"]
    flags = [[PROGRAM, "--version"], [PROGRAM, "--help"]]
    turns = Turns(times, *(lambda argv=argv: timed(argv) for argv in (bare, argparse_alone, *flags)))
    show("import argparse / pass", turns.ratio(1, 0), turns.detail(1, 0))
    for at, argv in enumerate(flags, 2):
        ok &= show(f"{argv[-1]} / pass", turns.ratio(at, 0), turns.detail(at, 0), at_most=2)

    commands = list(COMMANDS) if times > 10 else ["status", "up"]
    for name in commands:
        turns = Turns(
            times // 3, *(lambda argv=argv: timed(argv) for argv in (bare, argparse_alone, [PROGRAM, name, "--help"]))
        )
        show(f"{name} --help / pass", turns.ratio(2, 0), turns.detail(2, 0))
        show(f"{name} --help / import argparse", turns.ratio(2, 1), turns.detail(2, 1))

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "mine.yaml").write_text(INVENTORY)
        for what, line in TABS.items():
            asked = {**ENVIRONMENT, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
            asked["_ARGCOMPLETE_STDOUT_FILENAME"] = str(Path(directory) / "answer")
            turns = Turns(times, lambda asked=asked: timed([PROGRAM], env=asked, cwd=directory))
            if not (Path(directory) / "answer").read_text():
                sys.exit(f"nothing is offered for: {line}")
            ok &= show(
                f"Tab: {what}, of {TAB_S * 1000:.0f} ms",
                turns.median(0) / TAB_S,
                f"{turns.median(0) * 1000:.0f} ms",
                at_most=1,
            )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
