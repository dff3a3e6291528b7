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
import shutil
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, wire
from sparkcluster.node.file_hashes import hash_file
from sparkcluster.node.file_list import Entry, Listed
from sparkcluster.node.publish import Publisher
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Failed

_OTHER_S = 20.0  # within which another one that takes the same file ends
_RESERVE_BYTES = 256 << 20  # left free for logs and records


def main(request: dict[str, Any], stdin: BinaryIO) -> dict[str, Any]:
    """Take it; the answer is a ``wire.outcome``."""
    return wire.outcome(lambda: take(request, stdin.fileno()))


def take(request: dict[str, Any], source: int) -> dict[str, Any]:
    """Take the file from descriptor ``source``; ``bytes`` that were received, and what was ``kept`` of the user's."""
    common.check_epoch(request)
    tree, path, size = Tree(common.expand(request["root"])), request["path"], request["size"]

    def gate() -> None:
        common.not_taken(request)

    tree.lock(_OTHER_S, gate)
    if tree.size(path) == size and hash_file(hashlib.sha256(), os.path.join(tree.root, path)) == request["sha256"]:
        common.emit({"offset": size})
        return {"bytes": 0}
    folder, name = os.path.split(path)
    partial = os.path.join(folder, ".%s.%s.partial" % (name, request["sha256"][:8]))
    begun, digest = tree.size(partial), hashlib.sha256()
    offset = begun if 0 < begun <= size else 0
    if offset:
        hash_file(digest, os.path.join(tree.root, partial))
    free, needed = shutil.disk_usage(tree.root).free, size - offset
    if free < needed + _RESERVE_BYTES:
        raise Failed("disk", "%s has %.1f GB free, %.1f GB needed" % (tree.root, free / 1e9, needed / 1e9))
    common.emit({"offset": offset})
    with tree.writer(partial, offset) as file:
        _receive(source, needed, file, digest, gate)
        if digest.hexdigest() != request["sha256"]:
            file.truncate(0)
            raise Failed("hash", "%s arrived with another SHA-256 than it should have" % path)
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    # What the user has in the place of a model's file is kept; what else is sent goes below the state directory.
    replace = () if request.get("model") else (0,)
    listed = Listed([Entry(path, size, 0, digest.digest(), ())])
    publisher = Publisher({**request, "replace": replace}, listed, tree, gate, gate)
    publisher.large(0, partial, digest.hexdigest())
    return {"bytes": needed, "kept": next(iter(publisher.kept), None)}


def _receive(source: int, size: int, file: BinaryIO, digest: Any, gate: Callable[[], None]) -> None:
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
            gate()
    file.flush()
