"""The files of a job below a directory of this node: which exist, which arrive, and what other nodes may read.

A file is written next to its target, with a name that ends in ``.partial``, hashed meanwhile, synced, and renamed
(``publish``). Written data is dropped from the page cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from sparkcluster.node.file_hashes import hash_file, hash_files
from sparkcluster.node.file_list import Entry, Listed
from sparkcluster.node.listing import stay_inside
from sparkcluster.node.model_files import forget
from sparkcluster.node.publish import Publisher
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import CHUNK, Failed

SMALL_BYTES = CHUNK
"""Files up to this size are copied as a whole, many at the same time."""
MOST_FILES, GROUP_BYTES = 2048, 4 << 20
"""Maximum number of small files in a group, and their maximum total size."""
_EVICT_BYTES = 64 << 20
_NAMED = 64
NEWS_S, _OWN_S = 1.0, 0.2
"""Maximum wait of a request for any news; maximum wait for the file that it asks for."""
_BATCH, _BATCH_S = 4096, 2.0  # limits of a batch of small files that are synced together
_LACKS, _TAKEN, _ARRIVED, _HAS, _LEFT = range(5)


class Arriving:
    """A large file that arrives, from one stream at a time, while other nodes read it.

    Attributes:
        at: bytes that were written and hashed.
        sources: the nodes that the bytes come from; an empty name for an earlier run.
        sender, version: the node that sends it, and that node's version of the file.
    """

    def __init__(self, files: Files, number: int) -> None:
        self.number, self.size = number, files.listed[number].size
        self.at = files.begun(number)
        self.sources: set[str] = set()
        self.sender = self.version = ""
        self._files, self._digest, self._evicted = files, hashlib.sha256(), 0
        self._proved, self._news = False, threading.Condition()
        files.gate()
        self.file = files.tree.writer(files.partial(number), self.at)
        if self.at:
            self.sources.add("")
            hash_file(self._digest, os.path.join(files.tree.root, files.partial(number)), lambda _: files.reading())

    def write(self, data: memoryview, source: str) -> None:
        """Write the next bytes, received from a node."""
        written = 0
        while written < len(data):
            written += os.pwrite(self.file.fileno(), data[written:], self.at + written)
        self._digest.update(data)
        self.sources.add(source)
        self._files.moved()
        with self._news:
            self.at += len(data)
            self._news.notify_all()
        if self.at - self._evicted >= _EVICT_BYTES:
            self._files.evict(self.file, self._evicted, self.at - self._evicted)
            self._evicted = self.at

    def hexdigest(self) -> str:
        """SHA-256 of the bytes so far."""
        return str(self._digest.hexdigest())

    def restart(self) -> None:
        """The content is wrong: start again in a new file, since other nodes may still read the old one."""
        self._files.gate()
        with self._news:
            self.at = self._evicted = 0
            self._files.versions[self.number] = self._files.version(self.number) + 1
            self.file = self._files.tree.writer(self._files.partial(self.number))
        self._digest = hashlib.sha256()
        self.sources.clear()

    def prove(self) -> None:
        """The complete content is correct: allow reading its last byte."""
        with self._news:
            self._proved = True
            self._news.notify_all()

    def readable(self, offset: int, limit_s: float) -> tuple[BinaryIO, int, int]:
        """The file, its version, and how many bytes may be read; waits ``limit_s`` for more than ``offset``.

        The last byte is withheld until the content is verified, so that no node takes a wrong file for complete.
        """
        with self._news:
            self._news.wait_for(lambda: self._readable() > offset, limit_s)
            return self.file, self._files.version(self.number), self._readable()

    def _readable(self) -> int:
        return self.at if self._proved else min(self.at, self.size - 1)


class Files:
    """The files of a job in ``tree``, whose root has no links in it.

    ``request`` has ``revision`` and its name ``ref`` for a model in the hub's cache, and ``replace``, the corrupt
    files. With ``keep`` nothing else is changed, as on a node that already had all files. ``gate`` is called before
    every change, and may raise.

    Attributes:
        versions: how often a file was started again after wrong content.
        busy: last progress here or on a node that is waited for (``time.monotonic``).
    """

    def __init__(self, request: dict[str, Any], listed: Listed, tree: Tree, gate: Callable[[], None]) -> None:
        self.listed, self.tree, self.gate, self.busy = listed, tree, gate, time.monotonic()
        self._keep, self._revision = request.get("keep"), request.get("revision")
        self._lock, self._settled = threading.Lock(), time.monotonic()
        self._failed: Exception | None = None
        self._unproved: dict[int, tuple[str, str | None]] = {}  # SHA-256 and sender of files that are not renamed yet
        self._arriving: dict[int, Arriving] = {}
        self._news, self._begun = threading.Condition(self._lock), 0  # number of files that began to arrive
        self.versions: dict[int, int] = {}
        self._publisher = Publisher(request, listed, tree, gate, self.reading)
        self._hashes: dict[int, str] = {}
        self._written: queue.Queue[tuple[BinaryIO, int, int]] = queue.Queue(8)
        self._state = bytearray(self._found(number, file) for number, file in enumerate(listed))
        self._had = sum(file.size for number, file in enumerate(listed) if self._state[number] == _HAS)
        last = (number for number, file in enumerate(listed) if file.path == "config.json")
        self._last = next(last, -1) if self._revision is None else -1  # published last: it marks a model
        threading.Thread(target=self._evict, daemon=True).start()
        self._hashing = threading.Thread(target=self._hash, daemon=True)

    def _found(self, number: int, file: Entry) -> int:
        if number in self._publisher.replace:
            return _LACKS
        if self.tree.size(file.path) == file.size:
            return _HAS
        return _LEFT if self._keep else _LACKS

    def reading(self) -> None:
        """Progress by reading local files, while nothing arrives."""
        self.moved()
        self.gate()

    def moved(self, age_s: float = 0.0) -> None:
        """Note progress, ``age_s`` seconds ago."""
        self.busy = max(self.busy, time.monotonic() - age_s)

    # state

    def needed(self) -> dict[str, Any]:
        """``lacks`` and ``room`` for the controller (``staging.order.WorkerLine``)."""
        lacks = [number for number, state in enumerate(self._state) if state == _LACKS]
        size = sum(self.listed[number].size - self.begun(number) for number in lacks)
        found = os.fstatvfs(self.tree.handle)
        room = {"free": found.f_bavail * found.f_frsize, "needed": size, "path": self.tree.root}
        return {"lacks": len(lacks), "room": room}

    def have(self) -> int:
        """Bytes that are present or have arrived."""
        with self._lock:
            return self._had + sum(file.at for file in self._arriving.values())

    def partial(self, number: int) -> str:
        """The temporary name of a file that arrives."""
        file = self.listed[number]
        folder, name = os.path.split(file.path)
        # a blob's name identifies its content, so that a copy can resume from another source
        blob = self._revision and folder == "blobs"
        mark = "%d" % file.size if blob else "%d-%d" % (file.size, file.mtime)
        return os.path.join(folder, ".%s.%s.partial" % (name, hashlib.sha256(mark.encode()).hexdigest()[:8]))

    def begun(self, number: int) -> int:
        """Bytes of a large file in its partial file."""
        size = self.listed[number].size
        found = self.tree.size(self.partial(number)) if size > SMALL_BYTES else 0
        return found if 0 < found <= size else 0

    def kept(self) -> list[str]:
        """New paths of the user's files that were replaced."""
        return self._publisher.kept

    # receiving

    def lacking(self) -> int:
        """Number of files still to be received, including those in progress."""
        with self._lock:
            return self._state.count(_LACKS) + self._state.count(_TAKEN)

    def waiting(self) -> str:
        """The first file that has not arrived."""
        number = max(self._state.find(_LACKS), self._state.find(_TAKEN))
        return self.listed[number].path if number >= 0 else "the SHA-256 of received files"

    def claim(self, first: Iterable[int], cursor: int) -> list[int]:
        """Claim a large file, or a group of small ones: one of ``first``, else from ``cursor`` on; empty at the end."""
        with self._lock:
            cursor = next((number for number in first if self._state[number] == _LACKS), cursor)
            claimed, total, number = list[int](), 0, cursor - 1
            while len(claimed) < MOST_FILES and (number := self._state.find(_LACKS, number + 1)) >= 0:
                size = self.listed[number].size
                if claimed and (size > SMALL_BYTES or total + size > GROUP_BYTES):
                    break
                claimed.append(number)
                total += size
                if size > SMALL_BYTES:
                    break
            for each in claimed:
                self._state[each] = _TAKEN
            return claimed

    def give_back(self, claimed: Iterable[int]) -> None:
        """Release claimed files that did not arrive."""
        with self._lock:
            for number in claimed:
                if self._state[number] == _TAKEN:
                    self._state[number] = _LACKS

    # serving

    def arriving(self, number: int) -> Arriving | None:
        """A large file that has partly arrived."""
        return self._arriving.get(number)

    def wait_for(self, *numbers: int) -> None:
        """Wait at most a second for data of one of these files; less if other files begin to arrive."""

        def here() -> bool:
            return any(number in self._arriving or self._state[number] in {_ARRIVED, _HAS} for number in numbers)

        with self._lock:
            begun = self._begun
            self._news.wait_for(here, _OWN_S)
            self._news.wait_for(lambda: here() or self._begun != begun, NEWS_S - _OWN_S)

    def under_way(self) -> list[int]:
        """Some of the large files that are arriving."""
        with self._lock:
            return [number for number, file in self._arriving.items() if file.at < file.size][:_NAMED]

    def version(self, number: int) -> int:
        """Version of a file's content; it increases when wrong content is discarded."""
        return self.versions.get(number, 0)

    def reader(self, number: int) -> BinaryIO | None:
        """A complete file, open for reading; None if it is not complete.

        Raises:
            OSError: it cannot be read.
            Failed: its size changed, or it is a link out of the hub's cache.
        """
        state, path = self._state[number], self.listed[number].path
        if state == _ARRIVED and number not in self._arriving:
            with contextlib.suppress(FileNotFoundError):
                return self.tree.reader(self.partial(number))
            state = _HAS  # it has just been renamed
        if state != _HAS:
            return None
        with self._lock:
            if self.listed.sha256(number) is None and self._hashing.ident is None:
                self._hashing.start()
        whole = os.path.join(self.tree.root, path)
        real = os.path.realpath(whole)
        if self._revision:  # links in a user's own directory are trusted
            stay_inside(whole, real, os.path.join(self.tree.root, ""))
            file = self.tree.reader(os.path.relpath(real, self.tree.root))
        else:
            file = open(real, "rb", buffering=0)
        if os.fstat(file.fileno()).st_size != self.listed[number].size:
            file.close()
            raise Failed("source", "%s changed while it was sent" % whole)
        return file

    # received files

    def learn(self, hashes: dict[str, str]) -> None:
        """Add the SHA-256 of files that another node read, by number."""
        self.listed.learn(hashes)

    def hashes(self) -> dict[int, str]:
        """The SHA-256 of files that were read here, for all nodes."""
        return dict(self._hashes)

    def _hash(self) -> None:
        """Read the files whose SHA-256 is unknown."""

        def note(number: int, sha256: str, status: os.stat_result) -> None:
            self._hashes[number] = sha256
            self._publisher.note(number, status, sha256)

        unknown = [each for each, file in enumerate(self.listed) if not file.sha256 and self._state[each] == _HAS]
        paths = ((number, os.path.join(self.tree.root, self.listed[number].path)) for number in unknown)
        try:
            hash_files(paths, note, lambda _size: self.reading())
        except (OSError, Failed) as error:
            self._failed = error

    def resume(self, number: int) -> None:
        """Read what an earlier run received of a file, if anything; may take long."""
        if number not in self._arriving and self.begun(number):
            self.write(number)

    def write(self, number: int) -> Arriving:
        """A large file to receive, starting where an earlier stream or run stopped."""
        found = self._arriving.get(number) or Arriving(self, number)
        with self._lock:
            self._arriving[number] = found
            self._begun += 1
            self._news.notify_all()
        return found

    def arrived(self, file: Arriving) -> str:
        """Finish a large file: rename it and return "" if it is correct or unknown, else return its wrong SHA-256."""
        number, found = file.number, file.hexdigest()
        right = self.listed.sha256(number)
        if right is None:
            with self._lock:
                self._unproved[number] = found, next(iter(file.sources)) if len(file.sources) == 1 else None
                self._state[number] = _ARRIVED
        elif right == found:
            self._publish(file, found)
        else:
            file.restart()
            return found
        return ""

    def _publish(self, file: Arriving, sha256: str) -> None:
        number, handle = file.number, file.file.fileno()
        os.fchmod(handle, 0o644)
        mtime = self.listed[number].mtime
        os.utime(handle, ns=(mtime, mtime))
        file.prove()
        os.fsync(handle)
        if self._failed:  # the kernel reports it only once, possibly to the thread that syncs
            raise self._failed
        forget(handle)
        self._publisher.large(number, self.partial(number), sha256)
        with self._lock:
            self._state[number] = _HAS
            self._had += file.size
            del self._arriving[number]

    def take(self, number: int, data: bytearray, source: str) -> str:
        """Write a small file, to be renamed in a batch; return "" if it is correct or unknown, else its SHA-256."""
        file = self.listed[number]
        self.moved()
        found = hashlib.sha256(data).hexdigest()
        if self.listed.sha256(number) not in (None, found):
            return found
        with self.tree.writer(self.partial(number)) as out:
            out.write(data)
            out.flush()
            os.fchmod(out.fileno(), 0o644)
            os.utime(out.fileno(), ns=(file.mtime, file.mtime))
        with self._lock:
            self._state[number] = _ARRIVED
            self._had += file.size
            self._unproved[number] = found, source
            self._begun += 1
            self._news.notify_all()
        return ""

    def rename_correct(self, *, last: bool = False) -> list[tuple[int, str | None, str]]:
        """Rename correct files, with ``last`` also links; return the wrong ones, with sender and SHA-256.

        Raises:
            OSError: the disk failed.
        """
        if self._failed:
            raise self._failed
        with self._lock:
            known = {number: found for number, found in self._unproved.items() if self.listed.sha256(number)}
        wrong = [
            (number, node, sha256) for number, (sha256, node) in known.items() if self.listed.sha256(number) != sha256
        ]
        for number, *_ in wrong:
            self._reject(number)
            del known[number]
        small = [number for number in known if number not in self._arriving and (last or number != self._last)]
        if small and (last or len(small) >= _BATCH or time.monotonic() - self._settled > _BATCH_S):
            for number in self._publisher.small((each, self.partial(each), known[each][0]) for each in small):
                self._state[number] = _HAS
                del self._unproved[number]
            self._settled = time.monotonic()
        for number in [number for number in known if number in self._arriving]:
            self._publish(self._arriving[number], known[number][0])
            del self._unproved[number]
        if last and not wrong:
            self._publisher.finish()
        return wrong

    def _reject(self, number: int) -> None:
        """Discard a file whose content differs from the source's, whose hash arrived later."""
        file = self._arriving.get(number)
        if file is not None:
            file.restart()
        else:
            with self._lock:
                self._had -= self.listed[number].size
            with contextlib.suppress(OSError):
                self.tree.remove(self.partial(number))
        self._state[number] = _LACKS
        del self._unproved[number]

    def waits(self) -> bool:
        """Whether the SHA-256 of a received file is still missing."""
        return not all(self.listed.sha256(number) for number in list(self._unproved))

    def evict(self, file: BinaryIO, offset: int, size: int) -> None:
        """Schedule written bytes to be synced and dropped from the page cache.

        Raises:
            OSError: the disk failed.
        """
        if self._failed:
            raise self._failed
        self._written.put((file, offset, size))

    def _evict(self) -> None:
        while True:
            file, offset, size = self._written.get()
            try:
                os.fdatasync(file.fileno())
                forget(file.fileno(), offset, size)
            except OSError as error:
                self._failed = error
            del file
