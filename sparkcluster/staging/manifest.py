"""What one node says a directory contains, checked before another node is to write it. Pure."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sparkcluster.node.shared import UNFINISHED

MOST_NAMES = 100_000
_MOST_BYTES = 1 << 50
_PATH_BYTES = 1024
_PART_BYTES = 255 - len("..01234567.partial")


class BadAnswer(Exception):
    """A node's answer is not what our program says there; the text says what is wrong with it."""


def count(answer: dict[str, Any], key: str, most: int = _MOST_BYTES, default: int | None = None) -> int:
    """The number ``answer[key]``, from 0 to ``most``; BadAnswer if it is anything else."""
    value = answer.get(key, default)
    if type(value) is not int or not 0 <= value <= most:
        raise BadAnswer(f"invalid answer: {key} is {str(value)[:60]!r}")
    return value


def matching(answer: dict[str, Any], key: str, pattern: str) -> str | None:
    """The text ``answer[key]``, None if there is none; BadAnswer if it does not match ``pattern`` as a whole."""
    value = answer.get(key)
    if value is not None and not (isinstance(value, str) and re.fullmatch(pattern, value)):
        raise BadAnswer(f"invalid answer: {key} is {str(value)[:60]!r}")
    return value


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
        matching({"revision": self.revision}, "revision", "[0-9A-Za-z]{1,64}")

    def add(self, found: Any) -> None:
        """Add one file that a node has; BadAnswer if no honest node has such a file."""
        if not isinstance(found, dict):
            raise BadAnswer("invalid answer: a file is no object")
        name = self._claim(found.get("name"), f"snapshots/{self.revision}/" if self.revision else "")
        file = {"path": name, "size": count(found, "size"), "mtime": count(found, "mtime", 1 << 62), "links": []}
        blob = matching(found, "blob", "[0-9A-Za-z][0-9A-Za-z_-]{0,127}") if self.revision else None
        if blob in self._blobs:
            self._blobs[blob]["links"].append(name)
            return
        file["sha256"] = sha256 = matching(found, "sha256", "[0-9a-f]{64}")
        if self.verify and not sha256:
            raise BadAnswer(f"invalid answer: {name} has no SHA-256")
        if blob:
            file["path"], file["links"] = self._claim(blob, "blobs/"), [name]
            self._blobs[blob] = file
            if sha256 and len(blob) == len(sha256) and blob != sha256:
                raise BadAnswer(f"{file['path']} is corrupt: its SHA-256 is {sha256}")
        self.files.append(file)

    def _claim(self, name: Any, folder: str) -> str:
        """The path of ``name`` in ``folder``, which no other file has, and none is below."""
        path = f"{folder}{name}" if isinstance(name, str) else ""
        parts = path.split("/")
        if (
            any(part in {"", ".", ".."} or not part.isprintable() for part in parts)
            or any(part.startswith(".") for part in parts[:-1])
            or len(path.encode()) > _PATH_BYTES
            or max(len(part.encode()) for part in parts) > _PART_BYTES
            or path.endswith(UNFINISHED)
        ):
            raise BadAnswer(f"{str(name)[:200]!r} is not the path of a finished file below the directory")
        folders = ["/".join(parts[:end]) for end in range(1, len(parts))]
        if path in self._names or path in self._folders or not self._names.isdisjoint(folders):
            raise BadAnswer(f"{path} is listed twice, or a file is listed below it")
        self._names.add(path)
        self._folders.update(folders)
        if len(self._names) > MOST_NAMES:
            raise BadAnswer(f"the directory has more than {MOST_NAMES} files")
        return path
