"""Receives a file from the operator's machine by standard input.

The request has the lease, ``path`` below the directory ``root``, ``size`` and ``sha256``, and ``mtime`` (ns) if known.
The answer ``{"offset": N}`` is the size that has already arrived; the input is the rest, raw. The file is written like
a file from another node (``files``). The lease is checked each second: an operator who lost it cannot continue. Data
that arrived is kept for the next run. For a ``model`` (with ``revision`` in the hub's cache) a user's file is moved
aside.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, wire
from sparkcluster.node.file_hashes import hash_file
from sparkcluster.node.file_list import Entry, Listed
from sparkcluster.node.files import Arriving, Files
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Check, Failed

_OTHER_S = 20.0  # for another program that receives the same file to end
_RESERVE_BYTES = 256 << 20  # kept free for logs and records
_MTIME_NS = 1 << 60  # 2006, for files without a time: a ZIP archive, such as a wheel, supports none before 1980


def main(request: dict[str, Any], stdin: BinaryIO) -> dict[str, Any]:
    """Receive the file; the answer is a ``wire.outcome``."""
    return wire.outcome(lambda: take(request, stdin.fileno()))


def take(request: dict[str, Any], source: int) -> dict[str, Any]:
    """Receive the file from descriptor ``source``; return ``bytes`` received and ``kept``, a replaced file."""
    common.check_epoch(request)
    tree, path, size, sha256 = Tree(common.expand(request["root"])), request["path"], request["size"], request["sha256"]

    def gate() -> None:
        common.check_not_taken(request)

    tree.lock(_OTHER_S, gate)
    if tree.size(path) == size and hash_file(hashlib.sha256(), os.path.join(tree.root, path)) == sha256:
        common.emit({"offset": size})
        return {"bytes": 0}
    listed = Listed([Entry(path, size, request.get("mtime", _MTIME_NS), bytes.fromhex(sha256), ())])
    # Files that belong to no model go below the state directory, which has no files of the user.
    files = Files({**request, "replace": () if request.get("model") else (0,)}, listed, tree, gate)
    free, needed = shutil.disk_usage(tree.root).free, size - files.begun(0)
    if free < needed + _RESERVE_BYTES:
        raise Failed("disk", "%s has %.1f GB free, %.1f GB needed" % (tree.root, free / 1e9, needed / 1e9))
    file = files.write(0)
    common.emit({"offset": file.at})
    _receive(source, file, gate)
    if files.arrived(file):
        raise Failed("hash", "%s arrived with a wrong SHA-256" % path)
    return {"bytes": needed, "kept": next(iter(files.kept()), None)}


def _receive(source: int, file: Arriving, gate: Check) -> None:
    checked = time.monotonic()
    while file.at < file.size:
        if select.select([source], [], [], 1.0)[0]:
            chunk = os.read(source, min(wire.CHUNK, file.size - file.at))
            if not chunk:
                raise Failed("lost", "the connection to the operator's machine ended")
            file.write(memoryview(chunk), "")
        if time.monotonic() - checked >= 1.0:
            checked = time.monotonic()
            gate()
