"""This machine as a node, without SSH: each command runs in a new session."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, ClassVar

from sparkcluster.errors import CommandFailed, HostLost
from sparkcluster.hosts.base import Host, Stream, remaining_s
from sparkcluster.hosts.quote import quote, shown


class LocalHost(Host):
    """The machine that runs sparkcluster. Commands start in the home directory, as over SSH."""

    python = sys.executable

    @property
    def user(self) -> str:
        """The user who runs sparkcluster."""
        return getpass.getuser()

    def close(self) -> None:
        """Does nothing: there is no connection."""

    def _start(self, argv: Sequence[str], limit_s: float | None = None) -> Stream:
        del limit_s
        quote(argv)
        try:
            process = subprocess.Popen(
                ["sh", "-c", 'exec "$@"', "sh", *argv],  # a missing program is exit code 127, as over SSH
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,  # closing a buffered pipe waits for the thread that writes to it
                cwd=Path.home() if Path.home().is_dir() else "/",
                start_new_session=True,
            )
        except OSError as error:
            task = shown(argv)
            raise CommandFailed(
                f"{task} could not be started on {self.name}: {error.strerror}", node=self.name, step=task
            ) from error
        return _LocalStream(self.name, argv, process)


class _LocalStream(Stream):
    _broken: ClassVar = (OSError, ValueError)

    def __init__(self, name: str, argv: Sequence[str], process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("a stream needs all three pipes")
        super().__init__(name, argv)
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._reader = threading.Thread(target=self._drain, args=(process.stderr,), daemon=True)
        self._reader.start()

    def _drain(self, stderr: IO[bytes]) -> None:
        with stderr:
            while chunk := os.read(stderr.fileno(), 1 << 16):
                self._keep_stderr(chunk)

    def _read(self, limit_s: float) -> bytes:
        if select.select([self._out], [], [], max(0.0, limit_s))[0]:
            return os.read(self._out.fileno(), 1 << 18)
        raise TimeoutError

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._in.fileno(), view) :]

    def _close_input(self) -> None:
        self._in.close()

    def _ended(self, deadline: float) -> int:
        self._reader.join(remaining_s(deadline))
        try:
            exit_code = self._process.wait(remaining_s(deadline))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if self._reader.is_alive():
            raise TimeoutError
        return exit_code

    def _lost(self, error: Exception | None) -> HostLost:
        del error
        return HostLost(f"{self.task} on {self.name} closed its input", node=self.name, step=self.task)

    def close(self) -> None:
        """Make the command exit; after 1 s (2 s with ``stop``), kill its process group with SIGKILL."""
        if self._process.poll() is None:
            if self.stop:
                with contextlib.suppress(*self._broken):
                    self._write(self.stop)
            else:
                self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2 if self.stop else 1)
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
        for pipe in (self._in, self._out):
            with contextlib.suppress(*self._broken):
                pipe.close()
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group. This fails for sudo, which is root's; it exits when its input ends."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
