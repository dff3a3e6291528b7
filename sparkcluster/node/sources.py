"""From which node a worker pulls, by which of its addresses, and when it goes on with the next one.

A node is left where all ways to it broke, where it has had nothing new for long, or where what it sends is corrupt.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from sparkcluster.node.shared import MOST_NAMED

SILENT_S = 5.0
"""A connection on which nothing comes for so long is broken."""
STREAMS = 4
_EMPTY_S, _LEAVE_S = 10.0, 30.0  # in which nothing moved: then another node is asked; and then by another network
_AGAIN_S = 5.0  # before nodes that failed are dialled again, where none is left
_CORRUPT = 2  # files with another SHA-256 from one node, one after the other, until it is left


class Way(NamedTuple):
    """An address of a node, and what its listener there knows."""

    node: str
    address: str
    port: int
    token: str
    cert: str | None


def way(node: str, document: dict[str, Any]) -> Way:
    """A way in an order."""
    return Way(node, document["address"], document["port"], document["token"], document.get("cert"))


class Source(NamedTuple):
    """A node to pull from over one medium, by all of its ways at once."""

    node: str
    medium: str | None
    ways: list[Way]


class Sources:
    """The nodes to pull from, in order of preference, and which of their ways work.

    Attributes:
        current, medium: the node that is pulled from, and over what; None while none works.
        given: all of them.
        turned: when another one was taken last.
    """

    def __init__(self) -> None:
        self.current: str | None = None
        self.medium: str | None = None
        self.given: list[Source] = []
        self.turned = 0.0
        self._order: list[Source] = []  # the first is pulled from
        self._ways: list[Way] = []
        self._left: list[dict[str, Any]] = []
        self._bad: dict[Way, dict[str, Any]] = {}
        self._corrupt: dict[str, int] = {}
        self._lock = threading.Lock()

    def set(self, order: list[dict[str, Any]]) -> None:
        """Pull from these from now on; what failed to connect before counts no longer."""
        with self._lock:
            self.given = [
                Source(each["node"], each.get("medium"), [way(each["node"], one) for one in each["ways"]])
                for each in order
            ]
            self._left = []
            self._begin()

    def _begin(self) -> None:
        """Pull from the first again that works."""
        self._bad, self._order = {}, self.given
        self._turn()

    def _turn(self) -> None:
        """Pull from the next one that is left."""
        self.turned = time.monotonic()
        for _ in self._order:
            self.current, self.medium, ways = self._order[0]
            self._ways = [each for each in ways if each not in self._bad]
            if self._ways and self._corrupt.get(self.current, 0) < _CORRUPT:
                return
            self._order = [*self._order[1:], self._order[0]]
        self.current, self.medium, self._ways = None, None, []

    def pick(self, stream: int) -> Way | None:
        """The way for a stream, which are spread over the ways of the node; None for one that is not needed."""
        with self._lock:
            if self.current is None and time.monotonic() - self.turned > _AGAIN_S:
                self._begin()
            ways = self._ways
            if not ways or stream >= (3 if len(ways) == 1 else min(STREAMS, 2 * len(ways))):
                return None
            return ways[stream % len(ways)]

    def failed(self, to: Way, why: str) -> None:
        """A way broke; a node without any other is left."""
        with self._lock:
            if to not in self._ways:
                return
            gone = {"node": to.node, "why": why[:500]}
            self._bad[to] = {**gone, "address": to.address}
            self._ways = [each for each in self._ways if each != to]
            if not self._ways:
                self._leave(gone)

    def empty(self, node: str, moved: float) -> None:
        """A node has nothing new, and nothing ``moved`` there since (``time.monotonic``): the next one is asked."""
        with self._lock:
            if node != self.current or len(self._order) < 2:
                return
            quiet_s = time.monotonic() - max(moved, self.turned)
            if quiet_s > (_EMPTY_S if self._order[1].medium == self.medium else _LEAVE_S):
                self._bad, self._order = {}, [*self._order[1:], self._order[0]]  # who failed before may be back
                self._leave({"node": node, "why": "%s had nothing new for %.0f s" % (node, quiet_s)})

    def corrupt(self, node: str) -> None:
        """A file from ``node`` has another SHA-256; after the second one it is left for this job."""
        with self._lock:
            self._corrupt[node] = self._corrupt.get(node, 0) + 1
            if self._corrupt[node] == _CORRUPT and node == self.current:
                self._leave({"node": node, "why": "its files arrive with another SHA-256"})

    def _leave(self, gone: dict[str, Any]) -> None:
        self._turn()
        self._left = [*self._left, gone][-MOST_NAMED:]

    def right(self, node: str) -> None:
        """A file from ``node`` has the right SHA-256."""
        with self._lock:
            if self._corrupt.get(node, 0) < _CORRUPT:
                self._corrupt.pop(node, None)

    def left(self, *, over: bool = False) -> list[dict[str, Any]]:
        """Nodes that were left, and why; and an ``address`` of one that sends by others.

        A node that fails loses all its ways within ``SILENT_S``: one is named after that, or when all is ``over``.
        """
        with self._lock:
            settled = over or time.monotonic() - self.turned > SILENT_S
            ways = [gone for to, gone in self._bad.items() if to.node == self.current] if settled else []
            return [*self._left, *ways][-MOST_NAMED:]

    def all_corrupt(self) -> bool:
        """Whether no node is left, since what they send is corrupt."""
        with self._lock:
            return all(self._corrupt.get(source.node, 0) >= _CORRUPT for source in self.given)
