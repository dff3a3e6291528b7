"""Log lines of several nodes as one log, in the order of time. Pure; time is passed in."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterable, Sequence

# A line of another node is on its way for less: a batch of the watch program and the round trip of a LAN or WiFi.
HOLD_S = 0.3
# Lines that are held at most, some hundreds of bytes each.
MOST = 200_000


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log.

    Attributes:
        at_s: when it was logged, in seconds since 1970 by this machine's clock; None where its runtime keeps no times.
        own: whether it is a message of this program about the node, not a line of the log.
    """

    node: str
    text: str
    at_s: float | None = None
    own: bool = False


class Merge:
    """Orders the lines of ``nodes`` by time.

    Until every node has sent the lines that it had, all are held; later each for ``HOLD_S`` at most. Lines of one node
    keep their order; those without a time have that of the line before.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._behind = set(nodes)
        self._last = dict.fromkeys(self._behind, 0.0)
        self._heap: list[tuple[float, int, LogLine]] = []
        self._arrived: collections.deque[tuple[float, float]] = collections.deque()
        self._numbers = itertools.count()

    def add(self, lines: Sequence[LogLine], now: float, wall_s: float) -> None:
        """Take in lines of one node; ``wall_s`` is the time of lines without one once the node is up to date."""
        for line in lines:
            at = line.at_s
            if at is None:
                at = 0.0 if line.node in self._behind else wall_s
            at = self._last[line.node] = max(self._last.get(line.node, 0.0), at)
            heapq.heappush(self._heap, (at, next(self._numbers), line))
            self._arrived.append((now, at))

    def caught_up(self, node: str) -> None:
        """``node`` has sent the lines that it had, or sends none."""
        self._behind.discard(node)

    def all_caught_up(self) -> None:
        """Wait for the lines of no node any longer."""
        self._behind.clear()

    @property
    def holds(self) -> bool:
        """Whether lines are held."""
        return bool(self._heap)

    def due(self, now: float) -> list[LogLine]:
        """The lines to show at the monotonic time ``now``, in order."""
        until = -math.inf
        if len(self._heap) > MOST:
            until = math.inf
        elif not self._behind:
            while self._arrived and self._arrived[0][0] <= now - HOLD_S:
                until = max(until, self._arrived.popleft()[1])
        return self._up_to(until)

    def rest(self) -> list[LogLine]:
        """All lines that are held, in order."""
        return self._up_to(math.inf)

    def _up_to(self, until: float) -> list[LogLine]:
        lines = []
        while self._heap and self._heap[0][0] <= until:
            lines.append(heapq.heappop(self._heap)[2])
        if not self._heap:
            self._arrived.clear()
        return lines
