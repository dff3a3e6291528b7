"""Hashes of the weights on every node, as ``preflight --hash`` computed them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


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
    """Hashed files by node, and why some nodes have none."""

    files: Mapping[str, tuple[HashedFile, ...]] = dataclasses.field(default_factory=dict)
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)
