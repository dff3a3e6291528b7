"""The record of file hashes on this node, and of the files that staging wrote.

One file per directory of a model, to which lines are appended::

    STATE_DIR/models/ROOT16.jsonl   {"root": PATH, "cluster": NAME} of a cluster that staged it; {"revision": NAME} of
                                    a snapshot in the hub's cache that staging created; and for each file (the last
                                    line counts) [path, size, mtime (ns), inode, SHA-256, whether staging wrote it]

"Whether staging wrote it" may be null: unchanged, if the file is the same. ROOT16 is the start of the SHA-256 of the
directory's path with links resolved; paths are relative to it. If size, time or inode differ from the record, it is
another file. A line that cannot be parsed is ignored: then the file is read again, and is not removed as staged.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from sparkcluster.node import common
from sparkcluster.node.model_files import Status, forget
from sparkcluster.node.wire import Failed

T = TypeVar("T")

_THREADS = 4

AnyStatus = os.stat_result | Status


class Entry(NamedTuple):
    """A file at the time when it was hashed; ``ours`` if staging wrote it and replaced nothing."""

    size: int
    mtime_ns: int
    inode: int
    sha256: str
    ours: bool


class Record:
    """The record of the directory ``root``; 60,000 files take 30 MB. Without ``state_dir`` nothing is recorded.

    Attributes:
        files: entries by path.
        clusters: clusters that staged it.
        revisions: snapshots that staging created.
        before: paths before a download; files added later were written by staging.
    """

    def __init__(self, state_dir: str | None, root: str) -> None:
        self.root = os.path.realpath(common.expand(root))
        self.files: dict[str, Entry] = {}
        self.clusters: set[str] = set()
        self.revisions: set[str] = set()
        self.before: set[str] | None = None
        self.path = ""
        self._added: list[Any] = []
        # Files of staging below state_dir are no model, and must not be listed or removed as one.
        if state_dir and not self.root.startswith(os.path.join(os.path.realpath(common.expand(state_dir)), "")):
            mark = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
            self.path = os.path.join(folder(state_dir), mark + ".jsonl")
        for line in read_lines(self.path):
            with contextlib.suppress(TypeError, ValueError):  # damaged lines are ignored
                self._take(line)

    def _take(self, line: Any) -> None:
        if isinstance(line, dict):
            self.clusters.update(filter(None, [line.get("cluster")]))
            self.revisions.update(filter(None, [line.get("revision")]))
            return
        path, size, mtime, inode, sha256, ours = line
        before = self.files.get(path)
        if ours is None and before is not None and before[:3] == (size, mtime, inode):
            ours = before.ours
        self.files[path] = Entry(size, mtime, inode, sha256, ours is True)

    def known(self, path: str, status: AnyStatus) -> str | None:
        """SHA-256 of the file ``path``, if ``status`` shows that it is unchanged."""
        entry = self.files.get(path)
        return entry.sha256 if entry is not None and entry[:3] == stamp_of(status) else None

    def is_ours(self, path: str, status: AnyStatus) -> bool:
        """Whether staging wrote ``path``, and it is unchanged since."""
        return self.known(path, status) is not None and self.files[path].ours

    def add(self, path: str, status: AnyStatus, sha256: str, *, ours: bool | None = None) -> None:
        """Note that ``path`` was read; ``ours`` if staging wrote it, None if that is unchanged."""
        if self.before is not None and path not in self.before:
            ours = True
        if ours is not None or self.known(path, status) != sha256:
            self._note([path, *stamp_of(status), sha256, ours])

    def _note(self, line: Any) -> None:
        self._take(line)
        self._added.append(line)

    def save(self, cluster: str, revision: str | None = None) -> None:
        """Write new entries; ``cluster`` staged the model, ``revision`` is a snapshot that staging created."""
        if not self.path or not self.files:
            return
        if cluster not in self.clusters:
            self._note({"root": self.root, "cluster": cluster})
        if revision is not None and revision not in self.revisions:
            self._note({"revision": revision})
        added, self._added = self._added, []
        with contextlib.suppress(OSError):  # a missing record is no error
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            with open(self.path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # so that lines of other programs stay intact
                for line in added:  # each starts a new line: after a power loss the last one may be incomplete
                    file.write(b"\n" + json.dumps(line).encode())

    def drop(self, paths: set[str]) -> None:
        """Remove the record if ``paths``, which were removed, include all files that staging wrote."""
        if all(path in paths for path, entry in self.files.items() if entry.ours):
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def stamp_of(status: AnyStatus) -> tuple[int, int, int]:
    """Identity of a file at its path: size, time (ns) and inode."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def folder(state_dir: str) -> str:
    """The folder of the records."""
    return os.path.join(common.private(state_dir), "models")


def roots(state_dir: str) -> list[str]:
    """Directories that have a record."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder(state_dir))):
            lines = read_lines(os.path.join(folder(state_dir), name))
            found += [line["root"] for line in lines if isinstance(line, dict) and "root" in line][:1]
    return found


def read_lines(path: str) -> Iterator[Any]:
    """The JSON documents in the lines of a file, without damaged ones; empty if it cannot be read."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


def hash_file(digest: Any, path: str, progress: Callable[[int], None] = lambda _size: None) -> str:
    """Add a file to ``digest`` and return the hexadecimal digest; ``progress`` gets the bytes of each step."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(max(1, min(4 << 20, os.fstat(file.fileno()).st_size)))
        view = memoryview(buffer)
        offset = 0
        for size in iter(lambda: file.readinto(buffer), 0):
            digest.update(view[:size])
            forget(file.fileno(), offset, size)
            offset += size
            progress(size)
    return str(digest.hexdigest())


def hash_files(
    files: Iterable[tuple[T, str]],
    note: Callable[[T, str, os.stat_result], None],
    progress: Callable[[int], None],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Hash ``files`` (with paths). ``note`` gets a file, its SHA-256 and status; ``progress`` gets the bytes read.

    Hashing releases the GIL, so threads run in parallel. ``tick`` is called each second. The callbacks never run at the
    same time.

    Raises:
        Failed: a file changed while it was read. Errors of the callbacks stop the threads and are raised.
    """
    left, lock, over = iter(list(files)), threading.Lock(), threading.Event()

    def advance(size: int) -> None:
        if over.is_set():
            raise Failed("over", "reading was stopped")
        with lock:
            progress(size)

    def read() -> None:
        for file, path in left:  # iterating over a list is thread-safe: each file goes to one thread
            before = stamp_of(os.stat(path))
            sha256 = hash_file(hashlib.sha256(), path, advance)
            after = os.stat(path)
            if stamp_of(after) != before:
                raise Failed("source", "%s changed while it was read" % path)
            with lock:
                note(file, sha256, after)

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        working = {pool.submit(read) for _ in range(_THREADS)}
        try:
            while working:
                ended, working = concurrent.futures.wait(working, 1, concurrent.futures.FIRST_COMPLETED)
                for each in ended:
                    each.result()
                with lock:
                    tick()
        finally:
            over.set()
