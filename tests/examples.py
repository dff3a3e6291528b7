"""The examples of docs/commands.md: ``docs/examples/COMMAND.txt`` has a command line and its terminal output.

Tests run the command line and compare. ``UPDATE_EXAMPLES=1`` rewrites files with changed output:

    UPDATE_EXAMPLES=1 pytest tests/unit/test_examples.py
    UPDATE_EXAMPLES=1 pytest tests/lab/test_examples.py      # as root; then scripts/make-docs
"""

from __future__ import annotations

import difflib
import getpass
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROMPT = "$ "
PROGRAM = f"""#!/bin/sh
PYTHONPATH={ROOT} exec {sys.executable} -u -m sparkcluster "$@" $MORE
"""
# Values that vary between runs and machines, and their placeholders in a comparison.
_UNIT = r"(?:ms|s|secs|seconds|min|h|d|tokens/s|tok/s|[kMG]i?B(?:/s)?|Gb/s|bytes|B)"
_VARIES = [
    (re.compile(r"SHA256:[\w+/]{43}|sha256:[0-9a-f…]{7,64}|\b[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?(\.\d+)?Z?)?"), "TIME"),
    (re.compile(r"(\b\d\d-\d\d )?\b\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\bpid[ =]\d+"), "pid N"),
    (re.compile(r"\b\d+\.\d+(?= →)|(?:\d+ % )?(?:slower|faster|as before)$", re.MULTILINE), "MEASURED"),
    (re.compile(r"\b\d+\.\d of (?=\d+\.\d GB)"), ""),  # memory in use, which the lab's Sparks show live
    (re.compile(rf"(?:\b\d[\d.,/]*[ ]?{_UNIT}(?![\w/])[ ]?)+"), "MEASURED "),
    (re.compile(r"(?<=first after MEASURED )(?:, MEASURED ?)"), ""),  # known only if tokens arrived separately
    (re.compile(r"\b10\.77\.\d+\."), "10.77.0."),
    (re.compile(r"^  (?:spark-\S+|connect|check|copy|stop|start|verify|change|look): .*\n", re.MULTILINE), ""),
    (re.compile(r"^default: speed: .*\n", re.MULTILINE), ""),  # absent if both are equal by chance
    (re.compile(r"^(?:querying|waiting for) .*\n", re.MULTILINE), ""),  # the machine may have other load
    (re.compile(r"[─═]+"), "─"),
    (re.compile(r"[ \t]+"), " "),
]


class Place:
    """Environment of examples: a home with their files, and ``sparkcluster`` on PATH.

    Args:
        home: directory to create.
        prefix: command before the shell, such as ``nsenter …``.
    """

    def __init__(self, home: Path, *, prefix: Sequence[str] = ()) -> None:
        self.home, self.prefix = home, tuple(prefix)
        programs = home / ".bin"
        programs.mkdir(parents=True)
        (programs / "sparkcluster").write_text(PROGRAM)
        (programs / "sparkcluster").chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "SPARKCLUSTER_INVENTORY")}
        path = f"{programs}:{os.environ['PATH']}"
        terminal = {"COLUMNS": "80", "TERM": "dumb"}
        self.environment = {**kept, "HOME": str(home), "PATH": path, **terminal, "HF_HUB_OFFLINE": "1"}

    def run(self, line: str, *, more: str = "", timeout_s: float = 180) -> tuple[int, str]:
        """Exit code and combined output of a command line; ``more`` are additional flags for tests."""
        done = subprocess.run(
            [*self.prefix, "bash", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environment, "MORE": more},
            cwd=self.home,
            check=False,
            timeout=timeout_s,
        )
        return done.returncode, done.stdout

    def shown(self, written: str, more: Mapping[str, str] = {}) -> str:
        """``written`` without this machine's home, user and name; ``more`` has further replacements."""
        replaced = {str(self.home): "~", f"{getpass.getuser()}@{socket.gethostname()}": "me@laptop", **more}
        for word, by in replaced.items():
            written = written.replace(word, by)
        return "".join(f"{line.rstrip()}\n" for line in written.splitlines())


def file(name: str) -> Path:
    """Path of the example of a command."""
    return ROOT / f"docs/examples/{name}.txt"


def same(text: str) -> str:
    """``text`` with placeholders for values that vary between runs: times, sizes, speeds, hashes, networks, widths.

    Progress lines of nodes are removed, since their order varies.
    """
    for pattern, word in _VARIES:
        text = pattern.sub(word, text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def difference(name: str, line: str, written: str, compared: Callable[[str], str] = same) -> str:
    """Diff of an example and ``written``; empty if they are equal or the example was rewritten.

    Texts are equal if ``compared`` returns the same for both; such an example is not rewritten.
    """
    path, text = file(name), f"{PROMPT}{line}\n{written}"
    before, now = compared(path.read_text()) if path.exists() else "", compared(text)
    if before == now:
        return ""
    if os.environ.get("UPDATE_EXAMPLES"):
        path.write_text(text)
        return ""
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), path.name, "now", lineterm="", n=1)
    return "\n".join([*lines, "UPDATE_EXAMPLES=1 rewrites it, then scripts/make-docs"])
