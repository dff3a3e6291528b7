"""Files that a worker has, receives and serves, below one directory.

Each is written next to its target, under a name that ends in ``.partial``, hashed meanwhile, synced and made visible
(``publish``). What was written is dropped from the page cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sparkcluster.node.file_hashes import hash_file
from sparkcluster.node.file_list import Entry, Listed
from sparkcluster.node.growing_file import Growing, Store, Writing
from sparkcluster.node.hasher import Hasher
from sparkcluster.node.listing import stay_inside
from sparkcluster.node.model_files import forget
from sparkcluster.node.publish import Publisher
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import CHUNK, Failed

EVICT_BYTES = 64 << 20
_BATCH, _BATCH_S = 4096, 2.0  # small files that are synced at once
_PAUSED = 64  # files that are begun, and have a hash in memory, while others are received
_LACKS, _GROWS, _ARRIVED, _HAS, _LEFT = range(5)


class Files(Store):
    """The ``files`` of a job in ``tree``, whose root has no links in it.

    ``request`` has ``revision`` and its name ``ref`` for a model in the hub's cache, and ``replace``: files that are
    there, and corrupt. With ``keep`` nothing else is changed, as on a node that had the whole model before; with
    ``hashes`` what nobody knows the SHA-256 of is read here, for all nodes.
    ``gate`` is called before anything is changed, and may raise.
    """

    def __init__(self, request: dict[str, Any], files: Listed, tree: Tree, gate: Callable[[], None]) -> None:
        self.total = sum(file.size for file in files)
        self.files = files
        self.tree = tree
        self.gate = gate
        self.failed: OSError | None = None
        self._keep = request.get("keep")
        self._revision: str | None = request.get("revision")
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._settled = time.monotonic()
        self._arrived: dict[int, str] = {}  # not renamed yet: small ones, and those whose right SHA-256 is unknown
        self._growing: dict[int, Growing] = {}
        self._begun: dict[int, _File] = {}
        self._publisher = Publisher(request, files, tree, gate, self.reading)
        self._hasher = Hasher(self.reading, self._publisher.note)
        self._dirty: queue.Queue[tuple[Growing, int, int]] = queue.Queue(8)
        self._state = bytearray(self._found(number, file) for number, file in enumerate(files))
        self._bytes = sum(file.size for number, file in enumerate(files) if self._state[number] == _HAS)
        last = (number for number, file in enumerate(files) if file.path == "config.json")
        self._last = next(last, -1) if self._revision is None else -1  # without it no directory looks like a model
        threading.Thread(target=self._evict, daemon=True).start()
        for number, file in enumerate(files) if request.get("hashes") else ():
            if file.sha256 is None and self._state[number] == _HAS:
                self._hasher.read(number, os.path.join(tree.root, file.path), urgent=False)

    def _found(self, number: int, file: Entry) -> int:
        """What there is of a file at first."""
        if number in self._publisher.replace:
            return _LACKS
        if self.tree.size(file.path) == file.size:
            return _HAS
        return _LEFT if self._keep else _LACKS

    def reading(self) -> None:
        """Something is read here, while nothing arrives."""
        self.busy = time.monotonic()
        self.gate()

    # what there is

    def missing(self) -> Iterator[int]:
        """The files that are not there."""
        return (number for number, state in enumerate(self._state) if state == _LACKS)

    def needed(self) -> dict[str, Any]:
        """What is missing, and the room for it."""
        lacks = size = 0
        for number in self.missing():
            lacks += 1
            size += self.files[number].size - self.begun(number)
        found = os.fstatvfs(self.tree.handle)
        room = {"free": found.f_bavail * found.f_frsize, "needed": size, "path": self.tree.root}
        return {"lacks": {"files": lacks, "bytes": size}, "room": room}

    def size(self, number: int) -> int | None:
        """Bytes of a file."""
        return self.files[number].size

    def name(self, number: int) -> str:
        """Its path."""
        return self.files[number].path

    def known(self, number: int) -> bool:
        """Whether the list has it."""
        return number < len(self.files)

    def kept(self) -> list[str]:
        """What was set aside."""
        return self._publisher.kept

    def have(self) -> int:
        """Bytes that are there or arrived."""
        return self._bytes

    def served(self, number: int) -> Growing | None:
        """A file to send, whole or growing."""
        with self._lock:
            state, grows = self._state[number], self._growing.get(number)
        if grows is not None or state in (_LACKS, _GROWS, _LEFT):
            return grows
        file = self.files[number]
        if state == _ARRIVED:
            with contextlib.suppress(FileNotFoundError), self.tree.reader(self.partial(number)) as found:
                return self._opened(os.dup(found.fileno()), number)
            # it was renamed just now
        grows = self._opened(opened(self.tree, file.path, self._revision), number)
        if self.files.sha256(number) is None:
            self._hasher.read(number, os.path.join(self.tree.root, file.path))
        return grows

    def _opened(self, descriptor: int, number: int) -> Growing:
        file = self.files[number]
        grows = Growing(descriptor, file.size, file.size)
        if os.fstat(descriptor).st_size != file.size:
            raise Failed("source", "%s/%s changed while it was sent" % (self.tree.root, file.path))
        return grows

    def partial(self, number: int) -> str:
        """The name under which a file arrives."""
        file = self.files[number]
        folder, name = os.path.split(file.path)
        # a blob is named by its content, so that a copy can resume from another source
        blob = self._revision and folder == "blobs"
        mark = "%d" % file.size if blob else "%d-%d" % (file.size, file.mtime)
        return os.path.join(folder, ".%s.%s.partial" % (name, hashlib.sha256(mark.encode()).hexdigest()[:8]))

    def begun(self, number: int) -> int:
        """Bytes of a large file that are in its partial one."""
        file = self.files[number]
        size = self.tree.size(self.partial(number)) if file.size > CHUNK else 0
        return size if 0 < size <= file.size else 0

    # what arrives

    def learn(self, hashes: dict[int, str]) -> None:
        """The SHA-256 of files that were read first while they were copied."""
        self.files.learn(hashes)

    def hashes(self) -> dict[int, str]:
        """Of files that were read first while they were served."""
        self.failed = self.failed or self._hasher.failed
        return self._hasher.found

    def write(self, number: int) -> Writing:
        """Begin to receive a file, or go on."""
        with self._lock:
            found = self._begun.pop(number, None)
        found = found or _File(self, number)
        if found.grows is not None:
            found.grows.moving = True
        with self._lock:
            self._begun[number] = found
            self._state[number] = _GROWS
            if found.grows is not None:
                self._growing[number] = found.grows
            for other in list(self._begun)[:-_PAUSED]:
                if self._state[other] == _LACKS:
                    self._bytes -= self._begun.pop(other).at
                    self._growing.pop(other, None)
        return found

    def take(self, number: int, data: bytes) -> str:
        """Write a small file; it is renamed together with others."""
        file = self.files[number]
        found = hashlib.sha256(data).hexdigest()
        expected = self.files.sha256(number)
        if expected not in (None, found):
            return found
        with self.tree.writer(self.partial(number)) as out:
            out.write(data)
            out.flush()
            os.fchmod(out.fileno(), 0o644)
            os.utime(out.fileno(), ns=(file.mtime, file.mtime))
        with self._lock:
            self._state[number] = _ARRIVED
            self._bytes += file.size
            self._arrived[number] = found
        return ""

    def settle(self, *, last: bool = False) -> list[tuple[int, str]]:
        """Rename the small files that arrived, and those whose SHA-256 is known by now; at last, make the links."""
        with self._settling:
            if self.failed:
                raise self.failed
            wrong, ready = [], []
            with self._lock:
                for number, found in self._arrived.items():
                    right = self.files.sha256(number)
                    if right not in (None, found):
                        wrong.append((number, found))
                    elif right == found and (last or number != self._last):
                        ready.append(number)
                for number, _ in wrong:
                    self._reject(number)
            if ready and (last or len(ready) >= _BATCH or time.monotonic() - self._settled > _BATCH_S):
                for number in self._publisher.small((each, self.partial(each), self._arrived[each]) for each in ready):
                    self._visible(number)
                self._settled = time.monotonic()
            if last and not wrong:
                self._publisher.finish()
            return wrong

    def waits(self) -> bool:
        """Whether something arrived of which it is not known yet whether it is right."""
        return not all(self.files.sha256(number) for number in list(self._arrived))

    def _reject(self, number: int) -> None:
        self._state[number] = _LACKS
        with contextlib.suppress(OSError):
            self.tree.remove(self.partial(number))  # the next run is not to go on with it
        self._arrived.pop(number, None)
        self._begun.pop(number, None)
        self._bytes -= self.files[number].size
        grows = self._growing.pop(number, None)
        if grows is not None:
            grows.restart()
            grows.stop()

    def _visible(self, number: int) -> None:
        with self._lock:
            self._arrived.pop(number, None)
            self._state[number] = _HAS

    def arrived(self, file: _File, sha256: str) -> None:
        """A large file is whole, and right if that can be said."""
        number, grows = file.number, file.grows
        if grows is not None:
            grows.stop()
        proved = self.files.sha256(number) is not None
        with self._lock:
            self._begun.pop(number, None)
            self._growing.pop(number, None)
            self._state[number] = _ARRIVED
            if not proved:
                self._arrived[number] = sha256
        if proved and grows is not None:
            self._publisher.large(number, self.partial(number), grows.fd, sha256)
            self._visible(number)

    def refused(self, number: int) -> None:
        """A large file arrived with another SHA-256."""
        with self._lock:
            self._reject(number)

    def paused(self, number: int) -> None:
        """Nobody receives the file for now."""
        with self._lock:
            if self._state[number] == _GROWS:
                self._state[number] = _LACKS

    def opened(self, file: _File, descriptor: int, at: int) -> Growing:
        """A file that grows from now on."""
        grows = Growing(descriptor, at, self.files[file.number].size)
        with self._lock:
            self._growing[file.number] = grows
            self._bytes += at
        return grows

    def wrote(self, file: _File, size: int) -> None:
        """So much more is in a file; every 64 MiB of it are synced and dropped from memory."""
        if self.failed:
            raise self.failed
        with self._lock:
            self._bytes += size
        if file.grows is not None and file.at - file.evicted >= EVICT_BYTES:
            self._dirty.put((file.grows, file.evicted, file.at - file.evicted))
            file.evicted = file.at

    def _evict(self) -> None:
        while True:
            grows, offset, size = self._dirty.get()
            try:
                os.fdatasync(grows.fd)
                forget(grows.fd, offset, size)
            except OSError as error:
                self.failed = error
            del grows


class _File(Writing):
    """A large file that arrives."""

    def __init__(self, store: Files, number: int) -> None:
        self.number = number
        self.size = store.files[number].size
        self.grows: Growing | None = None
        self.evicted = 0
        self._store = store
        self._digest = hashlib.sha256()
        self._held = 0
        self.at = store.begun(number)
        if self.at:
            path = os.path.join(store.tree.root, store.partial(number))
            hash_file(self._digest, path, lambda _size: store.reading())
            self._open()

    def _open(self) -> Growing:
        self._store.gate()
        with self._store.tree.writer(self._store.partial(self.number), self.at) as file:
            self.grows = self._store.opened(self, os.dup(file.fileno()), self.at)
        self.evicted = self.at
        return self.grows

    def write(self, data: memoryview) -> None:
        """Write and hash; the last bytes are passed on only when the whole is right."""
        grows = self.grows or self._open()
        written = 0
        while written < len(data):
            written += os.pwrite(grows.fd, data[written:], self.at + written)
        self._digest.update(data)
        self.at += len(data)
        if self.at == self.size and self._store.files.sha256(self.number):
            self._held = len(data)
        else:
            grows.grow(len(data))
        self._store.wrote(self, len(data))

    def finish(self) -> str:
        """Compare, sync and rename."""
        store, found = self._store, str(self._digest.hexdigest())
        grows = self.grows or self._open()
        if store.files.sha256(self.number) not in (None, found):
            store.refused(self.number)
            return found
        os.fchmod(grows.fd, 0o644)
        mtime = store.files[self.number].mtime
        os.utime(grows.fd, ns=(mtime, mtime))
        if self._held:
            grows.grow(self._held)
        os.fsync(grows.fd)
        forget(grows.fd)
        store.arrived(self, found)
        return ""

    def stop(self) -> None:
        """Keep what arrived; who follows it does not wait."""
        if self.grows is not None:
            self.grows.stop()
        self._store.paused(self.number)


def opened(tree: Tree, path: str, revision: str | None) -> int:
    """A file to send. Of the hub's cache none outside of it; in a directory of the user's, links are the user's."""
    whole = os.path.join(tree.root, path)
    real = os.path.realpath(whole)
    if not revision:
        return os.open(real, os.O_RDONLY | os.O_CLOEXEC)
    stay_inside(whole, real, os.path.join(tree.root, ""))
    with tree.reader(os.path.relpath(real, tree.root)) as file:
        return os.dup(file.fileno())
