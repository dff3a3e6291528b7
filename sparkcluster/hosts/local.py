"""This machine as a node, without SSH: every command in a new session."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.errors import CommandFailed, HostLost
from sparkcluster.hosts.base import LineStream, Result, Stream, check_put, timed_out
from sparkcluster.hosts.quote import put_argv, quote, shown

_FINISH_S = 5
_NOT_FOUND = 127


class LocalHost:
    """The machine that runs sparkcluster. Commands start in the home directory, as over SSH."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def python(self) -> str:
        """The interpreter of sparkcluster: with runtime ``process`` the engine is looked up beside it first."""
        return sys.executable

    @property
    def name(self) -> str:
        """The node's name in the inventory."""
        return self._name

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30) -> Result:
        """Run ``argv`` with ``stdin`` and wait for its end; CommandTimeout after ``timeout_s``."""
        process = self._start(argv)
        if isinstance(process, Result):
            return process
        with process:
            try:
                stdout, stderr = process.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                _kill_group(process)
                raise timed_out(self._name, shown(argv), f"did not end within {timeout_s:g} s") from None
            except BaseException:
                _kill_group(process)
                raise
        return Result(process.returncode, stdout, stderr)

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> Stream:
        """Start ``argv``, send it ``stdin`` and leave its input open."""
        process = self._start(argv)
        if isinstance(process, Result):
            raise CommandFailed(process.stderr.decode(), node=self._name, step=shown(argv))
        return _LocalStream(self._name, shown(argv), process, stdin)

    def put(self, content: bytes | Path, path: str, *, mode: int = 0o600) -> None:
        """Write a file atomically, its directories with it; ``~/`` is the user's home."""
        data = content.read_bytes() if isinstance(content, Path) else content
        check_put(self._name, path, self.run(put_argv(path, mode, len(data)), stdin=data, timeout_s=600))

    def close(self) -> None:
        """There is no connection."""

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes] | Result:
        quote(argv)
        try:
            return subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=Path.home() if Path.home().is_dir() else "/",
                start_new_session=True,
            )
        except OSError as error:
            # as a shell on the other side of SSH
            return Result(_NOT_FOUND, b"", f"{argv[0]}: {error.strerror}".encode())


class _LocalStream(LineStream):
    def __init__(self, name: str, task: str, process: subprocess.Popen[bytes], stdin: bytes) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("a stream needs all three pipes")
        super().__init__(name, task)
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._stderr: list[bytes] = []
        self._reader = threading.Thread(target=self._drain, args=(process.stderr.fileno(),), daemon=True)
        self._reader.start()
        self.send(stdin)

    def _drain(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(descriptor, 1 << 16):
                self._stderr.append(chunk)

    def _read(self, limit_s: float) -> bytes:
        try:
            if select.select([self._out], [], [], max(0.0, limit_s))[0]:
                return os.read(self._out.fileno(), 1 << 18)
        except (OSError, ValueError) as error:
            raise self._lost() from error
        raise TimeoutError

    def send(self, data: bytes) -> None:
        try:
            self._in.write(data)
            self._in.flush()
        except (OSError, ValueError) as error:
            raise self._lost() from error

    def _lost(self) -> HostLost:
        return HostLost(f"{self.task} on {self.name} closed its input", node=self.name, step=self.task)

    def finish(self) -> Result:
        deadline = time.monotonic() + _FINISH_S
        received = [self._rest]
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            while chunk := self._read(deadline - time.monotonic()):
                received.append(chunk)
            exit_code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            within = f"{_FINISH_S} s of the end of its input"
            raise timed_out(self.name, self.task, f"did not end within {within}") from None
        finally:
            self.close()
        return Result(exit_code, b"".join(received), b"".join(self._stderr))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()
        _kill_group(self._process)
        self._reader.join(1)
        self._out.close()
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the command and its children, SIGKILL a second later to those that are left."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
