"""Programs on nodes that are spoken to in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from typing import Any, TypeVar

from sparkcluster.answers import checked
from sparkcluster.errors import CommandFailed, HostError
from sparkcluster.hosts.base import DOCUMENT_BYTES, Closing, Host, Stream
from sparkcluster.hosts.fleet import Calls
from sparkcluster.hosts.program import document, full_disk, stream
from sparkcluster.printable import one_line

T = TypeVar("T")


class Conversation(Closing):
    """The program ``module`` of ``sparkcluster.node`` on ``host``; it ends with its input.

    ``silence_s`` is how long it may print nothing, ``within_s`` how long it may take in all, from the first answer that
    is waited for.
    """

    def __init__(
        self, host: Host, module: str, request: dict[str, Any], *, silence_s: float, within_s: float = math.inf
    ) -> None:
        self.host = host
        self.module = module
        self.stream: Stream = stream(host, module, request)
        self._lines: Iterator[bytes] = self.stream.lines(silence_s, line_bytes=DOCUMENT_BYTES, within_s=within_s)

    def say(self, request: dict[str, Any]) -> None:
        """Send it a line."""
        self.stream.send(json.dumps(request).encode() + b"\n")

    def answer(self, kind: type[T]) -> T:
        """The next document that it prints, as ``kind``.

        Raises:
            CommandFailed: it ended, or printed something else than a ``kind``.
            HostError: it printed nothing for too long, took too long, or the connection broke.
        """
        line = next(self._lines, b"")
        found = document(line)
        if found is None:
            reason = one_line(line[:500].decode(errors="replace")) or self.stream.finish().reason
            text = f"{self.module} failed on {self.host.name}: {reason}"
            hint = full_disk(self.host, reason)
            raise CommandFailed(text, node=self.host.name, step=self.module, hint=hint)
        return checked(kind, found, node=self.host.name, step=self.module)

    def close(self) -> None:
        """Close its input and wait for its end, at most 5 s; never raises, and the second time does nothing."""
        with contextlib.suppress(HostError):
            self.stream.finish()
        self.stream.close()


class Conversations(Closing):
    """The program ``module`` on several nodes; all end with the block, also after an error or Ctrl-C."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.closed = False
        self._started: list[Conversation] = []

    def start(
        self, host: Host, request: dict[str, Any], *, silence_s: float, within_s: float = math.inf
    ) -> Conversation:
        """Start it on ``host``; HostError once this is closed."""
        if self.closed:
            raise HostError(f"{self.module} was stopped", node=host.name, step=self.module)
        conversation = Conversation(host, self.module, request, silence_s=silence_s, within_s=within_s)
        self._started.append(conversation)
        return conversation

    def close(self) -> None:
        """End them at once: each has seconds to clean up after itself."""
        self.closed = True
        started = {str(place): conversation for place, conversation in enumerate(self._started)}
        Calls(Conversation.close, started).wait(8)
