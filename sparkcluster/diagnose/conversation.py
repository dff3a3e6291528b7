"""A program on a node that is spoken to in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from sparkcluster.errors import CommandFailed, HostError
from sparkcluster.hosts.base import Host, Stream
from sparkcluster.hosts.fleet import Calls
from sparkcluster.hosts.program import stream


class Conversation:
    """One program on ``host``; it ends with its input.

    Args:
        host: where.
        module: which program of ``sparkcluster.node``.
        request: what it is asked.
        silence_s: how long it may say nothing.
    """

    def __init__(self, host: Host, module: str, request: dict[str, Any], *, silence_s: float) -> None:
        self.host = host
        self.module = module
        self._stream: Stream = stream(host, module, request)
        self._lines: Iterator[bytes] = self._stream.lines(silence_s)
        self._lock = threading.Lock()
        self._ended = False

    def say(self, document: dict[str, Any]) -> None:
        """Send it a line."""
        self._stream.send(json.dumps(document).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """The next document it says.

        Raises:
            CommandFailed: it ended, or said something else.
            HostError: it fell silent, or the connection broke.
        """
        line = next(self._lines, None)
        document = _document(line)
        if document is None:
            said = line.decode(errors="replace") if line else self._stream.finish().reason
            raise CommandFailed(
                f"{self.module} failed on {self.host.name}: {said}", node=self.host.name, step=self.module
            )
        return document

    def end(self) -> None:
        """Close its input and wait for its end, at most 5 s; never raises, and the second time does nothing."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        with contextlib.suppress(HostError):
            self._stream.finish()
        self._stream.close()


def end_all(conversations: Iterable[Conversation]) -> None:
    """End them at once: each has seconds to clean up after itself."""
    Calls(Conversation.end, {str(place): conversation for place, conversation in enumerate(conversations)}).wait(8)


def _document(line: bytes | None) -> dict[str, Any] | None:
    try:
        document = json.loads(line or b"")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
