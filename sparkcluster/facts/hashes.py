"""What the weights on every node really hold, as ``preflight --hash`` read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class HashedFile:
    """One file of the weights.

    Attributes:
        name: relative to the model's directory.
        blob: name of the file in Hugging Face's cache that it points at, where that is a SHA-256; the hub names
            large files so.
    """

    name: str
    size_bytes: int
    sha256: str
    blob: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Hashes:
    """The files of every node that was asked, and why some could not be read."""

    files: Mapping[str, tuple[HashedFile, ...]]
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The hashes as ``preflight --hash --json`` shows them."""
        files = {name: [dataclasses.asdict(file) for file in held] for name, held in self.files.items()}
        return {"files": files, "unasked": dict(self.unasked)}
