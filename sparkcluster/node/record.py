"""The record of files of which this node knows the SHA-256, and of those that staging put here.

Python 3.8, standard library only. One file for each directory of a model::

    STATE_DIR/models/ROOT16.jsonl   {"root", "clusters", "revisions"}: which staged it, and which snapshots in the
                                    hub's cache staging made; then a line for each file:
                                    [path, size, mtime (ns), inode, SHA-256, whether staging wrote it]

ROOT16 is the beginning of the SHA-256 of the directory's path with links resolved; paths are relative to it. Lines are
added at the end; the last one of a path counts. A file
with another size, time or inode than in the record is another file. A record that cannot be read is as if it were not
there: then files are read again, and none of them is removed as staged.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set

from sparkcluster.node import common

_SAVE_EVERY_S = 5.0
_LINE_BYTES = 8192


class Entry(NamedTuple):
    """A file as it was when its content was known; ``ours`` if staging wrote it where there was none."""

    size: int
    mtime: int
    inode: int
    sha256: bytes
    ours: bool

    def describes(self, status: os.stat_result) -> bool:
        """Whether a file with ``status`` is still that one."""
        return (self.size, self.mtime, self.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)


class Record:
    """The record of the directory ``root``, with what is added until ``save``.

    What is added is not kept in memory once it is saved, unless ``files`` were asked for: there may be many.
    """

    def __init__(self, state_dir: str, root: str) -> None:
        self.root = os.path.realpath(common.expand(root))
        # What staging keeps below state_dir is no model, and is not listed or removed as one.
        self._kept = not self.root.startswith(os.path.join(os.path.realpath(common.expand(state_dir)), ""))
        mark = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        self.path = os.path.join(folder(state_dir), mark + ".jsonl")
        self.clusters: Set[str] = set()
        self.revisions: Set[str] = set()
        self._files: Optional[Dict[str, Entry]] = None
        self._added: Dict[str, Entry] = {}
        self._saved = time.monotonic()
        self._take_head(next(read_lines(self.path), None))

    @property
    def files(self) -> Dict[str, Entry]:
        """All of it by path; read when it is asked for first."""
        if self._files is None:
            self._files = self._read()
            self._files.update(self._added)
        return self._files

    def known(self, path: str, status: os.stat_result) -> Optional[str]:
        """SHA-256 of the file ``path`` with ``status``, if that is the one that was read."""
        entry = self.files.get(path)
        return entry.sha256.hex() if entry is not None and entry.describes(status) else None

    def is_ours(self, path: str, status: os.stat_result) -> bool:
        """Whether staging wrote ``path``, and it has not been changed since."""
        entry = self.files.get(path)
        return entry is not None and entry.ours and entry.describes(status)

    def add(self, path: str, status: os.stat_result, sha256: str, *, ours: Optional[bool] = None) -> None:
        """Note that ``path`` was read; ``ours`` where staging wrote it, else it is whose it was."""
        if ours is None:
            ours = self.is_ours(path, status)
        entry = Entry(status.st_size, status.st_mtime_ns, status.st_ino, bytes.fromhex(sha256), ours)
        if self._files is None:
            self._added[path] = entry
        elif self._files.get(path) != entry:
            self._files[path] = self._added[path] = entry

    def own(self, before: Set[str]) -> None:
        """Note that staging wrote what was added, but for the paths that were there ``before``."""
        for path in self._added.keys() - before:
            self._added[path] = self._added[path]._replace(ours=True)
        if self._files is not None:
            self._files.update(self._added)

    def save(self, cluster: str = "", revision: Optional[str] = None, *, soon: bool = False) -> None:
        """Write what was added; with ``soon`` not more than every 5 s.

        ``cluster`` is one that staged it, ``revision`` a snapshot that staging made.
        """
        if soon and time.monotonic() - self._saved < _SAVE_EVERY_S:
            return
        self._saved = time.monotonic()
        known = cluster in self.clusters | {""} and (revision or "") in self.revisions | {""}
        if not self._kept or (not self._added and (known or not self.files)):
            return
        with contextlib.suppress(OSError):  # nothing fails for want of a record
            self._merge({cluster} - {""}, {revision or ""} - {""})

    def _merge(self, clusters: Set[str], revisions: Set[str]) -> None:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        lock = common.open_own(self.path + ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            is_there = self._take_head(next(read_lines(self.path), None))
            if is_there and clusters <= self.clusters and revisions <= self.revisions:
                self._append()
            else:
                self.clusters |= clusters
                self.revisions |= revisions
                self._write({**self._read(), **self._added})
            self._added = {}
        finally:
            os.close(lock)

    def drop(self, paths: Set[str]) -> None:
        """Forget ``paths``, which were removed; without any file that staging wrote the record goes."""
        with contextlib.suppress(OSError):
            lock = common.open_own(self.path + ".lock", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._files = {path: entry for path, entry in self._read().items() if path not in paths}
                if any(entry.ours for entry in self._files.values()):
                    self._write(self._files)
                else:
                    os.unlink(self.path)
                    os.unlink(self.path + ".lock")
            finally:
                os.close(lock)

    def _take_head(self, head: Any) -> bool:
        """Whether that is the first line of this record, whose clusters and revisions are known then."""
        if not isinstance(head, dict) or head.get("root") != self.root:
            return False
        self.clusters.update(str(each) for each in head.get("clusters") or ())
        self.revisions.update(str(each) for each in head.get("revisions") or ())
        return True

    def _read(self) -> Dict[str, Entry]:
        found: Dict[str, Entry] = {}
        lines = read_lines(self.path)
        if self._take_head(next(lines, None)):
            for line in lines:
                with contextlib.suppress(TypeError, ValueError, AttributeError):
                    path, size, mtime, inode, sha256, ours = line
                    found[str(path)] = Entry(int(size), int(mtime), int(inode), bytes.fromhex(sha256), ours is True)
        return found

    def _append(self) -> None:
        with os.fdopen(common.open_own(self.path, os.O_WRONLY | os.O_APPEND), "wb") as file:
            file.write(b"\n")  # a program that was killed may have left half a line
            for path, entry in self._added.items():
                file.write(_line(path, entry))
            file.flush()
            os.fsync(file.fileno())

    def _write(self, files: Dict[str, Entry]) -> None:
        head = {"root": self.root, "clusters": sorted(self.clusters), "revisions": sorted(self.revisions)}
        text = bytearray(json.dumps(head).encode() + b"\n")
        for path, entry in files.items():
            text += _line(path, entry)
        common.write_atomically(self.path, text)


def _line(path: str, entry: Entry) -> bytes:
    return json.dumps([path, *entry[:3], entry.sha256.hex(), entry.ours]).encode() + b"\n"


def folder(state_dir: str) -> str:
    """The folder of the records."""
    return os.path.join(common.expand(state_dir), "models")


def roots(state_dir: str) -> List[str]:
    """The directories that have a record."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder(state_dir))):
            if name.endswith(".jsonl"):
                head = next(read_lines(os.path.join(folder(state_dir), name)), None)
                if isinstance(head, dict) and isinstance(head.get("root"), str):
                    found.append(head["root"])
    return found


def read_lines(path: str) -> Iterator[Any]:
    """The documents in the lines of a file of this user, None for one that is damaged; none if it cannot be read."""
    try:
        with os.fdopen(common.open_own(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
            for line in iter(lambda: file.readline(_LINE_BYTES), ""):
                found = None
                with contextlib.suppress(ValueError, RecursionError):
                    found = json.loads(line)
                yield found
    except OSError:
        return
