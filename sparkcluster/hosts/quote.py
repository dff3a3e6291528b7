"""Command lines: all values that reach a shell are quoted here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from sparkcluster.errors import UsageError


def quote(argv: Sequence[str]) -> str:
    """Quote ``argv`` for a POSIX shell.

    Raises:
        UsageError: ``argv`` is empty or has a NUL byte.
    """
    if not argv or any("\0" in argument for argument in argv):
        raise UsageError("a command line is empty or has a NUL byte")
    return shlex.join(argv)


# Options of the interpreter that runs sparkcluster's programs. Without site: Ubuntu's loads a hook of its crash
# reporter.
PYTHON_OPTIONS = ("-I", "-S", "-c")


def shown(argv: Sequence[str]) -> str:
    """Short name of a command for messages: the task of one of our programs, else the name of the executable."""
    if tuple(argv[1:4]) == PYTHON_OPTIONS:
        return argv[-1]
    program = argv[0].rsplit("/", 1)[-1]
    return f"{program} {argv[1]}" if len(argv) > 1 and argv[1].isalpha() else program


# Prints its process ID to standard error, then becomes the command: sshd does not forward signals to root's commands,
# so the ID is needed to end one.
_NAMED = 'printf "\\001%s\\n" "$$" >&2; exec "$@"'
MARK = re.compile(rb"\x01(\d{1,9})\n")

# Ends process group $1: SIGTERM, then SIGKILL a second later.
_END = (
    'to() { kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2" 2>/dev/null; }; '
    'to TERM "$1"; for i in 1 2 3 4 5 6 7 8 9 10; do '
    'kill -s 0 -- "-$1" 2>/dev/null || exit 0; sleep 0.1; done; to KILL "$1"'
)


def named(argv: Sequence[str]) -> str:
    """Command line for ``argv``; the first line of its standard error has the process ID and matches ``MARK``."""
    quote(argv)
    return quote(["sh", "-c", _NAMED, "sh", *argv])


def end_line(pid: int) -> str:
    """Command line that ends process ``pid`` and its process group."""
    return quote(["sh", "-c", _END, "sh", str(pid)])
