"""Unpacks the Ray that is mounted into images without it.

A step of the agent. The directory appears complete or not at all, and is never changed afterwards, since running
containers may have it mounted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from typing import Any

from sparkcluster.node import common
from sparkcluster.node.file_hashes import hash_file


def unpack(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Unpack ``step["archive"]`` (compressed tar) as directory ``step["path"]``, unless it exists; remove the archive.

    The operator's machine built the archive from packages pinned by hash. If its hash differs from ``step["sha256"]``,
    it is removed and OSError raised.
    """
    archive, path = common.expand(step["archive"]), common.expand(step["path"])
    if step["sha256"] != hash_file(hashlib.sha256(), archive):
        os.unlink(archive)
        raise OSError("%s is corrupt: its SHA-256 differs from the sender's" % archive)
    if not os.path.isdir(path):
        partial = os.path.join(os.path.dirname(archive), "unpacked")
        shutil.rmtree(partial, ignore_errors=True)  # only one change runs at a time
        with tarfile.open(archive) as packed:
            packed.extraction_filter = getattr(tarfile, "tar_filter", None)  # since 3.10.12
            packed.extractall(partial)
        os.sync()  # otherwise a power failure may leave the directory with empty files
        os.rename(partial, path)
    shutil.rmtree(os.path.dirname(archive))
    return {}
