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
    """The parts of a file's status that are kept."""

    st_size: int
    st_mtime_ns: int
    st_ino: int


def model_files(top: str, choice: model_choice.Choice | None = None) -> Iterator[tuple[str, str, Status]]:
    """Name, resolved path and status of the complete files below ``top`` that ``choice`` selects."""
    found, _ = present(top)
    index = model_choice.index_of(found, choice)
    listed = shards(os.path.join(top, index)) if index else ()
    for name in model_choice.chosen(found, listed or (), choice):
        yield name, os.path.realpath(os.path.join(top, name)), found.pop(name)


def shards(path: str) -> list[str] | None:
    """The files in an index, sorted; None if it is invalid."""
    try:
        with open(path, encoding="utf-8") as file:
            return sorted(set(map(str, json.load(file)["weight_map"].values())))
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None


def present(top: str) -> tuple[dict[str, Status], list[str]]:
    """The complete files below ``top`` with their status, following links; and the links to removed blobs.

    Raises:
        OSError: a folder cannot be read.
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
    """Drop a file, or ``size`` bytes of it, from the page cache: on a Spark it takes memory from the GPU."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)
