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
from typing import Any, Callable, Dict, List, Optional, Tuple

from sparkcluster.node import common
from sparkcluster.node.model_files import hash_file, model_files
from sparkcluster.node.record import Record
from sparkcluster.node.wire import Failed

THREADS = 4
_SMALL_BYTES = 32 << 20  # configuration, tokenizer, code
_SHA256 = re.compile("[0-9a-f]{64}")
_GIT = re.compile("[0-9a-f]{40}")  # the hub names small files as Git does: sha1("blob SIZE\0" and the content)

File = Dict[str, Any]
Reads = str  # small, unknown or all


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

    Each has ``name``, ``size``, ``mtime`` (ns), ``blob`` that it links to, and ``sha256`` if that is known. Where all
    are read, also how ``git`` names the content of a blob with such a name, and the ``recorded`` SHA-256. ``check`` is
    called every second.

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
    unread: List[Tuple[File, str, os.stat_result, str]] = []
    for path, real, status in model_files(top, choice):
        if revision:
            stay_inside(path, real, os.path.join(home, ""))
        folder, name = os.path.split(real)
        blob = name if revision and os.path.islink(path) and folder == blobs else None
        place = "blobs/" + name if blob else os.path.relpath(path, home)
        file: File = {"name": os.path.relpath(path, top), "size": status.st_size, "mtime": max(0, status.st_mtime_ns)}
        file.update(blob=blob, sha256=None)
        known = record.known(place, status) if record is not None else None
        if reads == "all":
            file["recorded"] = known
        else:
            named = blob if blob and reads == "small" and _SHA256.fullmatch(blob) else None
            file["sha256"] = known or named
        if file["sha256"] is None and (reads != "small" or status.st_size <= _SMALL_BYTES):
            unread.append((file, real, status, place))
        files.append(file)
    if not files:
        raise Failed("source", "%s contains no files" % top)
    _read(unread, check)
    for file, real, status, place in unread:
        after = os.stat(real)
        if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise Failed("source", "%s changed while it was read" % real)
        if record is not None and file.get("recorded") in (None, file["sha256"]) and not is_misnamed(file):
            record.add(place, after, file["sha256"])
    return files


def stay_inside(path: str, real: str, inside: str) -> None:
    """Failed if ``path`` is a link to elsewhere: an image that downloaded the model may have left it there."""
    if not real.startswith(inside):
        text = "%s leads out of the model's cache, to %s; check it: ls -l %s" % (path, real, shlex.quote(path))
        raise Failed("source", text)


def is_misnamed(file: File) -> bool:
    """Whether a blob has another content than its name says, as far as it was read."""
    blob = file["blob"] or ""
    if _SHA256.fullmatch(blob):
        return file["sha256"] not in (None, blob)
    return file.get("git") not in (None, blob)


def _read(unread: List[Tuple[File, str, os.stat_result, str]], check: Callable[[], None]) -> None:
    """Hash files, and emit every second how far that is; hashing releases the GIL, so threads run in parallel."""
    total = sum(status.st_size for _, _, status, _ in unread)
    done = [0] * len(unread)

    def read(place: int) -> None:
        def progress(size: int) -> None:
            done[place] += size

        file, real, status, _ = unread[place]
        both = _Both(status.st_size, git=bool(_GIT.fullmatch(file["blob"] or "")))
        file["sha256"] = hash_file(both, real, progress)
        if both.git is not None:
            file["git"] = both.git.hexdigest()

    order = sorted(range(len(unread)), key=lambda place: -unread[place][2].st_size)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        reading = [pool.submit(read, place) for place in order]
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
