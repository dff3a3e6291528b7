"""Files and streams that grow while other nodes follow them.

A worker (``relay``) writes what it receives into one of these, and its server (``serve``) sends from it at once. What
moves is a ``Store``: numbered files, of which this node has some, lacks some, and has some in part.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from sparkcluster.node.wire import Failed

WINDOW_BYTES = 32 << 20
LEFT_S = 15.0  # for which a window keeps what a node lacks that was cut off: it may come again, or the one after it


class Growing:
    """A file of which the first ``at`` of ``size`` bytes are there; it owns the descriptor ``fd``.

    Attributes:
        moving: somebody adds to it now.
    """

    def __init__(self, fd: int, at: int, size: int) -> None:
        self.fd = fd
        self.at = at
        self.size: int | None = size
        self.moving = at < size
        self._changed = threading.Condition()

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def grow(self, size: int) -> None:
        """So many more bytes are in the file."""
        with self._changed:
            self.at += size
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody adds to it any longer: who follows it does not wait."""
        with self._changed:
            self.moving = False
            self._changed.notify_all()

    def restart(self) -> None:
        """What was there is wrong: it is written again from its first byte on."""
        with self._changed:
            self.at = 0

    def wait(self, offset: int, limit_s: float) -> int:
        """The bytes that are there as soon as they are more than ``offset``; at the latest after ``limit_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self.at > offset or not self.moving, limit_s)
            return self.at

    def read(self, offset: int, size: int) -> bytes:
        """Some of the ``size`` bytes at ``offset``."""
        return os.pread(self.fd, size, offset)


class Window:
    """A stream of unknown length, of which the last bytes are in memory, for an image.

    What all of its readers have read is freed: this node's own, the nodes that pull from it, and those after them.

    Attributes:
        at: the bytes that were written so far.
        size: the length, known at its end.
        base: the first byte that is still there.
        moving: it has not ended.
    """

    fd = -1

    def __init__(self, limit: int = WINDOW_BYTES) -> None:
        self.at = 0
        self.base = 0
        self.size: int | None = None
        self.moving = True
        self._ring = bytearray(limit)
        self._tails: dict[Any, int] = {}
        self._left: dict[Any, float] = {}  # until when the tail of one that was cut off counts
        self._changed = threading.Condition()

    def write(self, data: Any, limit_s: float) -> bool:
        """Add ``data``, at most the length of the window, as soon as there is room; False if there is none in time."""
        with self._changed:
            until = time.monotonic() + limit_s
            while not self._room(len(data)):
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 1.0))  # the tail of one that left may lapse
            begin = self.at % len(self._ring)
            first = min(len(data), len(self._ring) - begin)
            self._ring[begin : begin + first] = data[:first]
            self._ring[: len(data) - first] = data[first:]
            self.at += len(data)
            self._changed.notify_all()
            return True

    def ready(self, size: int, limit_s: float) -> bool:
        """Whether there is room for ``size`` bytes, at the latest after ``limit_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._room(size), limit_s)

    def _room(self, size: int) -> bool:
        self.base = max(self.base, self._tail())
        return self.at + size - self.base <= len(self._ring)

    def _tail(self) -> int:
        now = time.monotonic()
        for reader in [reader for reader, until in self._left.items() if until < now]:
            del self._left[reader], self._tails[reader]
        return min(self._tails.values(), default=self.at)

    def end(self) -> None:
        """What was written so far is the whole."""
        with self._changed:
            self.size, self.moving = self.at, False
            self._changed.notify_all()

    def follow(self, reader: Any, offset: int, tail: int | None = None) -> None:
        """``reader`` has everything before ``offset``, and the nodes after it have everything before ``tail``.

        What comes after that is kept until it says more.
        """
        with self._changed:
            if offset < self.base or offset > self.at:
                raise Failed("link", "the other node has the image only from byte %d on" % self.base)
            self._left.pop(reader, None)
            self._tails[reader] = offset if tail is None else min(offset, tail)

    def expect(self, readers: Iterable[Any]) -> None:
        """Keep what there is for those of ``readers`` that have not come yet, for ``LEFT_S``."""
        with self._changed:
            for reader in readers:
                if reader not in self._tails:
                    self._tails[reader], self._left[reader] = self.base, time.monotonic() + LEFT_S

    def free(self, reader: Any, offset: int) -> None:
        """``reader`` needs nothing before ``offset`` any longer."""
        with self._changed:
            self._left.pop(reader, None)  # an earlier connection of it may have ended since it came again
            self._tails[reader] = min(self.at, max(self._tails.get(reader, 0), offset))
            self._changed.notify_all()

    def leave(self, reader: Any, keep_s: float = LEFT_S) -> None:
        """``reader`` is gone; what it lacks is kept for ``keep_s``, for a node that goes on in its place."""
        with self._changed:
            if reader in self._tails:
                self._left[reader] = time.monotonic() + keep_s
            self._changed.notify_all()

    def tail(self) -> int:
        """The first byte that this node, or one that pulls from it, still needs."""
        with self._changed:
            return self._tail()

    def wait(self, offset: int, limit_s: float) -> int:
        """The bytes that were written as soon as they are more than ``offset``; at the latest after ``limit_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self.at > offset or not self.moving, limit_s)
            return self.at

    def read(self, offset: int, size: int) -> bytes:
        """The ``size`` bytes at ``offset``; Failed if they are not there any longer."""
        with self._changed:
            if offset < self.base or offset + size > self.at:
                raise Failed("link", "the other node has the image only from byte %d on" % self.base)
            begin = offset % len(self._ring)
            end = begin + size
            return bytes(self._ring[begin:end] + self._ring[: max(0, end - len(self._ring))])


Grows = Growing | Window


class Writing:
    """What receives one file of a ``Store``, from ``at`` on.

    Attributes:
        size: bytes of the whole, None until the stream ends.
    """

    at: int
    size: int | None

    def ready(self) -> bool:
        """Whether there is room for the next bytes now, which is waited for a little."""
        return True

    def write(self, data: memoryview) -> None:
        """Take the next bytes."""
        raise NotImplementedError

    def finish(self) -> str:
        """Everything arrived: empty if that is right, else the wrong SHA-256. Then it is to be received again."""
        raise NotImplementedError

    def stop(self) -> None:
        """Nothing more comes for now; what arrived stays."""


class Store:
    """What a job moves, as numbered files: the weights (``file_store.Files``), or an image, which is file 0 alone.

    A worker calls it from several threads: each number is written by one of them at a time.

    Attributes:
        streams: how many files are received at once, at most.
        patience_s: how long a source may have nothing new before the job fails.
        total: bytes of the whole, 0 if unknown.
        busy: when something of it was read here last, while nothing arrives (``time.monotonic``).
    """

    streams = 4
    patience_s = 60.0
    total = 0
    busy = 0.0

    def missing(self) -> Iterator[int]:
        """The files that are to be received, in the order of the list."""
        raise NotImplementedError

    def needed(self) -> dict[str, Any]:
        """``lacks`` and ``room`` as the controller reads them (``staging.order.Said``)."""
        raise NotImplementedError

    def size(self, number: int) -> int | None:
        """Bytes of a file; None of a stream."""
        raise NotImplementedError

    def name(self, number: int) -> str:
        """What people call a file."""
        return "file %d" % number

    def known(self, number: int) -> bool:
        """Whether there is such a file."""
        raise NotImplementedError

    def served(self, number: int) -> Grows | None:
        """What there is of a file, to send it to another node; None if there is nothing."""
        raise NotImplementedError

    def write(self, number: int) -> Writing:
        """Begin to receive a file, or go on where an earlier run stopped."""
        raise NotImplementedError

    def take(self, number: int, data: bytes) -> str:
        """A small file, whole: empty if it is right, else the wrong SHA-256."""
        raise NotImplementedError

    def settle(self, *, last: bool = False) -> list[tuple[int, str]]:  # noqa: ARG002
        """Make visible what arrived, with ``last`` all of it; what turned out to be wrong, with its SHA-256."""
        return []

    def waits(self) -> bool:
        """Whether something arrived that ``settle`` cannot make visible yet."""
        return False

    def hashes(self) -> dict[int, str]:
        """The SHA-256 of files that were read first while they were served."""
        return {}

    def learn(self, hashes: dict[int, str]) -> None:
        """The SHA-256 of files, as another node read them."""

    def expect(self, readers: Iterable[str]) -> None:
        """The nodes that are going to pull from this one."""

    def kept(self) -> list[str]:
        """Files of the user's that others were put in the place of, as they are called now."""
        return []

    def found(self) -> dict[str, Any]:
        """What is known of it once it is whole, for ``staging.order.WorkDone``."""
        return {}

    def have(self) -> int:
        """Bytes of it that are there or arrived."""
        raise NotImplementedError
