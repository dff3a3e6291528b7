"""The files of a model on this node."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from sparkcluster.node import model_choice
from sparkcluster.node.shared import UNFINISHED


class Status(NamedTuple):
    """What is kept of the status of a file."""

    st_size: int
    st_mtime_ns: int
    st_ino: int


def model_files(top: str, choice: model_choice.Choice | None = None) -> Iterator[tuple[str, str, Status]]:
    """Name, path with links resolved, and status of the finished files below ``top`` that ``choice`` leaves in."""
    found, _ = present(top)
    index = model_choice.index_of(found, choice)
    listed = shards(os.path.join(top, index)) if index else ()
    for name in model_choice.chosen(found, listed or (), choice):
        yield name, os.path.realpath(os.path.join(top, name)), found.pop(name)


def shards(path: str) -> list[str] | None:
    """The files that an index lists, sorted; None if it is invalid."""
    try:
        with open(path, encoding="utf-8") as file:
            return sorted(set(map(str, json.load(file)["weight_map"].values())))
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None


def present(top: str) -> tuple[dict[str, Status], list[str]]:
    """The finished files below ``top`` with their status, links followed; and the links to blobs that were removed.

    Raises:
        OSError: a folder cannot be read, whose files would be left out.
    """

    def fail(error: OSError) -> None:
        raise error

    found: dict[str, Status] = {}
    broken: list[str] = []
    for here, folders, names in os.walk(top, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(here, name)
            if name.endswith(UNFINISHED):
                continue
            try:
                status = os.stat(path)
            except FileNotFoundError:
                broken.append(os.path.relpath(path, top))
                continue
            if stat.S_ISREG(status.st_mode):
                found[os.path.relpath(path, top)] = Status(status.st_size, status.st_mtime_ns, status.st_ino)
    return found, broken


def forget(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Drop a file from the page cache, or ``size`` bytes of it: on a Spark it takes memory from the GPU."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)
