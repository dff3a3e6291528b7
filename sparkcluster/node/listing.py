"""What this node has of a model, with hashes. Python 3.8, standard library only; it only reads.

It is asked by staging and by ``preflight --hash``. A file's SHA-256 is that of the record of verified files, or the
name of its blob in the hub's cache; of files without either the ``small`` are read, or after a download the
``unknown``: all that the record has not. Where ``all`` are read, name and record are only compared with the content.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import re
import shlex
from typing import Any, Callable, Dict, List, Optional

from sparkcluster.node import common
from sparkcluster.node.model_files import Status, hash_file, model_files
from sparkcluster.node.record import Record
from sparkcluster.node.wire import Failed

THREADS = 4
_SMALL_BYTES = 32 << 20  # configuration, tokenizer, code
_SHA256 = re.compile("[0-9a-f]{64}")
_GIT = re.compile("[0-9a-f]{40}")  # the hub names small files as Git does: sha1("blob SIZE\0" and the content)

Reads = str  # small, unknown or all


class File:
    """A file of a model. Tens of thousands take little memory.

    ``size`` is in bytes, ``mtime`` in ns; ``blob`` is what it links to in the hub's cache, ``sha256`` None if unknown.
    Where all files are read, ``recorded`` is the SHA-256 of the record, and ``git`` how Git names the content.
    """

    __slots__ = ("blob", "git", "name", "real", "recorded", "sha256", "status")

    def __init__(self, name: str, real: str, status: Status, blob: Optional[str]) -> None:
        self.name, self.real, self.status, self.blob = name, real, status, blob
        self.sha256: Optional[str] = None
        self.git: Optional[str] = None
        self.recorded: Optional[str] = None

    @property
    def is_misnamed(self) -> bool:
        """Whether a blob has another content than its name says, as far as it was read."""
        blob = self.blob or ""
        if _SHA256.fullmatch(blob):
            return self.sha256 not in (None, blob)
        return self.git not in (None, blob)

    def as_json(self) -> Dict[str, Any]:
        """What the controller is told of it."""
        found: Dict[str, Any] = {
            "name": self.name,
            "size": self.status.st_size,
            "mtime": max(0, self.status.st_mtime_ns),
        }
        more = {"blob": self.blob, "sha256": self.sha256, "git": self.git, "recorded": self.recorded}
        found.update({key: value for key, value in more.items() if value is not None})
        return found


def listing(
    root: str,
    revision: Optional[str],
    choice: Any,
    record: Optional[Record] = None,
    *,
    reads: Reads = "small",
    check: Callable[[], None] = lambda: None,
) -> List[File]:
    """The files of ``root``, or with ``revision`` of that snapshot in the hub's cache, that ``choice`` leaves in.

    ``check`` is called every second while files are read.

    Raises:
        Failed: there is no such directory, it has no files, or one is a link out of the hub's cache.
    """
    home = os.path.realpath(common.expand(root))
    top = os.path.join(home, "snapshots", revision) if revision else home
    if not os.path.isdir(top):
        raise Failed("source", "%s does not exist" % top)
    blobs = os.path.join(home, "blobs")
    if revision:
        for place in (os.path.dirname(top), top, blobs):
            stay_inside(place, os.path.realpath(place), place)
    files: List[File] = []
    unread: List[File] = []
    for name, real, status in model_files(top, choice):
        path = os.path.join(top, name)
        if revision:
            stay_inside(path, real, os.path.join(home, ""))
        folder, last = os.path.split(real)
        file = File(name, real, status, last if revision and os.path.islink(path) and folder == blobs else None)
        known = record.known(_place(home, top, file), status) if record is not None else None
        if reads == "all":
            file.recorded = known
        else:
            named = file.blob if reads == "small" and _SHA256.fullmatch(file.blob or "") else None
            file.sha256 = known or named
        if file.sha256 is None and (reads != "small" or status.st_size <= _SMALL_BYTES):
            unread.append(file)
        files.append(file)
    if not files:
        raise Failed("source", "%s contains no files" % top)
    _read(unread, check)
    for file in unread:
        after = os.stat(file.real)
        if (after.st_size, after.st_mtime_ns) != file.status[:2]:
            raise Failed("source", "%s changed while it was read" % file.real)
        if record is not None and file.recorded in (None, file.sha256) and not file.is_misnamed:
            record.add(_place(home, top, file), after, str(file.sha256))
    return files


def _place(home: str, top: str, file: File) -> str:
    """The path by which the record knows ``file``."""
    return "blobs/" + file.blob if file.blob else os.path.relpath(os.path.join(top, file.name), home)


def stay_inside(path: str, real: str, inside: str) -> None:
    """Failed if ``path`` is a link to elsewhere: an image that downloaded the model may have left it there."""
    if not real.startswith(inside):
        text = "%s leads out of the model's cache, to %s; check it: ls -l %s" % (path, real, shlex.quote(path))
        raise Failed("source", text)


def _read(unread: List[File], check: Callable[[], None]) -> None:
    """Hash files, and emit every second how far that is; hashing releases the GIL, so threads run in parallel."""
    total = sum(file.status.st_size for file in unread)
    done = [0] * THREADS
    left = sorted(unread, key=lambda file: file.status.st_size)  # the largest is taken first

    def read(thread: int) -> None:
        def progress(size: int) -> None:
            done[thread] += size

        while True:
            try:
                file = left.pop()
            except IndexError:
                return
            both = _Both(file.status.st_size, git=bool(_GIT.fullmatch(file.blob or "")))
            file.sha256 = hash_file(both, file.real, progress)
            file.git = both.git.hexdigest() if both.git is not None else None

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        reading = [pool.submit(read, thread) for thread in range(THREADS)]
        while concurrent.futures.wait(reading, timeout=1).not_done:
            check()
            common.emit({"bytes": sum(done), "total": total})
    for each in reading:
        each.result()


class _Both:
    """SHA-256, and the hash by which Git names a file of ``size`` bytes."""

    def __init__(self, size: int, *, git: bool) -> None:
        self._sha256 = hashlib.sha256()
        self.git = hashlib.sha1(b"blob %d\0" % size) if git else None
        self.hexdigest: Callable[[], str] = self._sha256.hexdigest

    def update(self, data: Any) -> None:
        """Add data to both."""
        self._sha256.update(data)
        if self.git is not None:
            self.git.update(data)
