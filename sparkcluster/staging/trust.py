"""Which copy of a file is right, and which nodes have it. Pure.

A copy is wrong only where its own node says so: by the name of its blob, or by the record of its content when it was
verified. What other nodes have, and however many agree, proves nothing: a user may have put new weights on one of them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

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
        expected: SHA-256 of the right content, or the hash by which Git names it; None if it is unknown which is right.
        holders: nodes that have that content; none where all copies are corrupt.
    """

    expected: str | None
    holders: tuple[str, ...] = ()


def judge(copies: Copies) -> Verdict:
    """Which of ``copies``, all of them read, is right; undecided where nothing tells.

    Those that are not wrong have to agree, and each wrong one is to have been what they are: then they replace it.
    """
    right = {node: copy for node, copy in copies.items() if _promised(copy) in {None, copy.sha256, copy.git}}
    lost = {str(_promised(copy)) for node, copy in copies.items() if node not in right}
    contents = {str(copy.sha256) for copy in right.values()}
    if not right and len(lost) == 1:
        return Verdict(lost.pop())
    if len(contents) != 1 or not lost <= contents | {copy.git for copy in right.values()}:
        return Verdict(None)
    return Verdict(contents.pop(), tuple(right))


def _promised(copy: ListedFile) -> str | None:
    """The hash that ``copy`` is to have by what its node says of it: the name of its blob, else the record."""
    return copy.blob if copy.git or re.fullmatch("[0-9a-f]{64}", copy.blob or "") else copy.recorded


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The files of one model, and which nodes have each of them.

    Attributes:
        files: each as the first of its holders lists it, in the order of the node that decides what there is.
        holders: nodes that have the right content of a file under the same blob, by its name.
    """

    files: tuple[ListedFile, ...]
    holders: Mapping[str, tuple[str, ...]]

    def lacked(self, node: str) -> tuple[ListedFile, ...]:
        """The files that ``node`` has not, or has with another content."""
        return tuple(file for file in self.files if node not in self.holders[file.name])


def wanted(lists: Lists, first: str) -> Wanted:
    """The union of what nodes have of a model that none has whole.

    ``lists`` have no file that a node's facts call truncated. Of a file that nodes have differently (another blob, size
    or known SHA-256) the first node that has it decides, ``first`` before all others; only nodes with the same hold it.
    """
    order = [first, *(node for node in lists if node != first)]
    files: list[ListedFile] = []
    holders: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(name for node in order for name in lists[node]):
        copies = {node: lists[node][name] for node in order if name in lists[node]}
        expected = next(iter(copies.values()))
        files.append(expected)
        holders[name] = tuple(node for node, copy in copies.items() if _is_same(copy, expected))
    return Wanted(tuple(files), holders)


def _is_same(copy: ListedFile, expected: ListedFile) -> bool:
    hashes = {copy.sha256, expected.sha256} - {None}
    return (copy.blob, copy.size) == (expected.blob, expected.size) and len(hashes) < 2


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
    """What came of reading every copy.

    Attributes:
        model: whose files they are.
        wanted: the files, each with the nodes where it is right; of a file that is right nowhere, none.
        corrupt: the copies that are wrong.
        undecided: files of which it is unknown which copy is right.
        lists: what was judged.
    """

    model: str
    wanted: Wanted
    corrupt: tuple[Corrupt, ...]
    undecided: Mapping[str, Copies]
    lists: Lists

    def error(self, places: Mapping[str, str]) -> StageError | None:
        """Why nothing may be written; None if every wrong copy can be replaced.

        ``places`` has the directory of the model by node.
        """
        if self.undecided:
            file, copies = next(iter(self.undecided.items()))
            more = f" and {len(self.undecided) - 1} more differ" if len(self.undecided) > 1 else " differs"
            hashes = ", ".join(f"SHA-256 {_short(copy.sha256)} on {node}" for node, copy in copies.items())
            return StageError(
                f"{file}{more} between nodes, and which copy is right is unknown: {hashes}; nothing was changed",
                step=_STEP,
                hint=f"{removal(copies, places, ' or ')}, where it is wrong, then run this again",
            )
        lost = [each for each in self.corrupt if each.source is None]
        if not lost:
            return None
        first = lost[0]
        copies = {each.node: self.lists[each.node][each.file] for each in lost if each.file == first.file}
        more = f"; {len(lost) - 1} more corrupt copies likewise" if len(lost) > 1 else ""
        downloaded = copies[first.node].blob
        then = "run this again, which downloads it" if downloaded else "put a right copy there, and run this again"
        return StageError(
            f"{first}{more}; nothing was changed",
            node=first.node,
            step=_STEP,
            hint=f"{removal(copies, places, ' and ')}, then {then}",
        )


def examine(lists: Lists, sources: Sequence[str], model: str) -> Examined:
    """Judge every file of ``model`` that the first of ``sources`` lists; each file in ``lists`` has a SHA-256.

    ``sources`` have the whole model. What another node has in another size than any of them it lacks.
    """
    files: list[ListedFile] = []
    holders: dict[str, tuple[str, ...]] = {}
    corrupt: list[Corrupt] = []
    undecided: dict[str, Copies] = {}
    for name in lists[sources[0]]:
        sizes = {lists[node][name].size for node in sources if name in lists[node]}
        copies = {
            node: files[name]
            for node, files in lists.items()
            if name in files and (node in sources or files[name].size in sizes)
        }
        verdict = judge(copies)
        if verdict.expected is None:
            undecided[name] = copies
            continue
        source = verdict.holders[0] if verdict.holders else None
        corrupt += [
            Corrupt(model, node, name, copy.sha256 or "", verdict.expected, source)
            for node, copy in copies.items()
            if node not in verdict.holders
        ]
        if source is not None:
            files.append(copies[source])
            holders[name] = _alike(copies, source, verdict.holders)
    return Examined(model, Wanted(tuple(files), holders), tuple(corrupt), undecided, lists)


def _alike(copies: Copies, source: str, nodes: Collection[str]) -> tuple[str, ...]:
    """Those of ``nodes`` that have the file under the same blob as ``source``, which is the first."""
    return (source, *(node for node in nodes if node != source and copies[node].blob == copies[source].blob))


def _short(sha256: str | None) -> str:
    return f"{(sha256 or '')[:12]}…"


def removal(copies: Copies, places: Mapping[str, str], join: str) -> str:
    """The commands that remove ``copies``; ``places`` has the directory of the model by node."""
    nodes: dict[str, list[str]] = {}
    for node, copy in copies.items():
        nodes.setdefault(_path(places[node], copy), []).append(node)
    return join.join(f"{shell('rm', path)}   on {join.join(having)}" for path, having in nodes.items())


def _path(folder: str, file: ListedFile) -> str:
    """The path of ``file`` on a node that has the model in ``folder``: its blob, if it has one."""
    return f"{folder.rpartition('/snapshots/')[0]}/blobs/{file.blob}" if file.blob else f"{folder}/{file.name}"
