"""Unpacks the Ray that is brought to an image without one. Python 3.8, standard library only.

A step of the agent: what it makes looks whole only once it is, and is never changed again, since containers
that run may have it mounted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from typing import Any, Dict

from sparkcluster.node import common

MARKER = "sparkcluster.json"


def unpack(request: Dict[str, Any], step: Dict[str, Any]) -> Dict[str, Any]:
    """Unpack ``step["archive"]`` (a compressed tar) as directory ``step["path"]``; one that is there stays.

    With ``sha256`` in the step, an archive of another hash is removed and OSError raised.
    """
    archive, path = common.expand(step["archive"]), common.expand(step["path"])
    if os.path.exists(os.path.join(path, MARKER)):
        return {"already": True}
    digest = hash_of(archive)
    if step.get("sha256") not in (None, digest):
        os.unlink(archive)
        raise OSError("%s did not arrive as it was sent" % archive)
    folder, name = os.path.split(path)
    for left in os.listdir(folder):
        # only one change runs at a time, so whoever made it is gone
        if left.startswith(".partial-" + name):
            shutil.rmtree(os.path.join(folder, left), ignore_errors=True)
    partial = os.path.join(folder, ".partial-%s-%d" % (name, os.getpid()))
    os.mkdir(partial, 0o755)
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                extract(packed, member, partial)
    except (tarfile.TarError, EOFError) as error:
        raise OSError("%s is damaged: %s" % (archive, error))
    with open(os.path.join(partial, MARKER), "w") as file:
        json.dump({"sha256": digest}, file)
    # a power cut must not leave a marker beside files that are still empty
    os.sync()
    if os.path.isdir(path):
        shutil.rmtree(path)
    os.rename(partial, path)
    return {"already": False}


def extract(packed: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Write one member below ``folder``: plain files and directories alone, readable by whoever runs the engine."""
    target = os.path.normpath(os.path.join(folder, member.name))
    if not (target + os.sep).startswith(folder + os.sep):
        raise OSError("the archive leads out of its folder: %r" % member.name)
    if member.isdir():
        os.makedirs(target, exist_ok=True)
        os.chmod(target, 0o755)
        return
    content = packed.extractfile(member) if member.isreg() else None
    if content is None:
        raise OSError("the archive holds something that is no file: %r" % member.name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with content, open(target, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)


def hash_of(path: str) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
