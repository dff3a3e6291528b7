"""The interface of a machine (``Host``) and of a command running on it (``Stream``)."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

from sparkcluster.errors import CommandFailed, CommandTimeout, HostLost
from sparkcluster.hosts.quote import shown

# Limits on the output of a command, on a line that is a document, and on any other line; a command that exceeds one is
# ended.
OUTPUT_BYTES, DOCUMENT_BYTES, LINE_BYTES = 64_000_000, 16_000_000, 1_000_000
SILENT_S = 60.0
"""A node that is silent for longer is treated as lost; a node releases a lease that gets no heartbeat for longer."""
STDERR_BYTES = 1 << 16  # only the last bytes are kept
_REASON_CHARACTERS = 500
_FINISH_S = 5
_INLINE = 1 << 14  # input this short fits into the pipe: sending it cannot block


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Exit code of a command (negative: killed by that signal) and its output as bytes."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0

    @property
    def reason(self) -> str:
        """The last line of standard error, where programs say why they failed."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1][:_REASON_CHARACTERS] if lines else "no output"


def remaining_s(deadline: float) -> float:
    """Seconds until ``deadline``, at least 0.05: many functions take 0 as no limit."""
    return max(0.05, deadline - time.monotonic())


class Closing(abc.ABC):
    """A context manager that calls ``close`` at its end."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources. Never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Stream(Closing):
    """A running command on a node; closing it sends ``stop``, or else SIGTERM and a second later SIGKILL."""

    _broken: ClassVar[tuple[type[Exception], ...]]
    """Exceptions that reading and writing raise if the connection or pipe is closed."""
    stop = b""
    """Input that makes the command exit, if signals cannot reach it because it runs as another user."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self.task = shown(argv)
        self._unread = bytearray()
        self._stderr = bytearray()

    @abc.abstractmethod
    def _read(self, limit_s: float) -> bytes:
        """The next chunk of standard output, empty at its end; TimeoutError after ``limit_s``."""

    @abc.abstractmethod
    def _write(self, data: bytes) -> None:
        """Write to standard input."""

    @abc.abstractmethod
    def _close_input(self) -> None:
        """Close standard input."""

    @abc.abstractmethod
    def _ended(self, deadline: float) -> int:
        """The exit code, once standard output and standard error have ended; TimeoutError after ``deadline``."""

    @abc.abstractmethod
    def _lost(self, error: Exception | None) -> HostLost:
        """The error for a lost connection or a closed pipe."""

    def lines(self, silence_s: float, *, line_bytes: int = LINE_BYTES, within_s: float = math.inf) -> Iterator[bytes]:
        """Lines of standard output, without newlines, until it ends.

        Raises:
            CommandTimeout: no complete line for ``silence_s`` seconds, or the output did not end within ``within_s``.
            CommandFailed: a line is longer than ``line_bytes``.
            HostLost: the connection broke.
        """
        end = time.monotonic() + within_s
        while True:
            until = min(time.monotonic() + silence_s, end)
            try:
                while (chunk := self._chunk(until)) and b"\n" not in chunk:
                    self._keep_unread(chunk, line_bytes)
            except TimeoutError:
                silent = "printed no complete line" if self._unread else "printed nothing"
                raise self._late(
                    f"did not end within {within_s:g} s" if until == end else f"{silent} for {silence_s:g} s"
                ) from None
            self._unread += chunk
            *lines, self._unread = self._unread.split(b"\n")
            yield from map(bytes, lines)
            if not chunk:
                break
        if self._unread:
            last, self._unread = bytes(self._unread), bytearray()
            yield last

    def send(self, data: bytes) -> None:
        """Write to standard input; HostLost if it is closed."""
        try:
            self._write(data)
        except TimeoutError:
            raise self._late("does not read its input") from None
        except self._broken as error:
            raise self._lost(error) from error

    def finish(self) -> Result:
        """Close the input and wait at most 5 s for the command to exit; return exit code and remaining output."""
        deadline = time.monotonic() + _FINISH_S
        with contextlib.suppress(*self._broken):
            self._close_input()
        return self._until_end(deadline, f"{_FINISH_S} s of the end of its input")

    def run(self, stdin: bytes, timeout_s: float) -> Result:
        """Send ``stdin``, read the output, and wait for the command to exit; CommandTimeout after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s

        def feed() -> None:
            # A command may exit without reading its input; its exit code counts then.
            with contextlib.suppress(*self._broken):
                self._write(stdin)
                self._close_input()

        if len(stdin) <= _INLINE:
            feed()
        else:
            threading.Thread(target=feed, daemon=True).start()
        return self._until_end(deadline, f"{timeout_s:g} s")

    def _until_end(self, deadline: float, within: str) -> Result:
        with self:
            try:
                while chunk := self._chunk(deadline):
                    self._keep_unread(chunk, OUTPUT_BYTES)
                exit_code = self._ended(deadline)
            except TimeoutError:
                raise self._late(f"did not end within {within}") from None
        return Result(exit_code, bytes(self._unread), bytes(self._stderr))

    def _chunk(self, deadline: float) -> bytes:
        try:
            chunk = self._read(remaining_s(deadline))
        except TimeoutError:
            raise
        except self._broken as error:
            raise self._lost(error) from error
        if chunk and time.monotonic() > deadline:
            raise TimeoutError
        return chunk

    def _keep_unread(self, chunk: bytes, most: int) -> None:
        """Buffer output that is not passed on yet; above ``most`` bytes, end the command and raise CommandFailed."""
        self._unread += chunk
        if len(self._unread) > most:
            self._unread.clear()
            self.close()
            what = "output" if most == OUTPUT_BYTES else "a line"
            raise CommandFailed(
                f"{self.task} on {self.name} printed {what} of more than {most / 1e6:g} MB",
                node=self.name,
                step=self.task,
            )

    def _keep_stderr(self, chunk: bytes) -> None:
        self._stderr += chunk
        del self._stderr[:-STDERR_BYTES]

    def _late(self, reason: str) -> CommandTimeout:
        return CommandTimeout(f"{self.task} on {self.name} {reason}", node=self.name, step=self.task)


class Host(Closing):
    """A machine that runs commands; ``name`` is the name of the node in the inventory.

    It opens one connection, at first use. Thread-safe. Every method raises a HostError that names the node.
    """

    python: str | None = None
    """With runtime ``process``: the interpreter to look for the engine in, if the inventory names none."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abc.abstractmethod
    def user(self) -> str:
        """The user that commands run as."""

    @abc.abstractmethod
    def _start(self, argv: Sequence[str], limit_s: float | None = None) -> Stream:
        """Start ``argv`` within ``limit_s``; default: the connect timeout."""

    def separate_connection(self) -> Host:
        """The same machine over a separate connection, which the caller closes; itself if there is no connection."""
        return self

    def renew(self) -> None:
        """Close the connection, or forget that connecting failed: the next command connects again."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30) -> Result:
        """Run ``argv`` with ``stdin`` and wait for it to exit; CommandTimeout after ``timeout_s``."""
        return self._start(argv, timeout_s).run(stdin, timeout_s)

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> Stream:
        """Start ``argv``, send it ``stdin`` and leave its standard input open."""
        stream = self._start(argv)
        stream.send(stdin)
        return stream
