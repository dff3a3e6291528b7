"""Selects the node and address that a worker pulls from, and when to switch to the next.

A node is abandoned if all connections to it broke, if it has had nothing new for long, or if its files are corrupt.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from sparkcluster.node.shared import MOST_NAMED

SILENT_S = 5.0
"""A connection that is silent for this long is considered broken."""
STREAMS = 4
_EMPTY_S, _LEAVE_S = 10.0, 30.0  # without progress, before another node is tried; before another network is tried
_RETRY_S = 5.0  # before failed nodes are retried, if no other is left
_CORRUPT = 2  # successive files with a wrong SHA-256 from a node before it is abandoned


class Way(NamedTuple):
    """An address of a node, with the credentials of its listener."""

    node: str
    address: str
    port: int
    token: str
    cert: str | None


def way(node: str, document: dict[str, Any]) -> Way:
    """The ``Way`` in an order."""
    return Way(node, document["address"], document["port"], document["token"], document.get("cert"))


class Source(NamedTuple):
    """A node to pull from over one medium, on all its addresses at the same time."""

    node: str
    medium: str | None
    ways: list[Way]


class Sources:
    """The nodes to pull from, in order of preference, and which of their addresses work.

    Attributes:
        current, medium: the node in use and its medium; None while none works.
        given: all sources.
        turned: when the source was last switched.
    """

    def __init__(self) -> None:
        self.current: str | None = None
        self.medium: str | None = None
        self.given: list[Source] = []
        self.turned = 0.0
        self._order: list[Source] = []  # the first is in use
        self._ways: list[Way] = []
        self._left: list[dict[str, Any]] = []
        self._bad: dict[Way, dict[str, Any]] = {}
        self._corrupt: dict[str, int] = {}
        self._lock = threading.Lock()

    def set(self, order: list[dict[str, Any]]) -> None:
        """Use these sources from now on; earlier connection failures are forgotten."""
        with self._lock:
            self.given = [
                Source(each["node"], each.get("medium"), [way(each["node"], one) for one in each["ways"]])
                for each in order
            ]
            self._left = []
            self._begin()

    def _begin(self) -> None:
        """Start again with the first source that works."""
        self._bad, self._order = {}, self.given
        self._turn()

    def _turn(self) -> None:
        """Switch to the next source that works."""
        self.turned = time.monotonic()
        for _ in self._order:
            self.current, self.medium, ways = self._order[0]
            self._ways = [each for each in ways if each not in self._bad]
            if self._ways and self._corrupt.get(self.current, 0) < _CORRUPT:
                return
            self._order = [*self._order[1:], self._order[0]]
        self.current, self.medium, self._ways = None, None, []

    def pick(self, stream: int) -> Way | None:
        """The address for a stream; streams are spread over the node's addresses. None if the stream is not needed."""
        with self._lock:
            if self.current is None and time.monotonic() - self.turned > _RETRY_S:
                self._begin()
            ways = self._ways
            if not ways or stream >= (3 if len(ways) == 1 else min(STREAMS, 2 * len(ways))):
                return None
            return ways[stream % len(ways)]

    def failed(self, to: Way, why: str) -> None:
        """Record that a connection broke; a node without another is abandoned."""
        with self._lock:
            if to not in self._ways:
                return
            gone = {"node": to.node, "why": why[:500]}
            self._bad[to] = {**gone, "address": to.address}
            self._ways = [each for each in self._ways if each != to]
            if not self._ways:
                self._leave(gone)

    def empty(self, node: str, moved: float) -> None:
        """Switch to the next node if this one has nothing new, and has made no progress since ``moved`` (monotonic)."""
        with self._lock:
            if node != self.current or len(self._order) < 2:
                return
            quiet_s = time.monotonic() - max(moved, self.turned)
            if quiet_s > (_EMPTY_S if self._order[1].medium == self.medium else _LEAVE_S):
                self._bad, self._order = {}, [*self._order[1:], self._order[0]]  # failed nodes may work again
                self._leave({"node": node, "why": "%s had nothing new for %.0f s" % (node, quiet_s)})

    def corrupt(self, node: str) -> None:
        """Record a wrong SHA-256 from ``node``; after the second one the node is abandoned for this job."""
        with self._lock:
            self._corrupt[node] = self._corrupt.get(node, 0) + 1
            if self._corrupt[node] == _CORRUPT and node == self.current:
                self._leave({"node": node, "why": "its files arrive with a wrong SHA-256"})

    def _leave(self, gone: dict[str, Any]) -> None:
        self._turn()
        self._left = [*self._left, gone][-MOST_NAMED:]

    def right(self, node: str) -> None:
        """Record a correct file from ``node``."""
        with self._lock:
            if self._corrupt.get(node, 0) < _CORRUPT:
                self._corrupt.pop(node, None)

    def left(self, *, over: bool = False) -> list[dict[str, Any]]:
        """Nodes that were abandoned, with the reason; and failed addresses of a node that is still in use.

        A failing node loses all its connections within ``SILENT_S``: an address is reported after that, or if ``over``.
        """
        with self._lock:
            settled = over or time.monotonic() - self.turned > SILENT_S
            ways = [gone for to, gone in self._bad.items() if to.node == self.current] if settled else []
            return [*self._left, *ways][-MOST_NAMED:]

    def all_corrupt(self) -> bool:
        """Whether all sources were abandoned for corrupt files."""
        with self._lock:
            return all(self._corrupt.get(source.node, 0) >= _CORRUPT for source in self.given)
