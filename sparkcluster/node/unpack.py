"""Unpacks the Ray that is mounted into images without it.

A step of the agent: the directory appears complete or not at all, and is never changed afterwards, since running
containers may have it mounted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import zlib
from typing import Any

from sparkcluster.node import common
from sparkcluster.node.file_hashes import hash_file

MARKER = "sparkcluster.json"
# Ray with all that it needs has 200 MB in 9000 files.
_MOST_BYTES = 4 << 30
_MOST_MEMBERS = 100_000
_PIECE_BYTES = 64 << 20


def unpack(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Unpack ``step["archive"]`` (a compressed tar) as directory ``step["path"]``, unless it exists.

    An archive with another SHA-256 than ``step["sha256"]`` is removed and OSError raised.
    """
    archive, path = common.expand(step["archive"]), common.expand(step["path"])
    if os.path.exists(os.path.join(path, MARKER)):
        return {"already": True}
    digest = hash_file(hashlib.sha256(), archive)
    if step["sha256"] != digest:
        os.unlink(archive)
        raise OSError("%s is corrupt: its SHA-256 differs from the sender's" % archive)
    folder, name = os.path.split(path)
    for leftover in os.listdir(folder):
        # only one change runs at a time, so its program has ended
        if leftover.startswith(".partial-" + name):
            shutil.rmtree(os.path.join(folder, leftover), ignore_errors=True)
    partial = os.path.join(folder, ".partial-%s-%d" % (name, os.getpid()))
    os.mkdir(partial, 0o755)
    try:
        with Bounded(archive) as content, tarfile.open(fileobj=content, mode="r:") as packed:
            for number, member in enumerate(packed):
                if number >= _MOST_MEMBERS:
                    raise OSError("%s has more than %d members" % (archive, _MOST_MEMBERS))
                extract(packed, member, partial)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise OSError("%s is damaged: %s" % (archive, error))
    with open(os.path.join(partial, MARKER), "w") as file:
        json.dump({"sha256": digest}, file)
    # after a power failure, no marker may exist beside files that are still empty
    os.sync()
    if os.path.isdir(path):
        shutil.rmtree(path)
    os.rename(partial, path)
    return {"already": False}


class Bounded(gzip.GzipFile):
    """A compressed archive that is read to ``_MOST_BYTES`` at most, and in pieces that fit into memory."""

    def read(self, size: int | None = -1) -> bytes:
        """Read ``size`` bytes; OSError beyond the limits."""
        if size is None or not 0 <= size <= _PIECE_BYTES or self.tell() + size > _MOST_BYTES:
            raise OSError("%s has a member that is too large" % self.name)
        return super().read(size)


def extract(packed: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Write one member below ``folder``: files and directories only, each once, readable by every user."""
    if {"", ".", ".."} & set(member.name.split("/")):
        raise OSError("path outside of the archive's directory: %r" % member.name)
    target = os.path.join(folder, member.name)
    if member.isdir():
        os.makedirs(target, exist_ok=True)
        os.chmod(target, 0o755)
        return
    content = packed.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise OSError("neither file nor directory in the archive: %r" % member.name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with content, open(target, "xb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)
