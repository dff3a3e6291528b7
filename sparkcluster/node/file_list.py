"""The list of files of a worker's job."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from typing import NamedTuple

from sparkcluster.node.wire import Failed


class Entry(NamedTuple):
    """A line of the list; ``sha256`` is None until a node has read the file."""

    path: str
    size: int
    mtime: int
    sha256: bytes | None
    links: tuple[str, ...]


class Listed(list[Entry]):
    """The files of the list, by number: 60,000 take 25 MB."""

    def sha256(self, number: int) -> str | None:
        """The hexadecimal SHA-256 of a file, if it is known by now."""
        known = self[number].sha256
        return known.hex() if known else None

    def learn(self, hashes: dict[str, str]) -> None:
        """Add the SHA-256 of files that have none in the list, by number."""
        for text, sha256 in hashes.items():
            number = int(text)
            if self[number].sha256 is None:
                self[number] = self[number]._replace(sha256=bytes.fromhex(sha256))


def read(lines: Iterable[bytes], count: int) -> tuple[Listed, str]:
    """The list in the next ``count`` of ``lines``, and their SHA-256; Failed if there are fewer."""
    listed, digest = Listed(), hashlib.sha256()
    for line in itertools.islice(lines, count):
        digest.update(line)
        file = json.loads(line)
        known = bytes.fromhex(file["sha256"]) if file["sha256"] else None
        listed.append(Entry(file["path"], file["size"], file["mtime"], known, tuple(file["links"])))
    if len(listed) < count:
        raise Failed("lost", "the list of files is truncated")
    return listed, digest.hexdigest()
