"""Receives what a worker lacks from other workers, in several streams.

Each stream takes the next file of the list that nobody receives, of small ones many at once, and wants it of the node
to pull from. A file of which that has nothing more is passed over, and wanted again later. Where the node says nothing
for 5 s, or its connection breaks, all streams go on with the next node of the list, each at its offset.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, NamedTuple

from sparkcluster.node import pieces, wire
from sparkcluster.node.growing_file import Store, Window
from sparkcluster.node.serve import Gate
from sparkcluster.node.shared import MOST_NAMED
from sparkcluster.node.tls import Identity
from sparkcluster.node.wire import CHUNK, INVALID, Failed

STALL_S = 5.0
_DIAL_S = 4.0
_BATCH_BYTES = 4 << 20
_PAUSE_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # before the list is wanted again of a node that has nothing of it
_AGAIN_S = 5.0  # before nodes that failed are dialled again, where none is left
_FRESH_S = 1.0  # before a corrupt file is wanted again: the node before this one receives it again, too
_CORRUPT = 2  # files with another SHA-256 from one node, one after the other, until it is left
_LACKS, _TAKEN, _HAS = 1, 2, 0


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


def dial(to: Way, identity: Identity | None, limit_s: float, name: str = "") -> pieces.Follower:
    """A connection to a worker, which is told the ``name`` of this node."""
    sock = wire.dial(to.address, to.port, to.token, limit_s=limit_s)
    if to.cert is not None:
        if identity is None:
            sock.close()
            raise Failed("link", "cannot connect to %s: this node has no certificate" % to.address)
        sock = identity.dial(sock, to.cert)
    line = pieces.Follower(sock, STALL_S)
    line.introduce(name)
    return line


class Sources:
    """The nodes to pull from, nearest first, each with its ways, and which of them work.

    Attributes:
        current: the node that is pulled from.
    """

    def __init__(self) -> None:
        self.current: str | None = None
        self.order: list[tuple[str, list[Way]]] = []
        self._left: list[dict[str, Any]] = []
        self._bad: dict[Way, tuple[float, dict[str, Any]]] = {}
        self._bad_nodes: dict[str, str] = {}
        self._corrupt: dict[str, int] = {}
        self._none_since: float | None = None
        self._lock = threading.Lock()

    def set(self, order: list[dict[str, Any]]) -> None:
        """Pull from these from now on; what failed before counts no longer."""
        with self._lock:
            self.order = [(each["node"], [way(each["node"], one) for one in each["ways"]]) for each in order]
            self._bad, self._bad_nodes, self._left, self._none_since = {}, {}, [], None
            self._turn()

    def _turn(self) -> None:
        """The first that is left; where there is none, all of them again after a while."""
        for node, ways in self.order:
            if node not in self._bad_nodes and any(each not in self._bad for each in ways):
                self.current, self._none_since = node, None
                return
        self.current = None
        self._none_since = self._none_since or time.monotonic()

    def pick(self, stream: int) -> Way | None:
        """The way for a stream, which are spread over the ways of the node; None for one that is not needed."""
        with self._lock:
            if self.current is None and self.order and time.monotonic() - (self._none_since or 0) > _AGAIN_S:
                self._bad, self._none_since = {}, None
                self._bad_nodes = {node: why for node, why in self._bad_nodes.items() if why == "hash"}
                self._turn()
            ways = [each for node, all_ways in self.order if node == self.current for each in all_ways]
            ways = [each for each in ways if each not in self._bad]
            if not ways or stream >= (3 if len(ways) == 1 else min(4, 2 * len(ways))):
                return None
            return ways[stream % len(ways)]

    def failed(self, to: Way, why: str, offset: int) -> None:
        """A way broke; a node without any other is left."""
        with self._lock:
            gone = {"node": to.node, "why": why[:500], "offset": offset}
            self._bad.setdefault(to, (time.monotonic(), {**gone, "address": to.address}))
            if to.node == self.current:
                self._turn()
                if to.node != self.current:
                    self._left = [*self._left, gone][-MOST_NAMED:]

    def left(self, *, over: bool = False) -> list[dict[str, Any]]:
        """Nodes that were left, why, and at how many bytes; and an ``address`` of one that sends by others.

        A node that fails loses all its ways within ``STALL_S``: one is named after that, or when all is ``over``.
        """
        with self._lock:
            until = time.monotonic() - (0.0 if over else STALL_S)
            ways = [gone for to, (at, gone) in self._bad.items() if to.node == self.current and at <= until]
            return [*self._left, *ways][-MOST_NAMED:]

    def right(self, node: str) -> None:
        """A file from ``node`` has the right SHA-256."""
        self._corrupt.pop(node, None)

    def corrupt(self, node: str, offset: int) -> None:
        """A file from ``node`` has another SHA-256; after the second one it is left for this job."""
        with self._lock:
            self._corrupt[node] = self._corrupt.get(node, 0) + 1
            if self._corrupt[node] >= _CORRUPT and node not in self._bad_nodes:
                self._bad_nodes[node] = "hash"
                why = "its files arrive with another SHA-256"
                self._left = [*self._left, {"node": node, "why": why, "offset": offset}][-MOST_NAMED:]
                self._turn()

    def all_corrupt(self) -> bool:
        """Whether no node is left, since what they send is corrupt."""
        with self._lock:
            return bool(self.order) and all(self._bad_nodes.get(node) == "hash" for node, _ in self.order)


class Receiver:
    """Receives what ``store`` lacks from ``sources``, in threads.

    Attributes:
        received: bytes that arrived.
        first, last: when the first and the last of them came.
        wrong: files that arrived with another SHA-256, from whom, and that.
        error: why it cannot go on.
    """

    def __init__(self, store: Store, gate: Gate, identity: Identity | None, name: str) -> None:
        self.sources = Sources()
        self.received = 0
        self.first = self.last = 0.0
        self.wrong: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._store = store
        self._gate = gate
        self._identity = identity
        self._name = name
        self._lock = threading.Lock()
        self._state = bytearray()
        for number in store.missing():
            self._state += bytes(number - len(self._state)) + bytes([_LACKS])
        self._lacking = self._state.count(_LACKS)
        self._later: dict[int, float] = {}
        self._nodes: list[str] = []
        self._from = bytearray(len(self._state))  # who sent each file, as a place in _nodes

    def start(self) -> None:
        """Begin; nothing moves before ``sources`` are set."""
        for stream in range(self._store.streams):
            threading.Thread(target=self._run, args=(stream,), daemon=True).start()

    def lacking(self) -> int:
        """How many files have not arrived."""
        return self._lacking

    def waiting(self) -> str:
        """The first file that has not arrived."""
        number = max(self._state.find(_LACKS), self._state.find(_TAKEN))
        return self._store.name(number) if number >= 0 else "the SHA-256 of what arrived"

    def again(self, number: int, sha256: str) -> None:
        """A file that arrived is wrong, as is known by now."""
        with self._lock:
            self._lacking += 1
        self._is_wrong(number, self._nodes[self._from[number]], sha256)

    def _run(self, stream: int) -> None:
        try:
            while not self._gate.over:
                self._gate.wait()
                to = self.sources.pick(stream) if self._lacking else None
                if to is None:
                    time.sleep(0.1)
                    continue
                try:
                    with contextlib.closing(dial(to, self._identity, _DIAL_S, self._name)) as line:
                        self._pull(line, to, stream)
                except Failed as error:
                    if error.kind != "link":
                        raise
                    self.sources.failed(to, str(error), self._store.have())
        except Exception as error:
            if not self._gate.over:
                self.error = self.error or error

    def _pull(self, line: pieces.Follower, to: Way, stream: int) -> None:
        """Receive what is missing, as long as it is to come by this way."""
        cursor, fruitless, pauses = 0, False, 0
        while self._lacking and self.sources.pick(stream) == to:
            self._gate.wait()
            numbers = self._take(cursor)
            if not numbers:
                if cursor == 0 or fruitless:
                    time.sleep(_PAUSE_S[min(pauses, len(_PAUSE_S) - 1)])
                    pauses += 1
                cursor, fruitless = 0, True
                continue
            cursor = numbers[-1] + 1
            before = self.received
            try:
                self._receive(line, to, numbers)
            finally:
                self._give_back(numbers)
            if self.received != before:
                fruitless, pauses = False, 0

    def _take(self, cursor: int) -> list[int]:
        """The next file from ``cursor`` on that nobody receives, with others if it is small; none at the end."""
        with self._lock:
            now = time.monotonic()
            taken: list[int] = []
            total = 0
            number = cursor - 1
            while len(taken) < pieces.MOST_WANTED:
                number = self._state.find(_LACKS, number + 1)
                if number < 0:
                    break
                if self._later.get(number, 0.0) > now:
                    continue
                size = self._store.size(number)
                if size is None or size > CHUNK:
                    if not taken:
                        taken = [number]
                    break
                if taken and total + size > _BATCH_BYTES:
                    break
                total += size
                taken.append(number)
            for each in taken:
                self._state[each] = _TAKEN
            return taken

    def _give_back(self, numbers: list[int]) -> None:
        with self._lock:
            for number in numbers:
                if self._state[number] == _TAKEN:
                    self._state[number] = _LACKS

    def _got(self, number: int, node: str, wrong: str) -> None:
        """A file arrived."""
        if wrong:
            self._is_wrong(number, node, wrong)
            return
        self.sources.right(node)
        with self._lock:
            if node not in self._nodes:
                self._nodes.append(node)
            self._from[number] = self._nodes.index(node) & 0xFF
            self._state[number] = _HAS
            self._lacking -= 1

    def _is_wrong(self, number: int, node: str, sha256: str) -> None:
        with self._lock:
            self.wrong = [*self.wrong, {"file": number, "from": node, "sha256": sha256}][-MOST_NAMED:]
            self._later[number] = time.monotonic() + _FRESH_S
            self._state[number] = _LACKS
        self.sources.corrupt(node, self._store.have())
        if self.sources.all_corrupt():
            text = "%s arrived with another SHA-256 than it should have, from every node"
            raise Failed("hash", text % self._store.name(number))

    def _count(self, size: int) -> None:
        with self._lock:
            self.received += size
            self.last = time.monotonic()
            self.first = self.first or self.last

    def _receive(self, line: pieces.Follower, to: Way, numbers: list[int]) -> None:
        size = self._store.size(numbers[0])
        if size is None or size > CHUNK:
            self._large(line, to, numbers[0])
            return
        empty = [number for number in numbers if self._store.size(number) == 0]
        for number in empty:
            self._got(number, to.node, self._store.take(number, b""))
        wanted = [number for number in numbers if self._store.size(number)]
        if wanted:
            line.want([(number, 0) for number in wanted])
        for number in wanted:
            size = line.piece(number, 0)
            if size == pieces.NOTHING:
                continue
            if size != self._store.size(number):
                raise Failed("link", INVALID)
            data = line.read(size)
            self._gate.wait()
            self._count(size)
            self._got(number, to.node, self._store.take(number, data))

    def _large(self, line: pieces.Follower, to: Way, number: int) -> None:
        writing = self._store.write(number)
        begun = writing.at
        try:
            if writing.at != writing.size:
                self._free(line, number)
                line.want([(number, writing.at)])
            buffer = memoryview(bytearray(CHUNK))
            while writing.at != writing.size:
                while not writing.ready():
                    self._free(line, number)  # tells the other node that this one is alive, too
                size = line.piece(number, writing.at)
                if size == pieces.NOTHING and writing.size is not None:
                    return
                if size == pieces.NOTHING:  # a stream goes on
                    if self.sources.current != to.node:
                        return
                    self._free(line, number)
                    line.want([(number, writing.at)])
                    continue
                if size == pieces.WHOLE and writing.size is None:
                    writing.size = writing.at
                    break
                if size > CHUNK or size > (writing.size or 1 << 62) - writing.at:
                    raise Failed("link", INVALID)
                at = 0
                while at < size:
                    at += line.read_into(buffer[at:size])
                self._gate.wait()
                writing.write(buffer[:size])
                self._count(size)
                self._free(line, number)
            wrong = writing.finish()
            if not (
                wrong and begun and self._store.size(number)
            ):  # what an earlier run left may be at fault, and not the node
                self._got(number, to.node, wrong)
        finally:
            writing.stop()

    def _free(self, line: pieces.Follower, number: int) -> None:
        """Tell the other node what of a stream nobody here needs any longer."""
        if self._store.size(number) is None:
            window = self._store.served(number)
            if isinstance(window, Window):
                line.free(window.tail())
