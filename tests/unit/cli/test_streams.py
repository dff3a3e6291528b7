"""Output that cannot be written: each command as a process, with a closed pipe, a full disk or a closed descriptor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.on_terminal import ROOT

# Each kind of output (plain text, tables, argparse, JSON, errors), with its exit code.
WORDS = [
    (["up", "--help"], 0),
    (["checks", "--json"], 0),
    (["nothing", "--json"], 2),
]
FULL = "error: cannot write to stdout: No space left on device"

# `logs -f` of a cluster whose ranks write endlessly.
FOLLOWING = """
import sys
from sparkcluster.inspect import logs
from sparkcluster.inspect.logs import LogLine
def follow(fleet, spec, show, **options):
    while True:
        show(LogLine("spark-1", "a line of the log"))
logs.follow = follow
sys.argv[1:] = ["logs", "inventory/two-spark.yaml", "-f"]
from sparkcluster.cli.main import console
console()
"""


def program(line: str, *words: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    """The program followed by ``line``, with which the shell redirects its output."""
    argv = [sys.executable, *(["-c", code] if code else ["-m", "sparkcluster"]), *words]
    script = f'set -o pipefail; "$@" {line}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        ["bash", "-c", script, "bash", *argv],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("words", "code"), WORDS, ids=lambda each: str(each[0]) if isinstance(each, list) else None)
def test_a_closed_pipe_changes_neither_exit_code_nor_stderr(words: list[str], code: int) -> None:
    closed = program("| true", *words)
    assert (closed.returncode, closed.stderr) == (code, "")


@pytest.mark.parametrize(("words", "code"), WORDS, ids=lambda each: str(each[0]) if isinstance(each, list) else None)
def test_a_full_disk_is_a_one_line_error(words: list[str], code: int) -> None:
    done = program(">/dev/full", *words)
    assert done.returncode == (code or 1)
    first = done.stderr.splitlines()[0]
    assert first == ("error: unknown command: nothing" if code else FULL)
    assert len(done.stderr.splitlines()) == (2 if code else 1)


@pytest.mark.parametrize("line", [">&- 2>&-", "2>/dev/full"])
def test_closed_or_full_descriptors_do_not_change_the_exit_code(line: str) -> None:
    done = program(line, "checks")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_full_disk_for_both_output_and_error_message() -> None:
    assert program(">/dev/full 2>/dev/full", "checks").returncode == 1


def test_endless_output_ends_when_its_reader_closes_the_pipe() -> None:
    done = program("| head -1", code=FOLLOWING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "spark-1 | a line of the log\n", "")


def test_characters_missing_in_an_encoding_are_shown_as_numbers() -> None:
    code = "from sparkcluster.cli import output, streams; streams.install(); output.data('✗ é')"
    shown = program("", "import", code=f"import sys; sys.stdout.reconfigure(encoding='ascii'); {code}").stdout
    assert shown == "\\u2717 \\xe9\n"


def test_a_message_stays_behind_earlier_data_if_both_go_to_one_file() -> None:
    code = "from sparkcluster.cli import output, streams; streams.install(); output.data('data'); output.message('message')"
    assert program("2>&1", code=code).stdout == "data\nmessage\n"
