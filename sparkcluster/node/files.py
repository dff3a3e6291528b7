"""The files of a job below one directory of this node: which are there, which arrive, and what others may read of them.

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
"""Up to this size files are copied whole, many at once."""
MOST_FILES, GROUP_BYTES = 2048, 4 << 20
"""How many of them at once, and how many bytes of them."""
_EVICT_BYTES = 64 << 20
_NAMED = 64
NEWS_S, _OWN_S = 1.0, 0.2
"""How long a request waits for something new at most; and so long for the very file that it asks for."""
_BATCH, _BATCH_S = 4096, 2.0  # small files that are synced at once
_LACKS, _TAKEN, _ARRIVED, _HAS, _LEFT = range(5)


class Arriving:
    """A large file that arrives, from one stream at a time, and is read by others meanwhile.

    Attributes:
        at: bytes that were written and hashed.
        sources: the nodes whose bytes it has; empty text for an earlier run.
        sender, version: the node that sends it, and what that calls the file that it has.
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
        """Take the next bytes, which a node sent."""
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
        """SHA-256 of what is there."""
        return str(self._digest.hexdigest())

    def restart(self) -> None:
        """What is there is wrong: begin again, in a new file, as others still read what they were promised of it."""
        self._files.gate()
        with self._news:
            self.at = self._evicted = 0
            self._files.versions[self.number] = self._files.version(self.number) + 1
            self.file = self._files.tree.writer(self._files.partial(self.number))
        self._digest = hashlib.sha256()
        self.sources.clear()

    def prove(self) -> None:
        """The whole is right: its last byte may be read, too."""
        with self._news:
            self._proved = True
            self._news.notify_all()

    def readable(self, offset: int, limit_s: float) -> tuple[BinaryIO, int, int]:
        """The file, its version, and how many bytes may be read: more than ``offset``, or what is there in ``limit_s``.

        The last one is withheld until the whole is right, so that nobody takes a wrong file for complete.
        """
        with self._news:
            self._news.wait_for(lambda: self._readable() > offset, limit_s)
            return self.file, self._files.version(self.number), self._readable()

    def _readable(self) -> int:
        return self.at if self._proved else min(self.at, self.size - 1)


