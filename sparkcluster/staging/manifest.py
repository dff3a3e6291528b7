"""What one node says a directory contains, checked before another node is to write it. Pure."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact
from sparkcluster.node.shared import UNFINISHED

MOST_NAMES = 100_000
_PATH_BYTES = 1024
_PART_BYTES = 255 - len("..01234567.partial")

Size = Annotated[int, Field(ge=0, le=1 << 50, strict=True)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class BadAnswer(Exception):
    """No honest node has such files; the text says why."""


class ListedFile(Fact):
    """A file as a node lists it; with ``blob``, a link to that file in Hugging Face's cache. ``mtime`` is in ns."""

    name: str
    size: Size
    mtime: Annotated[int, Field(ge=0, le=1 << 62, strict=True)]
    blob: Annotated[str, Field(pattern="^[0-9A-Za-z][0-9A-Za-z_-]{0,127}$")] | None = None
    sha256: Sha256 | None = None


@dataclasses.dataclass
class Manifest:
    """Files of a directory; with ``revision`` of that snapshot in Hugging Face's cache.

    Attributes:
        verify: whether each file must have a SHA-256.
        files: what ``node.relay`` takes. All paths are made here, so that a node only says names.
    """

    revision: str | None = None
    verify: bool = False
    files: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    _blobs: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    _names: set[str] = dataclasses.field(default_factory=set)
    _folders: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        if self.revision is not None and not re.fullmatch("[0-9A-Za-z]{1,64}", self.revision):
            raise BadAnswer(f"{self.revision[:60]!r} is not the name of a snapshot")

    def add(self, found: ListedFile) -> None:
        """Add one file that a node has; BadAnswer if no honest node has such a file."""
        name = self._claim(found.name, f"snapshots/{self.revision}/" if self.revision else "")
        blob, sha256 = found.blob if self.revision else None, found.sha256
        if blob in self._blobs:
            self._blobs[blob]["links"].append(name)
            return
        file = {"path": name, "size": found.size, "mtime": found.mtime, "links": [], "sha256": sha256}
        if self.verify and not sha256:
            raise BadAnswer(f"{name} has no SHA-256")
        if blob:
            file["path"], file["links"] = self._claim(blob, "blobs/"), [name]
            self._blobs[blob] = file
            if sha256 and len(blob) == len(sha256) and blob != sha256:
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
        if len(self._names) > MOST_NAMES:
            raise BadAnswer(f"the directory has more than {MOST_NAMES} files")
        return path
