"""The one protocol by which a machine is reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a command came to: its exit code (negative: killed by that signal) and its output in bytes."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0


class Stream(Protocol):
    """A command that runs on a node, line by line, until it ends or is closed."""

    def lines(self, silence_s: float) -> Iterator[bytes]:
        """Lines of its standard output without their ends, until it ends.

        Raises:
            CommandTimeout: nothing came for ``silence_s`` seconds.
            HostLost: the connection broke.
        """
        ...

    def send(self, data: bytes) -> None:
        """Write to its standard input at once; HostLost where nobody reads any more."""
        ...

    def finish(self) -> Result:
        """Close its input, wait at most 5 s, and return its exit code and standard error."""
        ...

    def close(self) -> None:
        """End it: its input is closed and its process gets SIGHUP or SIGTERM. Never raises."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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
        """Let go of the connection. Never raises."""
        ...
