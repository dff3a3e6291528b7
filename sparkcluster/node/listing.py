"""Lists the files of a model on this node, with hashes.

Used by staging and by ``preflight --hash``. As a program its request has ``root``, ``choice`` (see ``model_choice``),
``verify``, ``revision`` for a snapshot in Hugging Face's cache, and the lease, without which nothing is recorded. The
controller builds the list of files of a copy from its output, so that no node decides what is written on another. The
program changes nothing except, under a lease, the record of verified files.

A file's SHA-256 comes from the record of verified files, or from the name of its blob in the hub's cache; small files
without either are read. To ``verify`` a model all files are read, and compared with name and record.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from typing import Any, BinaryIO

from sparkcluster.node import common, wire
from sparkcluster.node.file_hashes import Record, hash_file, hash_files
from sparkcluster.node.model_files import Status, model_files
from sparkcluster.node.wire import Check, Failed

_SMALL_BYTES = 32 << 20  # configuration, tokenizer, code
_SHA256 = re.compile("[0-9a-f]{64}")
# The hub names small files by Git's hash, the SHA-1 of "blob SIZE\0" and the content; Artifactory's mirror by the
# SHA-1 of the content alone.
_SHA1 = re.compile("[0-9a-f]{40}")


class File:
    """A file of a model. Designed to need little memory for tens of thousands of files.

    Attributes:
        blob: the blob that it links to in the hub's cache.
        sha256: None if unknown.
        git: the SHA-1 of the content (of either kind above), if the blob's name is a SHA-1 and it was read.
        recorded: the SHA-256 in the record, if all files are read to verify them.
    """

    __slots__ = ("blob", "git", "mtime", "name", "recorded", "sha256", "size")

    def __init__(self, name: str, status: Status, blob: str | None) -> None:
        self.name, self.blob, self.size, self.mtime = name, blob, status.st_size, max(0, status.st_mtime_ns)
        self.sha256: str | None = None
        self.git: str | None = None
        self.recorded: str | None = None

    @property
    def is_misnamed(self) -> bool:
        """Whether a blob that was read has content that does not match its name."""
        content = self.sha256 if _SHA256.fullmatch(self.blob or "") else self.git
        return content not in (None, self.blob)

    def as_json(self) -> dict[str, Any]:
        """The document for the controller; times in ns."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


def listing(
    root: str, revision: str | None, choice: Any, record: Record, *, verify: bool = False, check: Check = lambda: None
) -> list[File]:
    """The files of ``root``, or of its snapshot ``revision`` in the hub's cache, that ``choice`` selects.

    ``check`` is called every second while files are read.

    Raises:
        Failed: the directory does not exist or has no files, or a file is a link out of the hub's cache.
    """
    home = os.path.realpath(common.expand(root))
    below = "snapshots/%s/" % revision if revision else ""
    top, blobs = os.path.join(home, below).rstrip("/"), os.path.join(home, "blobs")
    if not os.path.isdir(top):
        raise Failed("source", "%s does not exist" % top)
    for place in (os.path.dirname(top), top, blobs) if revision else ():
        stay_inside(place, os.path.realpath(place), place)

    def recorded(file: File) -> str:
        """The path of ``file`` in the record."""
        return "blobs/" + file.blob if file.blob else below + file.name

    files: list[File] = []
    unread: list[tuple[File, str]] = []
    for name, real, status in model_files(top, choice):
        if revision:
            stay_inside(os.path.join(top, name), real, os.path.join(home, ""))
        folder, last = os.path.split(real)
        file = File(name, status, last if revision and folder == blobs else None)
        known = record.known(recorded(file), status)
        if verify:
            file.recorded = known
        elif known or _SHA256.fullmatch(file.blob or ""):
            file.sha256 = known or file.blob
        if verify or (file.sha256 is None and status.st_size <= _SMALL_BYTES):
            unread.append((file, real))
        files.append(file)
    if not files:
        raise Failed("source", "%s contains no files" % top)

    def note(file: File, sha256: str, status: os.stat_result) -> None:
        file.sha256, file.size, file.mtime = sha256, status.st_size, max(0, status.st_mtime_ns)
        if file.blob and _SHA1.fullmatch(file.blob):
            path = os.path.join(blobs, file.blob)
            names = [hash_file(hashlib.sha1(text), path) for text in (b"blob %d\0" % status.st_size, b"")]
            file.git = file.blob if file.blob in names else names[0]
        if file.recorded in (None, sha256) and not file.is_misnamed:
            record.add(recorded(file), status, sha256)

    unread.sort(key=lambda each: -each[0].size)
    pace = wire.Pace(sum(file.size for file, _ in unread), check)
    hash_files(unread, note, pace.add, pace.add)
    return files


def stay_inside(path: str, real: str, inside: str) -> None:
    """Failed if ``path`` is a link to outside: an image that downloaded the model may have created it."""
    if not real.startswith(inside):
        text = "%s is a link out of the model's cache, to %s; check: %s" % (path, real, shlex.join(["ls", "-l", path]))
        raise Failed("source", text)


def main(request: dict[str, Any], stdin: BinaryIO) -> dict[str, Any]:
    """Emit each file of the directory or snapshot; the answer is a ``wire.outcome``."""
    if "epoch" in request:
        return wire.answer(request, stdin, lambda check: list_files(request, check))
    common.end_with(stdin)
    return wire.outcome(lambda: list_files(request, lambda: None))


def list_files(request: dict[str, Any], check: Check) -> dict[str, Any]:
    """Emit each file of the directory or snapshot: its ``name``, and the ``blob`` that it links to.

    Hashes are recorded only under a lease, which has a ``state_dir``: without it nothing is changed here.
    """
    record = Record(request.get("state_dir"), request["root"])

    def save_and_check() -> None:
        record.save(request.get("cluster", ""))  # this program may be killed
        check()

    choice, verify = request.get("choice"), bool(request.get("verify"))
    found = listing(request["root"], request.get("revision"), choice, record, verify=verify, check=save_and_check)
    save_and_check()
    for each in found:
        common.emit({"file": each.as_json()})
    return {}
