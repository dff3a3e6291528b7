"""Validates the list of files of one node before another node writes them. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact, Number, Raw, Sha256
from sparkcluster.node.shared import UNFINISHED

MOST_FILES = 200_000
"""Maximum number of files in a directory."""
_PATH_BYTES = 1024
_PART_BYTES = 255 - len("..01234567.partial")


class BadAnswer(Exception):
    """A list of files that cannot be genuine; the message says why."""


class ListedFile(Fact):
    """A file as listed by a node; with ``blob``, a link to that file in Hugging Face's cache. ``mtime`` is in ns.

    Attributes:
        git: Git's hash of the content, if the blob is named by such a hash and was read.
        recorded: SHA-256 in the node's record of verified files, if the file was read again.
    """

    name: Raw
    size: Number
    mtime: Number
    blob: Annotated[str, Field(pattern="^[0-9A-Za-z][0-9A-Za-z_-]{0,127}$")] | None = None
    sha256: Sha256 | None = None
    git: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
    recorded: Sha256 | None = None

    @property
    def promised(self) -> str | None:
        """The expected hash: the name of its blob, else the record's."""
        return self.blob if self.git or re.fullmatch("[0-9a-f]{64}", self.blob or "") else self.recorded

    @property
    def is_right(self) -> bool:
        """Whether the content has the expected hash; True if none is known."""
        return self.promised in {None, self.sha256, self.git}


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """Files of a directory, or of a snapshot in Hugging Face's cache.

    Attributes:
        listed: the files by name, as listed by nodes.
        files: the files for workers. All paths are built here; a node only provides names.
    """

    listed: Mapping[str, ListedFile]
    files: list[dict[str, Any]]

    @classmethod
    def of(cls, found: Iterable[ListedFile], revision: str | None) -> Manifest:
        """The manifest of the files ``found``, with ``revision`` in that snapshot.

        Raises:
            BadAnswer: the list cannot be genuine.
        """
        if revision is not None and not re.fullmatch("[0-9A-Za-z]{1,64}", revision):
            raise BadAnswer(f"{revision[:60]!r} is not the name of a snapshot")
        listed: dict[str, ListedFile] = {}
        files: dict[str, dict[str, Any]] = {}
        folders: set[str] = set()
        for each in found:
            name = f"snapshots/{revision}/{each.name}" if revision else each.name
            parts = name.split("/")
            _check(name, parts)
            folders.update("/".join(parts[:end]) for end in range(1, len(parts)))
            if name in listed:
                raise BadAnswer(f"{name} is listed twice")
            listed[name] = each
            path = f"blobs/{each.blob}" if revision and each.blob else name
            new = {"path": path, "size": each.size, "mtime": each.mtime, "links": [], "sha256": each.sha256}
            file = files.setdefault(path, new)
            if path != name:
                file["links"].append(name)
            if (file["size"], file["sha256"]) != (each.size, each.sha256):
                raise BadAnswer(f"{' and '.join(file['links'])} are links to {path}, with different content")
        if below := folders & listed.keys():
            raise BadAnswer(f"{min(below)} is listed as a file and as a directory")
        return cls({each.name: each for each in listed.values()}, list(files.values()))


def _check(name: str, parts: Sequence[str]) -> None:
    """BadAnswer unless ``name`` is the path of a finished file below the directory; ``parts`` are its components."""
    if (
        any(part in {"", ".", ".."} or not part.isprintable() for part in parts)
        or any(part.startswith(".") for part in parts[:-1])
        or len(name.encode()) > _PATH_BYTES
        or max(len(part.encode()) for part in parts) > _PART_BYTES
        or name.endswith(UNFINISHED)
    ):
        raise BadAnswer(f"{name[:200]!r} is not the path of a finished file below the directory")
