"""Checks of the contents of the weights, by SHA-256."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from sparkcluster.checks.compare import abridged, listed
from sparkcluster.checks.model import VERIFY
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.between import HashedFile
from sparkcluster.facts.weights import Weights
from sparkcluster.findings import on_node
from sparkcluster.printable import shell

HUB = "huggingface_hub documentation, Understand caching: the blob of a large file is named by its SHA-256"


@check(
    "MDL-020",
    "Every large file of the weights is intact, and the same on every node",
    stage="deep",
    source=f"{HUB}; owners' reports of garbage answers from one rank's weights",
    remedy=[VERIFY],
)
def damaged(context: Context) -> Iterator[Seen]:
    """The engine loads a damaged file as it is, and crashes while loading or answers garbage.

    The hub names each large file by its SHA-256, so a single node can be judged. Of other files the nodes are compared:
    if most agree, the others are named; of two that differ it is unknown here which is right. Staging also knows what
    the nodes recorded when they last read the files. Of files that cannot be read it is unknown, which is a warning.
    """
    for name, reason in context.hashes.unasked.items():
        facts = context.facts[name]
        path = facts.weights.path if isinstance(facts.weights, Weights) else None
        readable = "give the user who starts the ranks permission to read them"
        remedy = (on_node(shell("ls -lL", path or facts.hf_home)), readable)
        yield Seen(f"the weights on {name} were not hashed", reason, remedy, severity="warning", node=name)
    copies: dict[str, dict[str, HashedFile]] = {}
    for name, files in context.hashes.files.items():
        bad = {file.name: file for file in files if _is_damaged(file)}
        for copy in files:
            if copy.name not in bad:
                copies.setdefault(copy.name, {})[name] = copy
        if bad:
            hashes = {key: f"SHA-256 {file.sha256[:12]}…, expected {str(file.blob)[:12]}…" for key, file in bad.items()}
            summary = f"{_counted(bad)} of the weights on {name} {'is' if len(bad) == 1 else 'are'} damaged"
            yield Seen(summary, _seen(hashes), node=name)
    different: dict[str | None, list[str]] = {}
    for file, nodes in copies.items():
        common = Counter(each.sha256 for each in nodes.values()).most_common(2)
        if len(common) < 2:
            continue
        right = common[0][0] if common[0][1] > common[1][1] else None
        suspects: list[str | None] = [name for name, copy in nodes.items() if right not in {None, copy.sha256}]
        for node in suspects or [None]:
            different.setdefault(node, []).append(file)
    for node, differing in different.items():
        names = sorted({name for file in differing for name in copies[file]})
        where = f"between {listed(names)}" if node is None else "from the other nodes"
        on = "" if node is None else f" on {node}"
        hashes = {f: ", ".join(f"{n} {copy.sha256[:12]}…" for n, copy in copies[f].items()) for f in differing}
        verb = "differs" if len(differing) == 1 else "differ"
        yield Seen(f"{_counted(differing)} of the weights{on} {verb} {where}", _seen(hashes), node=node)


def _is_damaged(file: HashedFile) -> bool:
    return file.blob is not None and file.blob != file.sha256


def _counted(files: Collection[str]) -> str:
    return next(iter(files)) if len(files) == 1 else f"{len(files)} files"


def _seen(details: Mapping[str, str]) -> str:
    return abridged((f"{file}: {detail}" for file, detail in details.items()), limit=5)
