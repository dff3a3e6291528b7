"""What this node has of a model, with hashes. It only reads.

It is asked by staging and by ``preflight --hash``. As a program its request has ``root``, ``choice`` (see
``model_choice``), ``verify``, with ``revision`` that of a snapshot in Hugging Face's cache, and the lease, without
which nothing is recorded. The controller makes the list of files of a copy from what it says, so that no node decides
what is written on another.

A file's SHA-256 is that of the record of verified files, or the
name of its blob in the hub's cache; of files without either the ``small`` are read, or after a download the
``unknown``: all that the record has not. Where ``all`` are read, name and record are only compared with the content.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import queue
import re
import shlex
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, wire
from sparkcluster.node.file_hashes import Record, hash_file
from sparkcluster.node.model_files import Status, model_files
from sparkcluster.node.wire import Failed

THREADS = 4
_SMALL_BYTES = 32 << 20  # configuration, tokenizer, code
_SHA256 = re.compile("[0-9a-f]{64}")
_SHA1 = re.compile("[0-9a-f]{40}")  # the hub names small files as Git does: sha1("blob SIZE\0" and the content)

Reads = str  # small, unknown or all


class File:
    """A file of a model. Tens of thousands take little memory.

    ``size`` is in bytes, ``mtime`` in ns; ``blob`` is what it links to in the hub's cache, ``sha256`` None if unknown.
    Where all files are read, ``recorded`` is the SHA-256 of the record, and ``git`` how Git names the content, or a
    mirror of the hub that names it by its SHA-1 alone.
    """

    __slots__ = ("blob", "git", "name", "recorded", "sha256", "status")

    def __init__(self, name: str, status: Status, blob: str | None) -> None:
        self.name, self.status, self.blob = name, status, blob
        self.sha256: str | None = None
        self.git: str | None = None
        self.recorded: str | None = None

    @property
    def is_misnamed(self) -> bool:
        """Whether a blob has another content than its name says, as far as it was read."""
        blob = self.blob or ""
        if _SHA256.fullmatch(blob):
            return self.sha256 not in (None, blob)
        return self.git not in (None, blob)

    def as_json(self) -> dict[str, Any]:
        """What the controller is told of it."""
        found: dict[str, Any] = {
            "name": self.name,
            "size": self.status.st_size,
            "mtime": max(0, self.status.st_mtime_ns),
        }
        more = {"blob": self.blob, "sha256": self.sha256, "git": self.git, "recorded": self.recorded}
        found.update({key: value for key, value in more.items() if value is not None})
        return found


def listing(
    root: str,
    revision: str | None,
    choice: Any,
    record: Record | None = None,
    *,
    reads: Reads = "small",
    check: Callable[[], None] = lambda: None,
) -> list[File]:
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
    files: list[File] = []
    for name, real, status in model_files(top, choice):
        path = os.path.join(top, name)
        if revision:
            stay_inside(path, real, os.path.join(home, ""))
        folder, last = os.path.split(real)
        files.append(File(name, status, last if revision and os.path.islink(path) and folder == blobs else None))
    if not files:
        raise Failed("source", "%s contains no files" % top)
    if record is not None:
        _compare(files, record, lambda file: _place(home, top, file))
    unread: list[File] = []
    for file in files:
        if reads != "all":
            named = file.blob if reads == "small" and _SHA256.fullmatch(file.blob or "") else None
            file.sha256, file.recorded = named if file.recorded in (None, named) else file.recorded, None
        if file.sha256 is None and (reads != "small" or file.status.st_size <= _SMALL_BYTES):
            unread.append(file)

    def path_of(file: File) -> str:
        return os.path.realpath(os.path.join(top, file.name))

    def note(file: File) -> None:
        after = os.stat(path_of(file))
        if Status(after.st_size, after.st_mtime_ns, after.st_ino) != file.status:
            raise Failed("source", "%s changed while it was read" % path_of(file))
        if record is not None and file.recorded in (None, file.sha256) and not file.is_misnamed:
            record.add(_place(home, top, file), after, str(file.sha256))

    _read(unread, path_of, check, note)
    return files


def _compare(files: list[File], record: Record, place: Callable[[File], str]) -> None:
    """Set what the record says of ``files``; of tens of thousands, neither it nor their places are kept in memory."""
    first = {file.blob or place(file): file for file in files}
    for path, entry in record.entries():
        folder, _, name = path.partition("/")
        file = first.get(name if folder == "blobs" else path) or first.get(path)
        if file is not None and place(file) == path:
            found = entry.sha256.hex() if entry.describes(file.status) else None
            file.recorded = file.blob if found == file.blob else found
    for file in files:  # several may link to one blob
        file.recorded = first[file.blob or place(file)].recorded


def _place(home: str, top: str, file: File) -> str:
    """The path by which the record knows ``file``."""
    return "blobs/" + file.blob if file.blob else os.path.relpath(os.path.join(top, file.name), home)


def stay_inside(path: str, real: str, inside: str) -> None:
    """Failed if ``path`` is a link to elsewhere: an image that downloaded the model may have left it there."""
    if not real.startswith(inside):
        text = "%s leads out of the model's cache, to %s; check it: %s" % (path, real, shlex.join(["ls", "-l", path]))
        raise Failed("source", text)


def _read(
    unread: list[File], path_of: Callable[[File], str], check: Callable[[], None], note: Callable[[File], None]
) -> None:
    """Hash files, each of which ``note`` gets then, and emit every second how far that is.

    Hashing releases the GIL, so threads run in parallel; they stop where ``check`` or ``note`` fails.
    """
    total = sum(file.status.st_size for file in unread)
    done = [0] * THREADS
    left = sorted(unread, key=lambda file: file.status.st_size)  # the largest is taken first
    over = threading.Event()

    def read(thread: int) -> None:
        def progress(size: int) -> None:
            done[thread] += size
            if over.is_set():
                raise Failed("over", "the reading of files was stopped")

        while True:
            try:
                file = left.pop()
            except IndexError:
                return
            sha1 = bool(_SHA1.fullmatch(file.blob or ""))
            digests = _Digests(file.status.st_size, sha1=sha1)
            file.sha256 = hash_file(digests, path_of(file), progress)
            if sha1:
                file.git = digests.name(str(file.blob))
            ready.put(file)

    ready: queue.SimpleQueue[File] = queue.SimpleQueue()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        reading = [pool.submit(read, thread) for thread in range(THREADS)]
        try:
            at_work = set(reading)
            while at_work:
                ended, at_work = concurrent.futures.wait(at_work, 1, concurrent.futures.FIRST_COMPLETED)
                for each in ended:
                    each.result()
                while not ready.empty():
                    note(ready.get())
                check()
                common.emit({"bytes": sum(done), "total": total})
        finally:
            over.set()


class _Digests:
    """SHA-256 of a file of ``size`` bytes, and with ``sha1`` the names that it may have in the hub's cache."""

    def __init__(self, size: int, *, sha1: bool) -> None:
        self._sha256 = hashlib.sha256()
        self._sha1 = [hashlib.sha1(b"blob %d\0" % size), hashlib.sha1()] if sha1 else []
        self.hexdigest: Callable[[], str] = self._sha256.hexdigest

    def update(self, data: Any) -> None:
        """Add data to all."""
        for each in (self._sha256, *self._sha1):
            each.update(data)

    def name(self, blob: str) -> str:
        """``blob`` if the content has that name, else how Git names it."""
        names = [each.hexdigest() for each in self._sha1]
        return blob if blob in names else names[0]


def main(request: dict[str, Any], stdin: BinaryIO) -> dict[str, Any]:
    """Emit each file of the directory or snapshot; the answer is a ``wire.outcome``."""
    if "epoch" in request:
        return wire.answer(request, stdin, lambda check: list_files(request, check))
    common.end_with(stdin)
    return wire.outcome(lambda: list_files(request, lambda: None))


def list_files(request: dict[str, Any], check: wire.Check) -> dict[str, Any]:
    """Emit each file of the directory or snapshot: its ``name`` there, and the ``blob`` that it links to.

    What was read is recorded under a lease alone: without one nothing is changed here.
    """
    record = Record(request["state_dir"], request["root"]) if "epoch" in request else None
    reads: Reads = "all" if request.get("verify") else "small"

    def check_and_save() -> None:
        if record is not None:
            record.save(request["cluster"], soon=True)  # this program may be killed
        check()

    try:
        choice = request.get("choice")
        found = listing(request["root"], request.get("revision"), choice, record, reads=reads, check=check_and_save)
    finally:
        if record is not None:
            record.save(request["cluster"])
    for each in found:
        common.emit({"file": each.as_json()})
    return {}
