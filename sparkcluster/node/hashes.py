"""SHA-256 of every file of a model on this node. Python 3.8, standard library only; it only reads.

Says how far it is every second, and at the end which file has which hash.
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import sys
import threading
import time
from typing import Any, BinaryIO, Dict, List

from sparkcluster.node import common
from sparkcluster.node.model_files import hash_file, model_files

_SHA256 = re.compile(r"[0-9a-f]{64}")


def main(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Hash what lies below ``path`` with ``threads`` threads; ``{"done": [...]}`` or ``{"failed": why}`` at the end."""
    common.end_with(stdin)
    try:
        files = listed(request["path"])
        common.emit({"done": hashed(files, int(request["threads"]))})
    except OSError as error:
        where = ": %s" % error.filename if error.filename else ""
        common.emit({"failed": "%s%s" % ((error.strerror or str(error)).lower(), where)})
    sys.stdout.flush()
    os._exit(0)


def listed(top: str) -> List[Dict[str, Any]]:
    """Files below ``top``, largest first, with the blob that each links to."""
    if not os.path.isdir(top):
        raise FileNotFoundError(2, "no such directory", top)
    found = []
    for path, real, status in model_files(top):
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
    waiting: "queue.Queue[Dict[str, Any]]" = queue.Queue()
    for file in files:
        waiting.put(file)
    done = [0] * max(1, threads)
    errors: List[BaseException] = []

    def work(place: int) -> None:
        def progress(size: int) -> None:
            done[place] += size

        try:
            while True:
                file = waiting.get_nowait()
                file["sha256"] = hash_file(hashlib.sha256(), file["path"], progress)
        except queue.Empty:
            return
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(len(done))]
    total, said = sum(file["size_bytes"] for file in files), time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(0.2)
            if time.monotonic() - said >= 1:
                said = time.monotonic()
                common.emit({"bytes": sum(done), "total": total})
    if errors:
        raise errors[0]
    return [{key: value for key, value in file.items() if key != "path"} for file in files]