class Files:
    """The files of a job in ``tree``, whose root has no links in it.

    ``request`` has ``revision`` and its name ``ref`` for a model in the hub's cache, and ``replace``: files that are
    there, and corrupt. With ``keep`` nothing else is changed, as on a node that had the whole model before.
    ``gate`` is called before anything is changed, and may raise.

    Attributes:
        versions: how often a file began again, since what had arrived was wrong.
        busy: when something moved last, here or on a node that is waited for (``time.monotonic``).
    """

    def __init__(self, request: dict[str, Any], listed: Listed, tree: Tree, gate: Callable[[], None]) -> None:
        self.listed, self.tree, self.gate, self.busy = listed, tree, gate, time.monotonic()
        self._keep, self._revision = request.get("keep"), request.get("revision")
        self._lock, self._settled = threading.Lock(), time.monotonic()
        self._failed: Exception | None = None
        self._unproved: dict[int, tuple[str, str | None]] = {}  # SHA-256 and sender of what is not renamed yet
        self._arriving: dict[int, Arriving] = {}
        self._news, self._begun = threading.Condition(self._lock), 0  # how many files began to arrive
        self.versions: dict[int, int] = {}
        self._publisher = Publisher(request, listed, tree, gate, self.reading)
        self._hashes: dict[int, str] = {}
        self._written: queue.Queue[tuple[BinaryIO, int, int]] = queue.Queue(8)
        self._state = bytearray(self._found(number, file) for number, file in enumerate(listed))
        self._had = sum(file.size for number, file in enumerate(listed) if self._state[number] == _HAS)
        last = (number for number, file in enumerate(listed) if file.path == "config.json")
        self._last = next(last, -1) if self._revision is None else -1  # without it no directory looks like a model
        threading.Thread(target=self._evict, daemon=True).start()
        self._hashing = threading.Thread(target=self._hash, daemon=True)

    def _found(self, number: int, file: Entry) -> int:
        if number in self._publisher.replace:
            return _LACKS
        if self.tree.size(file.path) == file.size:
            return _HAS
        return _LEFT if self._keep else _LACKS

    def reading(self) -> None:
        """Something is read here, while nothing arrives."""
        self.moved()
        self.gate()

    def moved(self, age_s: float = 0.0) -> None:
        """Something moved so long ago."""
        self.busy = max(self.busy, time.monotonic() - age_s)

    # what there is

    def needed(self) -> dict[str, Any]:
        """``lacks`` and ``room`` as the controller reads them (``staging.order.WorkerLine``)."""
        lacks = [number for number, state in enumerate(self._state) if state == _LACKS]
        size = sum(self.listed[number].size - self.begun(number) for number in lacks)
        found = os.fstatvfs(self.tree.handle)
        room = {"free": found.f_bavail * found.f_frsize, "needed": size, "path": self.tree.root}
        return {"lacks": len(lacks), "room": room}

    def have(self) -> int:
        """Bytes that are there or arrived."""
        with self._lock:
            return self._had + sum(file.at for file in self._arriving.values())

    def partial(self, number: int) -> str:
        """The name under which a file arrives."""
        file = self.listed[number]
        folder, name = os.path.split(file.path)
        # a blob is named by its content, so that a copy can resume from another source
        blob = self._revision and folder == "blobs"
        mark = "%d" % file.size if blob else "%d-%d" % (file.size, file.mtime)
        return os.path.join(folder, ".%s.%s.partial" % (name, hashlib.sha256(mark.encode()).hexdigest()[:8]))

    def begun(self, number: int) -> int:
        """Bytes of a large file that are in its partial one."""
        size = self.listed[number].size
        found = self.tree.size(self.partial(number)) if size > SMALL_BYTES else 0
        return found if 0 < found <= size else 0

    def kept(self) -> list[str]:
        """Files of the user's that others were put in the place of, as they are called now."""
        return self._publisher.kept

    # what is received

    def lacking(self) -> int:
        """How many files are still to be received, or are now."""
        with self._lock:
            return self._state.count(_LACKS) + self._state.count(_TAKEN)

    def waiting(self) -> str:
        """The first file that has not arrived."""
        number = max(self._state.find(_LACKS), self._state.find(_TAKEN))
        return self.listed[number].path if number >= 0 else "the SHA-256 of what arrived"

    def claim(self, first: Iterable[int], cursor: int) -> list[int]:
        """Claim a large file, or a group of small ones: one of ``first``, else from ``cursor`` on; none at the end."""
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
        """Release files that were claimed and did not arrive."""
        with self._lock:
            for number in claimed:
                if self._state[number] == _TAKEN:
                    self._state[number] = _LACKS

    # what is served

    def arriving(self, number: int) -> Arriving | None:
        """A large file of which a part is there."""
        return self._arriving.get(number)

    def wait_for(self, *numbers: int) -> None:
        """Wait until there is something of one of these, for a second at most; less if others began to arrive."""

        def here() -> bool:
            return any(number in self._arriving or self._state[number] in {_ARRIVED, _HAS} for number in numbers)

        with self._lock:
            begun = self._begun
            self._news.wait_for(here, _OWN_S)
            self._news.wait_for(lambda: here() or self._begun != begun, NEWS_S - _OWN_S)

    def under_way(self) -> list[int]:
        """Some of the large files that arrive now."""
        with self._lock:
            return [number for number, file in self._arriving.items() if file.at < file.size][:_NAMED]

    def version(self, number: int) -> int:
        """Tells what there is of a file from what was there, and was wrong."""
        return self.versions.get(number, 0)

    def reader(self, number: int) -> BinaryIO | None:
        """A file that is here whole, to read; None if it is not.

        Raises:
            OSError: it cannot be read.
            Failed: it has another size by now, or is a link out of the hub's cache.
        """
        state, path = self._state[number], self.listed[number].path
        if state == _ARRIVED and number not in self._arriving:
            with contextlib.suppress(FileNotFoundError):
                return self.tree.reader(self.partial(number))
            state = _HAS  # it was renamed just now
        if state != _HAS:
            return None
        with self._lock:
            if self.listed.sha256(number) is None and self._hashing.ident is None:
                self._hashing.start()
        whole = os.path.join(self.tree.root, path)
        real = os.path.realpath(whole)
        if self._revision:  # in a directory of the user's, links are the user's
            stay_inside(whole, real, os.path.join(self.tree.root, ""))
            file = self.tree.reader(os.path.relpath(real, self.tree.root))
        else:
            file = open(real, "rb", buffering=0)
        if os.fstat(file.fileno()).st_size != self.listed[number].size:
            file.close()
            raise Failed("source", "%s changed while it was sent" % whole)
        return file

    # what arrives

    def learn(self, hashes: dict[str, str]) -> None:
        """The SHA-256 of files by number, as another node read them."""
        self.listed.learn(hashes)

    def hashes(self) -> dict[int, str]:
        """The SHA-256 of files that were read here for all nodes."""
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
        """Read what an earlier run received of a file, if it did, which may take long."""
        if number not in self._arriving and self.begun(number):
            self.write(number)

    def write(self, number: int) -> Arriving:
        """A large file to receive, from where an earlier stream or run stopped."""
        found = self._arriving.get(number) or Arriving(self, number)
        with self._lock:
            self._arriving[number] = found
            self._begun += 1
            self._news.notify_all()
        return found

    def arrived(self, file: Arriving) -> str:
        """Make a large file visible that is whole: empty if it is right, as far as that is known, else its SHA-256."""
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
        if self._failed:  # the kernel says it once, maybe to the thread that syncs
            raise self._failed
        forget(handle)
        self._publisher.large(number, self.partial(number), sha256)
        with self._lock:
            self._state[number] = _HAS
            self._had += file.size
            del self._arriving[number]

    def take(self, number: int, data: bytearray, source: str) -> str:
        """Write a small file, whole: empty if it is right, else its SHA-256. It is renamed together with others."""
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

    def settle(self, *, last: bool = False) -> list[tuple[int, str | None, str]]:
        """Rename what arrived and is right, with ``last`` also the links; what is wrong, with sender and SHA-256.

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
        """What arrived is not what the source has, as that read it meanwhile."""
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
        """Whether something arrived of which it is not known yet whether it is right."""
        return not all(self.listed.sha256(number) for number in list(self._unproved))

    def evict(self, file: BinaryIO, offset: int, size: int) -> None:
        """Have bytes synced that were written, and dropped from memory.

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
