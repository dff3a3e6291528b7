"""Shows an answer while it streams, and its last line; for ``ask`` and its chat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkcluster.cli.output import data, log_colours, message, paint, write
from sparkcluster.printable import LINES

if TYPE_CHECKING:
    from sparkcluster.cli.progress import Shown
    from sparkcluster.endpoint.ask import Show
    from sparkcluster.facts.running import Reply


def writer(waiting: Shown) -> Show:
    """A function that writes an answer while it streams: content to stdout, reasoning dimmed to stderr."""
    last = sys.stdout

    def show(kind: str, text: str) -> None:
        nonlocal last
        waiting.end()
        stream, parts = (sys.stderr, [paint(text, "dim")]) if kind == "reasoning" else (sys.stdout, log_colours(text))
        if last is sys.stderr and stream is sys.stdout:
            message()
        write(stream, *parts, end="", keep=LINES)
        stream.flush()
        last = stream

    return show


def tell_end(reply: Reply) -> None:
    """End the answer's line; show its speed, and whether the token limit cut it off."""
    from sparkcluster.inspect.ask import cut, speed

    data()
    message(paint(speed(reply), "dim"))
    if (said := cut(reply)) is not None:
        message(said)


def valid(text: str) -> str:
    """``text`` without bytes that the locale could not decode."""
    return text.encode(errors="replace").decode()
