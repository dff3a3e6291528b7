"""Command lines: every value that reaches a shell is quoted here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from sparkcluster.errors import UsageError


def quote(argv: Sequence[str]) -> str:
    """Command line that a POSIX shell splits into exactly ``argv``.

    Raises:
        UsageError: ``argv`` is empty or has a NUL byte.
    """
    if not argv or any("\0" in argument for argument in argv):
        raise UsageError("a command line is empty or has a NUL byte")
    return shlex.join(argv)


# Options of the interpreter that runs programs of sparkcluster. Without site, which is not needed: Ubuntu's has a
# hook of its crash reporter.
PYTHON_OPTIONS = ("-I", "-S", "-c")


def shown(argv: Sequence[str]) -> str:
    """Short name of a command for messages: the task of a program of sparkcluster, else the name of the program."""
    if tuple(argv[1:4]) == PYTHON_OPTIONS:
        return argv[-1]
    program = argv[0].rsplit("/", 1)[-1]
    return f"{program} {argv[1]}" if len(argv) > 1 and argv[1].isalpha() else program


# Prints its process ID to standard error before it becomes the command: sshd does not forward signals to
# commands of root, so that ending one takes its ID.
_NAMED = 'printf "\\001%s\\n" "$$" >&2; exec "$@"'
MARK = re.compile(rb"\x01(\d{1,9})\n")

# Ends the process group of $1: SIGTERM, and SIGKILL a second later.
_END = (
    'to() { kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2" 2>/dev/null; }; '
    'to TERM "$1"; for i in 1 2 3 4 5 6 7 8 9 10; do '
    'kill -s 0 -- "-$1" 2>/dev/null || exit 0; sleep 0.1; done; to KILL "$1"'
)


def named(argv: Sequence[str]) -> str:
    """Command line of ``argv`` whose first line of standard error matches ``MARK``: its process ID."""
    quote(argv)
    return quote(["sh", "-c", _NAMED, "sh", *argv])


def end_line(pid: int) -> str:
    """Command line that ends process ``pid`` and its group."""
    return quote(["sh", "-c", _END, "sh", str(pid)])
