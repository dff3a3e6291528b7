"""The live screen with questions and data: it erases only its own lines, and its last mark is the final one."""

from __future__ import annotations

import re

import pytest

from tests.unit.on_terminal import COMMAND, OnTerminal

UP = "\x1b[1A"

ASKED = """
from sparkcluster.cli.progress import reporter
from sparkcluster.cli.prompts import Terminal
def run():
    with reporter(as_json=False, json_lines=False) as report, Terminal(report.paused) as terminal:
        report.step("look")
        for node in "abcd":
            report.progress(node, "connecting")
        sys.stdin.readline()
        print("->", terminal.confirm("first line\\nsecond line\\ngo on?"))
        report.progress("a", "changing")
        sys.stdin.readline()
as_command(run)
"""


def test_lines_above_a_question_are_kept() -> None:
    with OnTerminal(COMMAND + ASKED) as terminal:
        terminal.until("connecting")
        terminal.type("\n")
        terminal.until("go on? [y/N] ")
        terminal.type("y\n")
        asked = len(terminal.shown)
        terminal.until("-> True")
        assert UP not in terminal.shown[asked : terminal.shown.index("-> True")]
        terminal.until("changing")
        terminal.type("\n")
        assert terminal.end() == 0


ENDS = """
from sparkcluster.cli.progress import reporter
from sparkcluster.errors import UsageError
def run():
    with reporter(as_json=False, json_lines=False) as report:
        report.step("look")
        report.step("change")
        if sys.argv[1] == "is done":
            report.done()
            raise UsageError("what was seen is not what is wanted")
        report.failed()
as_command(run)
"""


@pytest.mark.parametrize(
    ("case", "marks"),
    [
        ("ends", ["✓ look", "✗ change"]),
        ("is done", ["✓ look", "✓ change"]),
    ],
)
def test_a_failed_step_is_not_marked_as_done(case: str, marks: list[str]) -> None:
    with OnTerminal("import os; os.environ['NO_COLOR'] = '1'\n" + COMMAND + ENDS, case) as terminal:
        assert terminal.end() == (2 if case == "is done" else 0)
    shown = [line[line.index(mark) :] for line in terminal.shown.splitlines() for mark in "✓✗" if mark in line]
    assert [re.sub(r" +\d+\.\d s$", "", line.split("\x1b")[0]) for line in shown] == marks
