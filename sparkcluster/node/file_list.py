"""The list of files of a job, as a worker keeps it."""

from __future__ import annotations

import array
import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from sparkcluster.node.wire import Failed


class Entry(NamedTuple):
    """A line of the list of files; ``sha256`` is None where no node has read the file yet."""

    path: str
    size: int
    mtime: int
    sha256: bytes | None
    links: tuple[str, ...]


class Listed:
    """The files in a list, which may be many: 60,000 take 12 MB here and 25 MB as entries."""

    def __init__(self, path: str, sha256: str | None = None) -> None:
        """Read the list at ``path``, line by line; Failed if it has another ``sha256``."""
        self._paths: list[str] = []
        self._sizes, self._mtimes = array.array("Q"), array.array("Q")
        self._hashes, self._known = bytearray(), bytearray()
        self._links: list[str] = []
        self._learned: dict[int, str] = {}
        digest = hashlib.sha256()
        with open(path, "rb") as lines:
            for line in lines:
                digest.update(line)
                self._add(json.loads(line))
        if sha256 not in (None, digest.hexdigest()):
            raise Failed("other", "%s is not the list of files of this job" % path)

    def _add(self, file: dict[str, Any]) -> None:
        self._paths.append(file["path"])
        self._sizes.append(file["size"])
        self._mtimes.append(file["mtime"])
        self._known.append(bool(file["sha256"]))
        self._hashes += bytes.fromhex(file["sha256"] or "0" * 64)
        self._links.append("\0".join(file["links"]))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Entry:
        known = bytes(self._hashes[32 * number : 32 * number + 32]) if self._known[number] else None
        links = tuple(self._links[number].split("\0")) if self._links[number] else ()
        return Entry(self._paths[number], self._sizes[number], self._mtimes[number], known, links)

    def sha256(self, number: int) -> str | None:
        """The SHA-256 of a file, in hexadecimal, if that is known by now."""
        listed = self[number].sha256
        return listed.hex() if listed else self._learned.get(number)

    def learn(self, hashes: dict[int, str]) -> None:
        """Take in the SHA-256 of files that have none in the list."""
        self._learned.update(hashes)

    def __iter__(self) -> Iterator[Entry]:
        return (self[number] for number in range(len(self)))
