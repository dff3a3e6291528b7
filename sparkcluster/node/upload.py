"""Takes a file from the operator's machine, by standard input.

The request has the lease, ``path`` below the directory ``root``, ``size`` and ``sha256``. The answer ``{"offset": N}``
says what is there already; the input is the rest, raw. The file is written beside its path and renamed once its hash is
right: never by an operator whose lease another one took, which is checked each second. What arrived stays for the next
run. Of a ``model``, with ``revision`` in the hub's cache, it is recorded, and what the user has in its place is kept.
"""

from __future__ import annotations

import hashlib
import os
import select
import stat
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, wire
from sparkcluster.node.file_hashes import Record, hash_file
from sparkcluster.node.model_files import forget
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

_OTHER_S = 20.0  # within which another one that takes the same file ends
_RESERVE_BYTES = 256 << 20  # left free for logs and records


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Take it; the answer is a ``wire.outcome``."""
    return wire.outcome(lambda: take(request, stdin.fileno()))


def take(request: Request, source: int) -> dict[str, Any]:
    """Take the file from descriptor ``source``; ``bytes`` that were received, and what was ``kept`` of the user's."""
    common.check_epoch(request)
    tree, path, size = Tree(common.expand(request["root"])), request["path"], request["size"]
    limit = time.monotonic() + _OTHER_S
    while not tree.lock():
        if time.monotonic() > limit:
            raise Failed("other", "another program writes to %s" % tree.root)
        time.sleep(0.1)
    if tree.size(path) == size and hash_file(hashlib.sha256(), os.path.join(tree.root, path)) == request["sha256"]:
        common.emit({"offset": size})
        return {"bytes": 0}
    folder, name = os.path.split(path)
    partial = os.path.join(folder, ".%s.%s.partial" % (name, request["sha256"][:8]))
    offset, digest = tree.size(partial), hashlib.sha256()
    if 0 < offset <= size:
        hash_file(digest, os.path.join(tree.root, partial))
    else:
        offset = 0
    disk = os.fstatvfs(tree.handle)
    free, needed = disk.f_bavail * disk.f_frsize, size - offset
    if free < needed + _RESERVE_BYTES:
        raise Failed("disk", "%s has %.1f GB free, %.1f GB needed" % (tree.root, free / 1e9, needed / 1e9))
    common.emit({"offset": offset})
    with tree.writer(partial, offset) as file:
        _receive(request, source, needed, file, digest)
        if digest.hexdigest() != request["sha256"]:
            file.truncate(0)
            raise Failed("hash", "%s arrived with another SHA-256 than it has on the operator's machine" % path)
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
        forget(file.fileno())
    common.not_taken(request)
    kept = _publish(request, tree, partial) if request.get("model") else {}
    tree.move(partial, path)
    return {"bytes": needed, **kept}


def _receive(request: Request, source: int, size: int, file: BinaryIO, digest: Any) -> None:
    checked = time.monotonic()
    while size:
        if select.select([source], [], [], 1.0)[0]:
            chunk = os.read(source, min(wire.CHUNK, size))
            if not chunk:
                raise Failed("lost", "the connection to the operator's machine ended")
            file.write(chunk)
            digest.update(chunk)
            size -= len(chunk)
        if time.monotonic() - checked >= 1.0:
            checked = time.monotonic()
            common.not_taken(request)
    file.flush()


def _publish(request: Request, tree: Tree, partial: str) -> dict[str, Any]:
    """Record that staging wrote the file, unless it replaces one of the user's, which is set aside."""
    path, record = request["path"], Record(request["state_dir"], tree.root)
    before, found = tree.status(path), tree.own_status(path)
    is_cache = "revision" in request and (path.startswith("blobs/") or (found and stat.S_ISLNK(found.st_mode)))
    kept = {}
    if found is not None and not is_cache and not record.is_ours(path, found):
        kept = {"kept": tree.set_aside(path)}
    with tree.reader(partial) as file:
        ours = before is None or record.is_ours(path, before)
        record.add(path, os.fstat(file.fileno()), request["sha256"], ours=ours)
    record.save(request["cluster"])
    return kept
