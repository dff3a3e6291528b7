"""The live screen beside questions and data: it erases only what it drew itself, and its last mark is that of the end."""

from __future__ import annotations

import re
import sys

import pytest

from tests.unit.on_terminal import COMMAND, OnTerminal

UP = "\x1b[1A"

ASKED = """
import time
from sparkcluster.cli.progress import reporter
from sparkcluster.cli.prompts import Terminal
def run():
    with reporter(as_json=False, json_lines=False) as report, Terminal(report) as terminal:
        report.step("look")
        for node in "abcd":
            report.progress(node, "connecting")
        time.sleep(0.6)
        ask = {"report": report.confirm, "terminal": terminal.confirm}[sys.argv[1]]
        print("->", ask("first line\\nsecond line\\ngo on?"))
        report.progress("a", "changing")
        time.sleep(0.6)
as_command(run)
"""


@pytest.mark.parametrize("asks", ["report", "terminal"])
def test_lines_above_a_question_stay(asks: str) -> None:
    with OnTerminal(COMMAND + ASKED, asks) as terminal:
        terminal.until("connecting")
        terminal.until("go on? [y/N] ")
        terminal.type("y\n")
        asked = len(terminal.shown)
        terminal.until("-> True")
        assert UP not in terminal.shown[asked : terminal.shown.index("-> True")]
        terminal.until("changing")
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
        if sys.argv[1] == "begins another":
            report.step("look again")
as_command(run)
"""


@pytest.mark.parametrize(
    ("case", "marks"),
    [
        ("ends", ["✓ look", "✗ change"]),
        ("begins another", ["✓ look", "✗ change", "✓ look again"]),
        ("is done", ["✓ look", "✓ change"]),
    ],
)
def test_a_step_that_failed_is_not_marked_as_done(case: str, marks: list[str]) -> None:
    with OnTerminal("import os; os.environ['NO_COLOR'] = '1'\n" + COMMAND + ENDS, case) as terminal:
        assert terminal.end() == (2 if case == "is done" else 0)
    shown = [line[line.index(mark) :] for line in terminal.shown.splitlines() for mark in "✓✗" if mark in line]
    assert [re.sub(r"  \d+\.\d s$", "", line.split("\x1b")[0]) for line in shown] == marks
    assert all(re.search(r"  \d+\.\d s(\x1b|$)", line) for line in shown)


AGAIN = """
import time
from sparkcluster.cli.progress import reporter
def run():
    with reporter(as_json=False, json_lines=False) as report:
        report.step("watch", "until the model answers")
        report.log("alpha", "INFO loading \x1b[31mshard 3")
        time.sleep(0.6)
        report.step("watch", "until the model answers")
        report.step("verify")
as_command(run)
"""


def test_a_step_that_begins_again_is_one_line_and_the_log_of_the_slowest_rank_is_shown() -> None:
    with OnTerminal("import os; os.environ['NO_COLOR'] = '1'\n" + COMMAND + AGAIN) as terminal:
        terminal.until("  alpha | INFO loading")
        assert terminal.end() == 0
    assert terminal.shown.count("✓ watch") == 1
    assert "\x1b[31mshard" not in terminal.shown


DATA = """
def run():
    with reporter(as_json=False, json_lines=False) as report:
        report.step("look")
        print("data")
as_command(run)
"""


def test_data_for_a_pipe_does_not_go_to_the_screen() -> None:
    """stderr is a terminal, stdout is not."""
    program = COMMAND + "from sparkcluster.cli.progress import reporter\n" + DATA
    inner = [sys.executable, "-c", program]
    outer = f"import subprocess, sys\nprint('got', subprocess.run({inner!r}, stdout=subprocess.PIPE).stdout)"
    with OnTerminal(outer) as terminal:
        terminal.until("got b'data\\n'")
        assert terminal.end() == 0
