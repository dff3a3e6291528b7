"""Takes a file from the operator's machine, by standard input.

The request has the lease, ``path`` below the directory ``root``, ``size``, ``sha256``, and ``private`` where both are
for this user alone. The answer ``{"offset": N}`` says what is there already; the input is the rest, raw. The file is
written beside its path and renamed once its hash is right, under the lock of changes: never by an operator whose lease
another one took, which is checked each second. What arrived stays for the next run. A file of a ``model`` is recorded.
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
from sparkcluster.node.wire import Check, Failed

Request = dict[str, Any]

_SILENT_S = 10.0  # without input the connection is gone, or the operator stopped; then the next run resumes
_OTHER_S = 20.0  # within which another one that takes the same file ends
_CHANGE_S = 20.0
_RESERVE_BYTES = 256 << 20  # left free for logs and records


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Take it; the answer is a ``wire.outcome``."""
    return wire.outcome(lambda: take(request, stdin.fileno()))


def take(request: Request, source: int) -> dict[str, Any]:
    """Take the file from descriptor ``source``; ``bytes`` that were received, and what was ``kept`` of the user's."""
    common.check_epoch(request)
    root, path, size = common.expand(request["root"]), request["path"], int(request["size"])
    private = bool(request.get("private"))
    os.makedirs(root, mode=0o700 if private else 0o755, exist_ok=True)
    tree = Tree(root)
    limit = time.monotonic() + _OTHER_S
    while not tree.lock():
        if time.monotonic() > limit:
            raise Failed("other", "another program writes to %s" % root)
        time.sleep(0.1)
    if tree.size(path) == size and hash_file(hashlib.sha256(), os.path.join(root, path)) == request["sha256"]:
        common.emit({"offset": size})
        return {"bytes": 0}
    folder, name = os.path.split(path)
    partial = os.path.join(folder, ".%s.%s.partial" % (name, request["sha256"][:8]))
    offset, digest = tree.size(partial), hashlib.sha256()
    if 0 < offset <= size:
        hash_file(digest, os.path.join(root, partial))
    else:
        offset = 0
    free = os.fstatvfs(tree.handle).f_bavail * os.fstatvfs(tree.handle).f_frsize
    if free < size - offset + _RESERVE_BYTES:
        text = "%s has %.1f GB free, %.1f GB needed" % (root, free / 1e9, (size - offset) / 1e9)
        raise Failed("disk", text)
    common.emit({"offset": offset})
    with tree.writer(partial, offset) as file:
        _receive(file, source, size - offset, digest, lambda: common.not_taken(request))
        if digest.hexdigest() != request["sha256"]:
            file.truncate(0)
            raise Failed("hash", "%s arrived with another SHA-256 than it has on the operator's machine" % path)
        os.fchmod(file.fileno(), 0o600 if private else 0o644)
        file.flush()
        os.fsync(file.fileno())
        forget(file.fileno())
    with common.change_lock(request, _CHANGE_S):
        common.not_taken(request)
        kept = _publish(request, tree, partial)
    return {"bytes": size - offset, **kept}


def _publish(request: Request, tree: Tree, partial: str) -> dict[str, Any]:
    """Give the file its name; of a model, record that staging wrote it unless it replaces one of the user's."""
    path = request["path"]
    if not request.get("model"):
        tree.move(partial, path)
        return {}
    record, before, own = Record(request["state_dir"], tree.root), tree.status(path), tree.own_status(path)
    ours = before is None or record.is_ours(path, before)
    keep = request.get("keep")  # "files and links", or "files" where a link is the cache's
    aside = own is not None and not record.is_ours(path, own) and not (keep == "files" and stat.S_ISLNK(own.st_mode))
    kept = {"kept": tree.set_aside(path)} if keep and aside else {}
    tree.move(partial, path)
    status = tree.status(path)
    if status is not None:
        record.add(path, status, request["sha256"], ours=ours)
        record.save(request["cluster"])
    return kept


def _receive(file: BinaryIO, source: int, size: int, digest: Any, check: Check) -> None:
    heard = checked = time.monotonic()
    while size:
        ready = select.select([source], [], [], 1.0)[0]
        now = time.monotonic()
        if now - checked >= 1.0:
            checked = now
            check()
        if not ready:
            if now - heard > _SILENT_S:
                raise Failed("lost", "nothing came from the operator's machine for %.0f s" % _SILENT_S)
            continue
        chunk = os.read(source, min(wire.CHUNK, size))
        if not chunk:
            raise Failed("lost", "the connection to the operator's machine ended")
        heard = now
        file.write(chunk)
        digest.update(chunk)
        size -= len(chunk)
