"""Unpacks the Ray that is mounted into images without it. Python 3.8, standard library only.

A step of the agent: the directory appears complete or not at all, and is never changed afterwards, since running
containers may have it mounted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from typing import Any, Dict

from sparkcluster.node import common
from sparkcluster.node.model_files import hash_file

MARKER = "sparkcluster.json"


def unpack(request: Dict[str, Any], step: Dict[str, Any]) -> Dict[str, Any]:
    """Unpack ``step["archive"]`` (a compressed tar) as directory ``step["path"]``, unless it exists.

    With ``sha256`` in the step, an archive with another hash is removed and OSError raised.
    """
    archive, path = common.expand(step["archive"]), common.expand(step["path"])
    if os.path.exists(os.path.join(path, MARKER)):
        return {"already": True}
    digest = hash_file(hashlib.sha256(), archive)
    if step.get("sha256") not in (None, digest):
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
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                extract(packed, member, partial)
    except (tarfile.TarError, EOFError) as error:
        raise OSError("%s is damaged: %s" % (archive, error))
    with open(os.path.join(partial, MARKER), "w") as file:
        json.dump({"sha256": digest}, file)
    # after a power failure, no marker may exist beside files that are still empty
    os.sync()
    if os.path.isdir(path):
        shutil.rmtree(path)
    os.rename(partial, path)
    return {"already": False}


def extract(packed: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Write one member below ``folder``: files and directories only, readable by every user."""
    target = os.path.normpath(os.path.join(folder, member.name))
    if not (target + os.sep).startswith(folder + os.sep):
        raise OSError("path outside of the archive's directory: %r" % member.name)
    if member.isdir():
        os.makedirs(target, exist_ok=True)
        os.chmod(target, 0o755)
        return
    content = packed.extractfile(member) if member.isreg() else None
    if content is None:
        raise OSError("neither file nor directory in the archive: %r" % member.name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with content, open(target, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)
