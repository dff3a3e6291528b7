"""The files of a model on this node, and their SHA-256. Python 3.8, standard library only."""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Callable, Iterator, List, Optional, Tuple

from sparkcluster.node import model_choice
from sparkcluster.node.shared import UNFINISHED

_INDEX_LIMIT_BYTES = 100_000_000
_DROP_BYTES = 64 << 20  # of a file that is read, what stays in the page cache behind the cursor


def model_files(top: str, choice: Optional[model_choice.Choice] = None) -> Iterator[Tuple[str, str, os.stat_result]]:
    """Path, path with links resolved, and status of the finished files below ``top`` that ``choice`` leaves in."""
    found = {os.path.relpath(path, top): (path, real, status) for path, real, status in _finished(top)}
    index = model_choice.index_of(found, choice)
    for name in model_choice.chosen(found, _shards(*found[index][1:]) if index else (), choice):
        yield found[name]


def _shards(path: str, status: os.stat_result) -> List[str]:
    """The files that an index lists; none if it is invalid."""
    if status.st_size > _INDEX_LIMIT_BYTES:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            return [str(name) for name in json.load(file)["weight_map"].values()]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return []


def _finished(top: str) -> Iterator[Tuple[str, str, os.stat_result]]:
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
        dropped = offset = 0
        for size in iter(lambda: file.readinto(buffer), 0):
            digest.update(view[:size])
            offset += size
            if offset - dropped >= _DROP_BYTES:
                forget(file.fileno(), dropped, offset - dropped)
                dropped = offset
            progress(size)
        forget(file.fileno())
    return str(digest.hexdigest())


def forget(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Drop a file from the page cache, or ``size`` bytes of it: on a Spark it takes memory from the GPU."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)
