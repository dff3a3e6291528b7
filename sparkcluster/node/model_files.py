"""The files of a model on this node, and their SHA-256. Python 3.8, standard library only."""

from __future__ import annotations

import os
import stat
from typing import Any, Callable, Iterator, Tuple

from sparkcluster.node.shared import UNFINISHED


def model_files(top: str) -> Iterator[Tuple[str, str, os.stat_result]]:
    """Path, path with links resolved, and status of every finished file below ``top``, in a fixed order."""
    for here, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(here, name)
            if name.endswith(UNFINISHED):
                continue
            real = os.path.realpath(path)
            status = os.stat(real)
            if stat.S_ISREG(status.st_mode):
                yield path, real, status


def hash_file(digest: Any, path: str, progress: Callable[[int], None] = lambda _size: None) -> str:
    """Add a file to ``digest`` and return that in hexadecimal; ``progress`` gets the bytes of each step."""
    buffer = bytearray(4 << 20)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        for size in iter(lambda: file.readinto(buffer), 0):
            digest.update(view[:size])
            progress(size)
        forget(file.fileno())
    return str(digest.hexdigest())


def forget(descriptor: int) -> None:
    """Drop a file from the page cache: on a Spark it takes memory from the GPU."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
