"""An image as what a worker moves: its archive is a stream, from one ``docker save`` to ``docker load`` on other nodes.

What arrives passes through a ``Window`` to this node's own Docker and, as it came,
to the nodes that pull from here: a node that takes another's place goes on in the same stream.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparkcluster.node import docker_copy
from sparkcluster.node.growing_file import LEFT_S, Store, Window, Writing
from sparkcluster.node.machine import Machine
from sparkcluster.node.wire import CHUNK, Failed

Request = dict[str, Any]

_OWN = "docker"  # reader of a window on this node
_PAUSE_S = 0.5
_ROOM = 2  # Docker keeps the archive beside the layers until the last one is unpacked


class _Stream:
    """A window that a thread fills or empties, and how that ended.

    Attributes:
        error: why it failed.
        over: when it ended.
    """

    def __init__(self, work: Callable[[Window], None], gate: Callable[[], None]) -> None:
        self.window = Window()
        self.window.follow(_OWN, 0)  # before anybody else can
        self.error: Exception | None = None
        self.over: float | None = None
        self._work = work
        self._gate = gate
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self.window)
        except Exception as error:
            self.error = error
        finally:
            self.over = time.monotonic()
            self.window.leave(_OWN, 0)

    def is_left(self) -> bool:
        """Whether it is over, and no node reads the rest of it, or may still come for that."""
        if self.over is None or self.window.tail() < self.window.at:
            return False
        return time.monotonic() - self.over > LEFT_S

    def add(self, data: Any) -> None:
        """Write into the window as soon as its readers have made room."""
        while not self.window.write(data, _PAUSE_S):
            self.check()
            self._gate()

    def check(self) -> None:
        """Raise why it failed."""
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Return at its end; raise why it failed."""
        self._thread.join()
        self.check()


class _Receiving(Writing):
    """What receives the archive and loads it."""

    def __init__(self, request: Request, gate: Callable[[], None], arrived: Callable[[str], None]) -> None:
        self.size: int | None = None
        self._request = request
        self._gate = gate
        self._arrived = arrived
        self.stream = _Stream(self._load, gate)

    @property
    def at(self) -> int:  # type: ignore[override]
        """The bytes that arrived."""
        return self.stream.window.at

    def ready(self) -> bool:
        """Whether there is room; there is none while Docker, or a node after this one, reads nothing."""
        self.stream.check()
        self._gate()
        return self.stream.window.ready(CHUNK, _PAUSE_S)

    def write(self, data: memoryview) -> None:
        """Take the next bytes."""
        self.stream.check()
        self.stream.add(data)

    def finish(self) -> str:
        """Wait until the image is loaded, compared and tagged; Failed if it cannot be."""
        self.stream.window.end()
        self.stream.wait()
        return ""

    def _load(self, window: Window) -> None:
        chunks = docker_copy.limited(self._chunks(window), self._request["size"])
        image, absent = docker_copy.load(self._request, chunks, self._gate)
        self._arrived(docker_copy.accept(self._request, image, absent, self._gate))

    def _chunks(self, window: Window) -> Iterator[bytes]:
        offset = 0
        while offset != window.size:
            there = window.wait(offset, _PAUSE_S)
            self._gate()
            while offset < there:
                data = window.read(offset, min(CHUNK, there - offset))
                yield data
                offset += len(data)
                window.free(_OWN, offset)


class Image(Store):
    """The image of ``request``, which is file 0; ``gate`` is called before anything is changed."""

    streams = 1
    patience_s = docker_copy.ENGINE_SILENT_S + 60  # the engine's own limit comes first

    def __init__(self, request: Request, gate: Callable[[], None]) -> None:
        self.total = request["bytes"]
        self._request = request
        self._gate = gate
        self._receiving: _Receiving | None = None
        self._sending: _Stream | None = None
        self._readers: tuple[str, ...] = ()
        self._lock = threading.Lock()
        image = docker_copy.present(request)
        if image is None and request.get("spool") is not None:
            raise Failed("blobs", "Docker does not have the image any longer")
        self._has = image is not None
        self._image_id = request["image_id"] if image is None else docker_copy.accept(request, image, 0, gate)

    def missing(self) -> Iterator[int]:
        """The image, if this node lacks it."""
        return iter([] if self._has else [0])

    def needed(self) -> dict[str, Any]:
        """What is to come, and the room that Docker needs for it: beside the layers it keeps the archive.

        Where it is sent, Docker writes all layers to disk before the first byte, unless containerd stores them.
        """
        size, path = 0 if self._has else self._request["bytes"], self._request["images_dir"]
        spool = self._request.get("spool") or 0
        free = Machine().space(path)[1] if os.path.exists(path) else 1 << 50
        room = {"free": free, "needed": _ROOM * size + spool, "path": path}
        return {"lacks": {"files": int(not self._has), "bytes": size}, "room": room}

    def size(self, number: int) -> int | None:  # noqa: ARG002 - the name is the base class's
        """None: only the end of a stream tells."""
        return None

    def known(self, number: int) -> bool:
        """Whether it is the image."""
        return number == 0

    def have(self) -> int:
        """Bytes that arrived; all of them only when it is loaded, also where they are more than expected."""
        if self._has:
            return int(self.total)
        return max(0, min(self._receiving.at, self.total - 1)) if self._receiving is not None else 0

    def expect(self, readers: Iterable[str]) -> None:
        """Keep the beginning of the stream for who pulls from here: who comes later would have missed it."""
        with self._lock:
            self._readers = tuple(readers)
            for stream in (self._receiving.stream if self._receiving is not None else None, self._sending):
                if stream is not None:
                    stream.window.expect(self._readers)

    def found(self) -> dict[str, Any]:
        """Its ID here."""
        return {"image_id": self._image_id}

    def served(self, number: int) -> Window | None:  # noqa: ARG002 - likewise
        """The stream that is received here; where the image is complete, one of ``docker save``."""
        with self._lock:
            if self._receiving is not None and not self._receiving.stream.is_left():
                return self._receiving.stream.window
            if not self._has:
                return None
            if self._sending is None or self._sending.is_left():
                self._sending = _Stream(self._save, self._gate)
                self._sending.window.expect(self._readers)
            return self._sending.window

    def _save(self, window: Window) -> None:
        def write(data: Any) -> None:
            while not window.write(data, _PAUSE_S):
                window.leave(_OWN, 0)  # by now somebody follows: until then nothing is to be lost
                self._gate()

        docker_copy.save({**self._request, "image_id": self._image_id}, write, self._gate)
        window.end()

    def settle(self, *, last: bool = False) -> list[tuple[int, str]]:  # noqa: ARG002 - likewise
        """Nothing: it is there when it was loaded. Raises why it could not be saved for the others."""
        if self._sending is not None:
            self._sending.check()
        return []

    def write(self, number: int) -> Writing:  # noqa: ARG002 - likewise
        """What receives the image, or goes on."""
        with self._lock:
            if self._receiving is None:
                self._receiving = _Receiving(self._request, self._gate, self._arrived)
                self._receiving.stream.window.expect(self._readers)
            return self._receiving

    def _arrived(self, image_id: str) -> None:
        self._image_id = image_id
        self._has = True
