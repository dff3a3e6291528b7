"""What one node says a directory contains, checked before another node is to write it. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact, Number, Raw, Sha256
from sparkcluster.node.shared import UNFINISHED

MOST_FILES = 200_000
_PATH_BYTES = 1024
_PART_BYTES = 255 - len("..01234567.partial")


class BadAnswer(Exception):
    """No honest node has such files; the text says why."""


class ListedFile(Fact):
    """A file as a node lists it; with ``blob``, a link to that file in Hugging Face's cache. ``mtime`` is in ns.

    Attributes:
        git: hash by which Git names the content, of a blob that has such a name and was read.
        recorded: SHA-256 in the node's record of verified files, of a file that was read although it is in there.
    """

    name: Raw
    size: Number
    mtime: Number
    blob: Annotated[str, Field(pattern="^[0-9A-Za-z][0-9A-Za-z_-]{0,127}$")] | None = None
    sha256: Sha256 | None = None
    git: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
    recorded: Sha256 | None = None


@dataclasses.dataclass
class Manifest:
    """Files of a directory; with ``revision`` of that snapshot in Hugging Face's cache.

    Attributes:
        verify: whether each file must have a SHA-256.
        judged: whether a blob must have the content that its name says; not while it is unknown which copy is right.
        files: what workers take. All paths are made here, so that a node only says names.
        listed: the same as the node lists them, by name.
    """

    revision: str | None = None
    verify: bool = False
    judged: bool = True
    listed: dict[str, ListedFile] = dataclasses.field(default_factory=dict)
    files: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    _blobs: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    _names: set[str] = dataclasses.field(default_factory=set)
    _folders: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        if self.revision is not None and not re.fullmatch("[0-9A-Za-z]{1,64}", self.revision):
            raise BadAnswer(f"{self.revision[:60]!r} is not the name of a snapshot")

    @classmethod
    def of(cls, files: Iterable[ListedFile], revision: str | None) -> Manifest:
        """The manifest of ``files``, each of which has a SHA-256."""
        manifest = cls(revision, verify=True)
        for each in files:
            manifest.add(each)
        return manifest

    def add(self, found: ListedFile) -> None:
        """Add one file that a node has; BadAnswer if no honest node has such a file."""
        self.listed[found.name] = found
        if len(self.listed) > MOST_FILES:
            raise BadAnswer(f"the directory has more than {MOST_FILES} files")
        name = self._claim(found.name, f"snapshots/{self.revision}/" if self.revision else "")
        blob, sha256 = found.blob if self.revision else None, found.sha256
        if blob in self._blobs:
            first = self._blobs[blob]
            if (first["size"], first["sha256"]) != (found.size, sha256):
                raise BadAnswer(f"{name} and {first['links'][0]} are both links to {blob}, with different content")
            first["links"].append(name)
            return
        file = {"path": name, "size": found.size, "mtime": found.mtime, "links": [], "sha256": sha256}
        if self.verify and not sha256:
            raise BadAnswer(f"{name} has no SHA-256")
        if blob:
            file["path"], file["links"] = self._claim(blob, "blobs/"), [name]
            self._blobs[blob] = file
            if self.judged and sha256 and len(blob) == len(sha256) and blob != sha256:
                raise BadAnswer(f"{file['path']} is corrupt: its SHA-256 is {sha256}")
        self.files.append(file)

    def _claim(self, name: str, folder: str) -> str:
        """The path of ``name`` in ``folder``, which no other file has, and none is below."""
        path = f"{folder}{name}"
        parts = path.split("/")
        if (
            any(part in {"", ".", ".."} or not part.isprintable() for part in parts)
            or any(part.startswith(".") for part in parts[:-1])
            or len(path.encode()) > _PATH_BYTES
            or max(len(part.encode()) for part in parts) > _PART_BYTES
            or path.endswith(UNFINISHED)
        ):
            raise BadAnswer(f"{name[:200]!r} is not the path of a finished file below the directory")
        folders = ["/".join(parts[:end]) for end in range(1, len(parts))]
        if path in self._names or path in self._folders or not self._names.isdisjoint(folders):
            raise BadAnswer(f"{path} is listed twice, or a file is listed below it")
        self._names.add(path)
        self._folders.update(folders)
        return path
