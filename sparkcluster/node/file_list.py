"""The list of files of a job, as a worker keeps it."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from sparkcluster.node.wire import Failed


class Entry(NamedTuple):
    """A line of the list of files; ``sha256`` is None as long as no node has read the file."""

    path: str
    size: int
    mtime: int
    sha256: bytes | None
    links: tuple[str, ...]


class Listed(list[Entry]):
    """The files in a list, by their numbers: 60,000 take 25 MB."""

    def sha256(self, number: int) -> str | None:
        """The SHA-256 of a file, in hexadecimal, if that is known by now."""
        known = self[number].sha256
        return known.hex() if known else None

    def learn(self, hashes: dict[int, str]) -> None:
        """Take in the SHA-256 of files that have none in the list."""
        for number, sha256 in hashes.items():
            if self[number].sha256 is None:
                self[number] = self[number]._replace(sha256=bytes.fromhex(sha256))


def read(path: str, sha256: str | None) -> Listed:
    """The list at ``path``, line by line; Failed if it has another ``sha256``."""
    listed, digest = Listed(), hashlib.sha256()
    with open(path, "rb") as lines:
        for line in lines:
            digest.update(line)
            file = json.loads(line)
            known = bytes.fromhex(file["sha256"]) if file["sha256"] else None
            listed.append(Entry(file["path"], file["size"], file["mtime"], known, tuple(file["links"])))
    if sha256 not in (None, digest.hexdigest()):
        raise Failed("other", "%s is not the list of files of this job" % path)
    return listed
