"""Decides which copy of a file is correct, and which nodes have it. Pure.

A copy is corrupt only by its own node's data: the name of its blob, or the recorded hash from when it was verified.
Copies on other nodes prove nothing, however many agree: a user may have put new weights on one node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from sparkcluster.errors import StageError
from sparkcluster.facts.weights import Weights
from sparkcluster.printable import shell
from sparkcluster.staging.manifest import ListedFile

Copies = Mapping[str, ListedFile]
"""A file as listed by each node."""
Lists = dict[str, Mapping[str, ListedFile]]
"""The files that each node lists, by name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Corrupt:
    """A corrupt copy of a file of ``model`` on a node; ``source`` is a node with a correct copy."""

    model: str
    node: str
    file: str
    sha256: str
    expected: str
    source: str

    def __str__(self) -> str:
        what = f"{self.file} (SHA-256 {_short(self.sha256)} instead of {_short(self.expected)})"
        return f"{self.node} had a corrupt copy of {what}; replaced by the copy from {self.source}"


def right(copies: Copies) -> Copies:
    """The correct ones of ``copies``; empty if that is unknown.

    Copies that are not corrupt must agree, and the expected hash of each corrupt copy must be theirs: they replace it.
    """
    found = {node: copy for node, copy in copies.items() if copy.is_right}
    hashes = {copy.sha256 for copy in found.values()} | {copy.git for copy in found.values()}
    agree = len({copy.sha256 for copy in found.values()}) == 1
    return found if agree and all(copy.is_right or copy.promised in hashes for copy in copies.values()) else {}


def compare(
    lists: Lists, names: Iterable[str], model: str, facts: Mapping[str, Weights], hint: str = ""
) -> tuple[list[ListedFile], list[Corrupt]]:
    """Judge the files ``names`` of ``model``, each listed by some node; ``facts`` are the nodes' facts of the model.

    Returns:
        Each file, as listed by the first node with a correct copy, and the corrupt copies.

    Raises:
        StageError: no copy of a file is known to be correct. The default ``hint`` says how to remove the copies.
    """
    files: list[ListedFile] = []
    corrupt: list[Corrupt] = []
    unknown: dict[str, Copies] = {}
    for name in names:
        copies = {node: found[name] for node, found in lists.items() if name in found}
        good = right(copies)
        if not good:
            unknown[name] = copies
            continue
        source = next(iter(good))
        files.append(good[source])
        wrong = {node: copy for node, copy in copies.items() if node not in good}
        corrupt += [Corrupt(model, node, name, str(it.sha256), str(it.promised), source) for node, it in wrong.items()]
    more = f", and of {len(unknown) - 1} more files" if len(unknown) > 1 else ""
    for file, having in unknown.items():
        hashes = ", ".join(f"SHA-256 {_short(copy.sha256)} on {node}" for node, copy in having.items())
        raise StageError(
            f"no copy of {file} is known to be correct: {hashes}{more}; nothing was changed",
            node=next(iter(having)),
            step="stage weights",
            hint=hint or f"{_removal(having, facts)}, whichever is wrong, then retry",
        )
    return files, corrupt


def union(lists: Lists, model: str, facts: Mapping[str, Weights]) -> list[ListedFile]:
    """All files of a ``model`` of which each node has only some; copies are judged as by ``compare``.

    A copy counts if it is complete (not truncated by its node's facts), its content is known, and matches its name in
    the hub's cache. Records are ignored: they may be older than the file.
    """
    counting: Lists = {}
    for node, found in lists.items():
        copies = {name: file.model_copy(update={"recorded": None}) for name, file in found.items()}
        whole = {name: file for name, file in copies.items() if file.sha256 and name not in facts[node].truncated}
        counting[node] = {name: file for name, file in whole.items() if file.is_right}
    names = dict.fromkeys(name for found in counting.values() for name in found)
    return compare(counting, names, model, facts)[0]


def _short(sha256: str | None) -> str:
    return f"{(sha256 or '')[:12]}…"


def _removal(copies: Copies, facts: Mapping[str, Weights]) -> str:
    """The commands that remove ``copies``."""
    nodes: dict[str, list[str]] = {}
    for node, copy in copies.items():
        place = facts[node].path or ""
        path = f"{place.rpartition('/snapshots/')[0]}/blobs/{copy.blob}" if copy.blob else f"{place}/{copy.name}"
        nodes.setdefault(path, []).append(node)
    return " or ".join(f"{shell('rm', path)}   on {' or '.join(having)}" for path, having in nodes.items())
