"""Events of the watch program, as nodes report them."""

from __future__ import annotations

from typing import Any

from sparkcluster.errors import HostError
from sparkcluster.runtime.watching import Available, Event, WatchReport


def lines(node: str, rank: str, found: tuple[str, ...], times: tuple[float, ...] = ()) -> Event:
    """Lines of a log."""
    return Event(node, WatchReport(rank=rank, lines=found, times=times))


def tick(node: str, states: dict[str, Any], *, links: dict[str, bool] | None = None, listening: bool = False) -> Event:
    """A sign of life."""
    return Event(node, WatchReport(states=states, links=links or {}, listening=listening))


def memory(node: str, before: int, lowest: int, now: int) -> Event:
    """A sign of life with MemAvailable in bytes."""
    return Event(node, WatchReport(memory=Available(before=before, lowest=lowest, now=now)))


def gone(node: str, error: HostError) -> Event:
    """The end of it."""
    return Event(node, gone=error, over=True)
