"""The protocol by which every machine is reached, and what its implementations share."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from sparkcluster.errors import CommandFailed, CommandTimeout


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Exit code of a command (negative: killed by that signal) and its output in bytes."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0

    @property
    def reason(self) -> str:
        """The last line of its standard error, where programs say why they failed."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


class Stream(Protocol):
    """A running command on a node: lines of its output, until it ends or is closed."""

    def lines(self, silence_s: float) -> Iterator[bytes]:
        """Lines of its standard output without their ends, until it ends.

        Raises:
            CommandTimeout: nothing came for ``silence_s`` seconds.
            HostLost: the connection broke.
        """
        ...

    def send(self, data: bytes) -> None:
        """Write to its standard input at once; HostLost if that is closed."""
        ...

    def finish(self) -> Result:
        """Close its input, wait at most 5 s, and return its exit code and standard error."""
        ...

    def close(self) -> None:
        """End it: its input is closed and its process gets SIGHUP or SIGTERM. Never raises."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class Closing(abc.ABC):
    """What is closed at the end of its ``with`` statement."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what it uses. Never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class LineStream(Closing):
    """What all streams share: lines made of chunks. ``task`` names the command in messages."""

    def __init__(self, name: str, task: str) -> None:
        self.name = name
        self.task = task
        self._rest = b""

    @abc.abstractmethod
    def _read(self, limit_s: float) -> bytes:
        """The next chunk of standard output; empty at its end, TimeoutError after ``limit_s``."""

    def lines(self, silence_s: float) -> Iterator[bytes]:
        """Lines of its standard output, until it ends; CommandTimeout after ``silence_s`` without any."""
        while True:
            try:
                chunk = self._read(silence_s)
            except TimeoutError:
                raise timed_out(self.name, self.task, f"printed nothing for {silence_s:g} s") from None
            if not chunk:
                break
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from lines
        if self._rest:
            last, self._rest = self._rest, b""
            yield last


def timed_out(name: str, task: str, reason: str) -> CommandTimeout:
    """The error of a command that did not do something in time."""
    return CommandTimeout(f"{task} on {name} {reason}", node=name, step=task)


def check_put(name: str, path: str, result: Result) -> None:
    """Raise CommandFailed if ``result``, of ``quote.put_argv``, did not write the file."""
    if not result.ok:
        raise CommandFailed(f"{path} could not be written on {name}: {result.reason}", node=name, step="put")


class Host(Protocol):
    """A machine that commands can be run on. One connection, made at first use; safe for threads.

    Every method raises a HostError that names the node.
    """

    @property
    def name(self) -> str:
        """The node's name in the inventory."""
        ...

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30) -> Result:
        """Run ``argv`` with ``stdin`` and wait for its end; CommandTimeout after ``timeout_s``."""
        ...

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> Stream:
        """Start ``argv``, send it ``stdin`` and leave its input open."""
        ...

    def put(self, content: bytes | Path, path: str, *, mode: int = 0o600) -> None:
        """Write a file atomically; ``~/`` at the start of ``path`` is the user's home there."""
        ...

    def close(self) -> None:
        """Close the connection. Never raises."""
        ...
