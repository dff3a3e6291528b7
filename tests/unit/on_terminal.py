"""A Python program on a separate terminal, and simulated key presses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
SIZE = (24, 80)
"""Lines and columns of the terminal."""

# Runs a function ``run`` like the command ``status``, with its handling of Ctrl-C.
COMMAND = """
import sys, types
from sparkcluster.cli import main
def as_command(run):
    module = types.ModuleType("sparkcluster.cli.status")
    module.add_arguments = lambda parser: None
    module.run = lambda args: run() or 0
    sys.modules[module.__name__] = module
    sys.exit(main.guarded(["status"]))
"""


class OnTerminal:
    """Runs ``program`` on a terminal; ``shown`` is everything that appeared there."""

    def __init__(self, program: str, *argv: str) -> None:
        self._begin([sys.executable, "-c", program, *argv], dict(os.environ))

    def _begin(self, argv: list[str], environment: dict[str, str], directory: Path | None = None) -> None:
        self.shown = ""
        self._seen = 0
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child becomes the program
            os.chdir(directory or ".")
            os.execvpe(argv[0], argv, {**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm"})
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.terminal)

    def _read(self, limit_s: float) -> bool:
        if not select.select([self.terminal], [], [], max(0.0, limit_s))[0]:
            return False
        with contextlib.suppress(OSError):  # the program has ended
            chunk = os.read(self.terminal, 65536).decode(errors="replace")
            self.shown += chunk
            return bool(chunk)
        return False

    def until(self, *texts: str, limit_s: float = 30) -> str:
        """Wait until one of ``texts`` appears after the previously awaited text; returns the first one."""
        end = time.monotonic() + limit_s
        while not any(text in self.shown[self._seen :] for text in texts):
            assert self._read(end - time.monotonic()), self.shown
        places = {self.shown.index(text, self._seen): text for text in texts if text in self.shown[self._seen :]}
        first = min(places)
        self._seen = first + len(places[first])
        return places[first]

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.terminal, text.encode())

    def hang_up(self) -> None:
        """Close the terminal, and wait until the program exits."""
        os.close(self.terminal)
        os.waitpid(self.pid, 0)

    @property
    def echo(self) -> bool:
        """Whether the terminal echoes typed characters."""
        return bool(termios.tcgetattr(self.terminal)[3] & termios.ECHO)

    def end(self, limit_s: float = 30) -> int:
        """Wait for the end; returns the exit code."""
        end = time.monotonic() + limit_s
        while self._read(end - time.monotonic()):
            pass
        assert time.monotonic() < end, self.shown
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Shell(OnTerminal):
    """A line typed at a shell in ``directory``, where sparkcluster is installed."""

    def __init__(self, line: str, directory: Path, environment: dict[str, str], prefix: tuple[str, ...] = ()) -> None:
        """``environment`` is added to the tests' environment without variables of commands; ``prefix`` comes first."""
        programs = directory / ".bin"
        programs.mkdir(exist_ok=True)
        if not (program := programs / "sparkcluster").exists():
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sparkcluster "$@"\n')
            program.chmod(0o755)
        taken = ("SPARK", "HF_", "XDG_", "COLUMNS", "LINES", "NO_COLOR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
        path = f"{programs}:{os.environ['PATH']}"
        self._begin(
            [*prefix, "bash", "-c", line], {**kept, "HOME": str(directory), "PATH": path, **environment}, directory
        )
