"""The record of files of which this node knows the SHA-256, and of those that staging put here.

One file for each directory of a model, to which lines are appended::

    STATE_DIR/models/ROOT16.jsonl   {"root": PATH}; {"cluster": NAME} that staged it; {"revision": NAME} of a
                                    snapshot in the hub's cache that staging made; and of each file, the last
                                    counting, [path, size, mtime (ns), inode, SHA-256, whether staging wrote it]

Whether staging wrote a file may be null: as before, if it is still the same. ROOT16 is the beginning of the SHA-256 of
the directory's path with links resolved; paths are relative to it. A file with another size, time or inode than in the
record is another file. A record that cannot be read is as if it were not there: then files are read again, and none of
them is removed as staged.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sparkcluster.node import common
from sparkcluster.node.model_files import Status, forget

_SAVE_EVERY_S = 5.0
_MOST_ADDED = 1000
_LINE_BYTES = 8192
_STAMP = struct.Struct("!QqQ")  # size, time, inode


AnyStatus = os.stat_result | Status


class Entry(NamedTuple):
    """A file as it was when its content was known; ``ours`` if staging wrote it where there was none."""

    stamp: bytes
    sha256: bytes
    ours: bool

    def describes(self, status: AnyStatus) -> bool:
        """Whether a file with ``status`` is still that one."""
        return self.stamp == stamp_of(status)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return int(_STAMP.unpack(self.stamp)[0])


class Record:
    """The record of the directory ``root``. It is read when something of it is asked, and not by what only adds."""

    def __init__(self, state_dir: str, root: str) -> None:
        self.root = os.path.realpath(common.expand(root))
        # What staging keeps below state_dir is no model, and is not listed or removed as one.
        self._kept = not self.root.startswith(os.path.join(os.path.realpath(common.expand(state_dir)), ""))
        mark = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        self.path = os.path.join(folder(state_dir), mark + ".jsonl")
        self._clusters: set[str] = set()
        self._revisions: set[str] = set()
        self._files: dict[str, Entry] | None = None
        self._added: dict[str, list[Any]] = {}
        self._before: set[str] | None = None
        self._saved = time.monotonic()

    @property
    def files(self) -> dict[str, Entry]:
        """The files by path, with those that were added."""
        return self._load()

    def _load(self) -> dict[str, Entry]:
        if self._files is None:
            self._files = {}
            for line in self._lines():
                self._take(line)
        return self._files

    def _lines(self) -> Iterator[Any]:
        """The documents of the record, then what was added."""
        lines = read_lines(self.path)
        if next(lines, None) == {"root": self.root}:
            yield from lines
        yield from self._added.values()

    @property
    def clusters(self) -> set[str]:
        """Clusters that staged it."""
        self._load()
        return self._clusters

    @property
    def revisions(self) -> set[str]:
        """Snapshots that staging made."""
        self._load()
        return self._revisions

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """The files one by one, of each path the last counting: of sixty thousand none is kept in memory."""
        for line in self._lines():
            found = _entry(line)
            if found is not None:
                yield found[0], found[1]

    def known(self, path: str, status: AnyStatus) -> str | None:
        """SHA-256 of the file ``path`` with ``status``, if that is the one that was read."""
        entry = self.files.get(path)
        return entry.sha256.hex() if entry is not None and entry.describes(status) else None

    def is_ours(self, path: str, status: AnyStatus) -> bool:
        """Whether staging wrote ``path``, and it has not been changed since."""
        entry = self.files.get(path)
        return entry is not None and entry.ours and entry.describes(status)

    def add(self, path: str, status: AnyStatus, sha256: str, *, ours: bool | None = None) -> None:
        """Note that ``path`` was read; ``ours`` where staging wrote it, else it is whose it was."""
        if self._before is not None and path not in self._before:
            ours = True
        if self._files is not None and ours is None and self.known(path, status) == sha256:
            return
        self._added[path] = [path, status.st_size, status.st_mtime_ns, status.st_ino, sha256, ours]
        if self._files is not None:
            self._take(self._added[path])

    def own(self, before: set[str]) -> None:
        """What is added from now on staging wrote, but for the paths that were there ``before``."""
        self._before = before

    def save(self, cluster: str = "", revision: str | None = None, *, soon: bool = False) -> None:
        """Write what was added; with ``soon`` not more than every 5 s, or every thousand files.

        ``cluster`` is one that staged it, ``revision`` a snapshot that staging made.
        """
        early = time.monotonic() - self._saved < _SAVE_EVERY_S and len(self._added) < _MOST_ADDED
        if not self._kept or (soon and early):
            return
        self._saved = time.monotonic()
        if not self._added and not (self._files or self._is_there()):
            return
        lines: list[Any] = []
        if cluster and cluster not in self._clusters:
            lines.append({"cluster": cluster})
        if revision and revision not in self._revisions:
            lines.append({"revision": revision})
        lines += self._added.values()
        if lines:
            with contextlib.suppress(OSError):  # nothing fails for want of a record
                self._append(lines)
        self._clusters.update({cluster} - {""})
        self._revisions.update({revision or ""} - {""})
        self._added = {}

    def _is_there(self) -> bool:
        """Whether there is a record; who staged it is known then. Its files are not kept in memory."""
        lines = read_lines(self.path)
        if next(lines, None) != {"root": self.root}:
            return False
        for line in lines:
            if isinstance(line, dict):
                self._take(line)
        return True

    def drop(self, paths: set[str]) -> None:
        """Forget ``paths``, which were removed; without any file that staging wrote the record goes."""
        kept = {path: entry for path, entry in self.files.items() if path not in paths}
        self._files = kept
        with contextlib.suppress(OSError):
            if not any(entry.ours for entry in kept.values()):
                os.unlink(self.path)
                return
            lines: list[Any] = [{"root": self.root}]
            lines += [{"cluster": each} for each in sorted(self._clusters)]
            lines += [{"revision": each} for each in sorted(self._revisions)]
            for path, entry in kept.items():
                lines.append([path, *_STAMP.unpack(entry.stamp), entry.sha256.hex(), entry.ours])
            common.write_atomically(self.path, b"".join(map(_line, lines)))

    def _take(self, line: Any) -> None:
        """Take in one document."""
        files = self._files if self._files is not None else {}
        if isinstance(line, dict):
            for key, found in (("cluster", self._clusters), ("revision", self._revisions)):
                if isinstance(line.get(key), str):
                    found.add(line[key])
            return
        new = _entry(line)
        if new is not None:
            path, entry, ours = new
            before = files.get(path)
            if ours is None and before is not None and before.stamp == entry.stamp:
                entry = entry._replace(ours=before.ours)
            files[path] = entry

    def _append(self, lines: list[Any]) -> None:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        with open(self.path, "a+b", buffering=1 << 16) as file:
            handle = file.fileno()
            fcntl.flock(handle, fcntl.LOCK_EX)  # a line of another program is not torn
            head, end = _line({"root": self.root}), os.fstat(handle).st_size
            if os.pread(handle, len(head), 0) != head:
                os.ftruncate(handle, 0)
                file.write(head)
            elif os.pread(handle, 1, end - 1) != b"\n":  # this node lost its power
                file.write(b"\n")
            for each in lines:
                file.write(_line(each))


def stamp_of(status: AnyStatus) -> bytes:
    """What tells a file from another one at its place."""
    return _STAMP.pack(status.st_size, status.st_mtime_ns, status.st_ino)


def _entry(line: Any) -> tuple[str, Entry, bool | None] | None:
    """Path and file in a line, and whether staging wrote it, as it says; None for another or a damaged one."""
    try:
        path, size, mtime, inode, sha256, ours = line
        entry = Entry(_STAMP.pack(size, mtime, inode), bytes.fromhex(sha256), ours is True)
    except (TypeError, ValueError, struct.error):
        return None
    return (str(path), entry, ours) if len(entry.sha256) == hashlib.sha256().digest_size else None


def _line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def folder(state_dir: str) -> str:
    """The folder of the records."""
    return os.path.join(common.private(state_dir), "models")


def roots(state_dir: str) -> list[str]:
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
    """The documents in the lines of a file of this user, without damaged ones; none where it cannot be read."""
    try:
        file = open(path, encoding="utf-8", errors="replace")
    except OSError:
        return
    with file, contextlib.suppress(OSError):
        for line in iter(lambda: file.readline(_LINE_BYTES), ""):
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


def hash_file(digest: Any, path: str, progress: Callable[[int], None] = lambda _size: None) -> str:
    """Add a file to ``digest`` and return that in hexadecimal; ``progress`` gets the bytes of each step."""
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
