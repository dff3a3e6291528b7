"""SHA-256 of every file of a model on this node. Python 3.8, standard library only; it only reads.

Says how far it is every second, and at the end which file has which hash.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import re
from typing import Any, BinaryIO, Dict, List, Optional

from sparkcluster.node import common, wire
from sparkcluster.node.model_files import hash_file, model_files

_SHA256 = re.compile(r"[0-9a-f]{64}")


def main(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Hash what is served below ``path``, by ``threads``; ``{"done": [...]}`` or ``{"failed": why}`` at the end."""
    wire.report(stdin, lambda: hashed(listed(request["path"], request.get("choice")), int(request["threads"])))


def listed(top: str, choice: Optional[Dict[str, Any]] = None) -> List[Dict[str, Any]]:
    """Files below ``top``, largest first, with the blob that each links to."""
    if not os.path.isdir(top):
        raise FileNotFoundError(2, "no such directory", top)
    found = []
    for path, real, status in model_files(top, choice):
        blob = os.path.basename(real) if os.path.islink(path) else ""
        found.append(
            {
                "name": os.path.relpath(path, top),
                "size_bytes": status.st_size,
                "blob": blob if _SHA256.fullmatch(blob) else None,
                "path": real,
            }
        )
    return sorted(found, key=lambda file: (-file["size_bytes"], file["name"]))


def hashed(files: List[Dict[str, Any]], threads: int) -> List[Dict[str, Any]]:
    """``files`` with their hashes; hashing releases the GIL, so threads run in parallel."""
    total = sum(file["size_bytes"] for file in files)
    done = [0] * len(files)

    def digest(place: int) -> str:
        def progress(size: int) -> None:
            done[place] += size

        return hash_file(hashlib.sha256(), files[place]["path"], progress)

    with concurrent.futures.ThreadPoolExecutor(max(1, threads)) as pool:
        hashing = [pool.submit(digest, place) for place in range(len(files))]
        while concurrent.futures.wait(hashing, timeout=1).not_done:
            common.emit({"bytes": sum(done), "total": total})
    for place, file in enumerate(files):
        del file["path"]
        file["sha256"] = hashing[place].result()
    return files
