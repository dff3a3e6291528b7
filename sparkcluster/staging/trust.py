"""Which copy of a file is right, and which nodes have it. Pure.

A copy is wrong only where its own node says so: by the name of its blob, or by the record of its content when it was
verified. What other nodes have, and however many agree, proves nothing: a user may have put new weights on one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from sparkcluster.errors import StageError
from sparkcluster.printable import shell
from sparkcluster.staging.manifest import ListedFile

Copies = Mapping[str, ListedFile]
"""One file as each node lists it."""
Lists = Mapping[str, Mapping[str, ListedFile]]
"""The files that each node lists, by their names."""

_STEP = "stage weights"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Which copies of a file are right.

    Attributes:
        expected: SHA-256 of the right content, or the hash by which Git names it; None if that is unknown.
        holders: nodes that have it; none where all copies are corrupt, or it is unknown which is right.
    """

    expected: str | None
    holders: tuple[str, ...] = ()


def judge(copies: Copies) -> Verdict:
    """Which of ``copies`` is right; undecided where nothing tells.

    Those that are not wrong have to agree, and each wrong one is to have been what they are: then they replace it.
    """
    right = {node: copy for node, copy in copies.items() if copy.is_right}
    lost = {copy.promised for node, copy in copies.items() if node not in right}
    contents = {copy.sha256 for copy in right.values()}
    if not right and len(lost) == 1:
        return Verdict(lost.pop())
    if len(contents) != 1 or not lost <= contents | {copy.git for copy in right.values()}:
        return Verdict(None)
    return Verdict(contents.pop(), tuple(right))


@dataclasses.dataclass(frozen=True, slots=True)
class Corrupt:
    """A node's copy of a file of ``model`` that is not what it should be; ``source`` is a node that has it right."""

    model: str
    node: str
    file: str
    sha256: str
    expected: str
    source: str | None

    def __str__(self) -> str:
        mend = f"it is replaced by that of {self.source}" if self.source else "no node has a right copy"
        return f"{self.node} has a corrupt copy of {self._what}; {mend}"

    @property
    def mended(self) -> str:
        """The same once it was replaced."""
        return f"{self.node} had a corrupt copy of {self._what}, which was replaced by that of {self.source}"

    @property
    def _what(self) -> str:
        return f"{self.file} (SHA-256 {_short(self.sha256)} instead of {_short(self.expected)})"


@dataclasses.dataclass(frozen=True, slots=True)
class Examined:
    """What came of comparing copies.

    Attributes:
        files: those of which a right copy is known, each as the first node lists it that has one.
        corrupt: the copies that are wrong.
        undecided: files of which it is unknown which copy is right.
    """

    files: tuple[ListedFile, ...]
    corrupt: tuple[Corrupt, ...]
    undecided: Mapping[str, Copies]


def examine(lists: Lists, names: Iterable[str], model: str) -> Examined:
    """Judge the files ``names`` of ``model``, each of which a node lists."""
    files: list[ListedFile] = []
    corrupt: list[Corrupt] = []
    undecided: dict[str, Copies] = {}
    for name in names:
        copies = {node: found[name] for node, found in lists.items() if name in found}
        verdict = judge(copies)
        if verdict.holders:
            files.append(copies[verdict.holders[0]])
        elif verdict.expected is None:
            undecided[name] = copies
            continue
        source = next(iter(verdict.holders), None)
        corrupt += [
            Corrupt(model, node, name, copy.sha256 or "", str(verdict.expected), source)
            for node, copy in copies.items()
            if node not in verdict.holders
        ]
    return Examined(tuple(files), tuple(corrupt), undecided)


def union(lists: Lists, truncated: Mapping[str, Collection[str]], model: str) -> Examined:
    """Judge all files of a ``model`` that no node has whole, of which each node lists some.

    A copy counts if it is whole: not ``truncated``, as its node's facts say, and of known content. Those that are not
    what their name in the hub's cache says do not count either; a record, which may be older, says nothing here.
    """
    counting = {
        node: {
            name: file.model_copy(update={"recorded": None})
            for name, file in found.items()
            if file.sha256 is not None and name not in truncated[node]
        }
        for node, found in lists.items()
    }
    names = dict.fromkeys(name for found in counting.values() for name in found)
    return dataclasses.replace(examine(counting, names, model), corrupt=())


def check(found: Examined, lists: Lists, places: Mapping[str, str]) -> None:
    """StageError if it is unknown which copy of a file is right, or none is; ``places`` has the directory by node."""
    for file, copies in found.undecided.items():
        more = f" and {len(found.undecided) - 1} more differ" if len(found.undecided) > 1 else " differs"
        hashes = ", ".join(f"SHA-256 {_short(copy.sha256)} on {node}" for node, copy in copies.items())
        raise StageError(
            f"{file}{more} between nodes, and which copy is right is unknown: {hashes}; nothing was changed",
            step=_STEP,
            hint=f"{_removal(copies, places, ' or ')}, where it is wrong, then run this again",
        )
    lost = [each for each in found.corrupt if each.source is None]
    for first in lost:
        copies = {each.node: lists[each.node][each.file] for each in lost if each.file == first.file}
        more = f"; {len(lost) - 1} more corrupt copies likewise" if len(lost) > 1 else ""
        downloaded = copies[first.node].blob
        then = "run this again, which downloads it" if downloaded else "put a right copy there, and run this again"
        raise StageError(
            f"{first}{more}; nothing was changed",
            node=first.node,
            step=_STEP,
            hint=f"{_removal(copies, places, ' and ')}, then {then}",
        )


def _short(sha256: str | None) -> str:
    return f"{(sha256 or '')[:12]}…"


def _removal(copies: Copies, places: Mapping[str, str], join: str) -> str:
    """The commands that remove ``copies``."""
    nodes: dict[str, list[str]] = {}
    for node, copy in copies.items():
        place = places[node]
        path = f"{place.rpartition('/snapshots/')[0]}/blobs/{copy.blob}" if copy.blob else f"{place}/{copy.name}"
        nodes.setdefault(path, []).append(node)
    return join.join(f"{shell('rm', path)}   on {join.join(having)}" for path, having in nodes.items())
