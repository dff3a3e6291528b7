"""Which copy of a file is right, and which nodes have it. Pure.

A copy is wrong only where its own node says so: by the name of its blob, or by the record of its content when it was
verified. What other nodes have, and however many agree, proves nothing: a user may have put new weights on one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from sparkcluster.errors import StageError
from sparkcluster.facts.weights import Weights
from sparkcluster.printable import shell
from sparkcluster.staging.manifest import ListedFile

Copies = Mapping[str, ListedFile]
"""One file as each node lists it."""
Lists = dict[str, Mapping[str, ListedFile]]
"""The files that each node lists, by their names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Corrupt:
    """A node's copy of a file of ``model`` that is not what it should be; ``source`` is a node that has it right."""

    model: str
    node: str
    file: str
    sha256: str
    expected: str
    source: str

    def __str__(self) -> str:
        what = f"{self.file} (SHA-256 {_short(self.sha256)} instead of {_short(self.expected)})"
        return f"{self.node} had a corrupt copy of {what}; replaced by that of {self.source}"


def right(copies: Copies) -> Copies:
    """Those of ``copies`` that are right; none where nothing tells.

    Those that are not wrong have to agree, and each wrong one is to have been what they are: then they replace it.
    """
    found = {node: copy for node, copy in copies.items() if copy.is_right}
    hashes = {copy.sha256 for copy in found.values()} | {copy.git for copy in found.values()}
    agree = len({copy.sha256 for copy in found.values()}) == 1
    return found if agree and all(copy.is_right or copy.promised in hashes for copy in copies.values()) else {}


def compare(
    lists: Lists, names: Iterable[str], model: str, facts: Mapping[str, Weights], hint: str = ""
) -> tuple[list[ListedFile], list[Corrupt]]:
    """Judge the files ``names`` of ``model``, each of which a node lists; ``facts`` are what nodes report of it.

    Returns:
        Each file as the first node lists it that has it right, and the copies that are wrong.

    Raises:
        StageError: of a file no copy is known to be right. Without another ``hint`` it says how to remove the copies.
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
            f"no copy of {file} is known to be right: {hashes}{more}; nothing was changed",
            node=next(iter(having)),
            step="stage weights",
            hint=hint or f"{_removal(having, facts)}, where it is wrong, then run this again",
        )
    return files, corrupt


def union(lists: Lists, model: str, facts: Mapping[str, Weights]) -> list[ListedFile]:
    """All files of a ``model`` that no node has whole, of which each node lists some, judged as by ``compare``.

    A copy counts if it is whole, not truncated as its node's facts say, and its content is known and what its name
    in the hub's cache says. A record, which may be older than the file, says nothing here.
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
