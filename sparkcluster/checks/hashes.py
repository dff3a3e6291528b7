"""Checks of the contents of the weights, by SHA-256."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from sparkcluster.checks.lists import abridged, listed
from sparkcluster.checks.registry import Context, Each, Seen, check
from sparkcluster.facts.hashes import HashedFile
from sparkcluster.facts.weights import Weights
from sparkcluster.printable import shell

HUB = "huggingface_hub documentation, Understand caching: the blob of a large file is named by its SHA-256"
STAGE = "sparkcluster stage INVENTORY weights --verify"


hashed_check = Each(lambda context: context.hashes.files.items())
unread_check = Each(lambda context: context.hashes.unasked.items())


@hashed_check(
    "MDL-020",
    "Every large file of the weights is intact",
    stage="deep",
    source=HUB,
    remedy="stage weights --verify, which replaces it",
)
def damaged(_: Context, name: str, files: tuple[HashedFile, ...]) -> Iterator[Seen]:
    """The engine loads a damaged file as it is, and crashes while loading or answers garbage.

    The hub names each large file by its SHA-256, so a single node can be judged.
    """
    bad = {file.name: file for file in files if _is_damaged(file)}
    if bad:
        yield Seen(
            f"{_counted(bad)} of the weights on {name} {'is' if len(bad) == 1 else 'are'} damaged",
            _seen({key: f"SHA-256 {file.sha256[:12]}…, expected {str(file.blob)[:12]}…" for key, file in bad.items()}),
            (STAGE,),
        )


@check(
    "MDL-021",
    "The weights are the same on every node",
    stage="deep",
    source="files of the same size may differ; owners' reports of garbage answers from one rank's weights",
    remedy="stage weights --verify, which replaces what is wrong",
)
def same_weights(context: Context) -> Iterator[Seen]:
    """Ranks with different weights answer garbage without a message in any log.

    If most nodes agree, the others are named; of two that differ it is unknown here which is right. Staging also
    knows what the nodes recorded when they last read the files.
    """
    copies: dict[str, dict[str, HashedFile]] = {}
    for name, files in context.hashes.files.items():
        for copy in files:
            if not _is_damaged(copy):
                copies.setdefault(copy.name, {})[name] = copy
    different: dict[str | None, list[str]] = {}
    for file, nodes in copies.items():
        common = Counter(each.sha256 for each in nodes.values()).most_common(2)
        if len(common) < 2:
            continue
        right = common[0][0] if common[0][1] > common[1][1] else None
        suspects: list[str | None] = [name for name, copy in nodes.items() if right not in {None, copy.sha256}]
        for node in suspects or [None]:
            different.setdefault(node, []).append(file)
    for node, bad in different.items():
        names = sorted({name for file in bad for name in copies[file]})
        where = f"between {listed(names)}" if node is None else "from the other nodes"
        on_node = "" if node is None else f" on {node}"
        hashes = {file: [f"{name} {copy.sha256[:12]}…" for name, copy in copies[file].items()] for file in bad}
        yield Seen(
            f"{_counted(bad)} of the weights{on_node} {'differs' if len(bad) == 1 else 'differ'} {where}",
            _seen({file: ", ".join(seen) for file, seen in hashes.items()}),
            (STAGE,),
            node=node,
        )


@unread_check(
    "MDL-022",
    "The weights can be read on every node",
    stage="deep",
    severity="warning",
    remedy="give the user who starts the ranks permission to read them",
)
def unread(context: Context, name: str, reason: str) -> Iterator[Seen]:
    """It is unknown whether they are intact, and files that cannot be read cannot be loaded."""
    path = _path(context, name) or context.facts[name].hf_home
    yield Seen(f"the weights on {name} were not hashed", reason, (shell("ls -lL", path),))


def _is_damaged(file: HashedFile) -> bool:
    return file.blob is not None and file.blob != file.sha256


def _counted(files: Collection[str]) -> str:
    return next(iter(files)) if len(files) == 1 else f"{len(files)} files"


def _seen(details: Mapping[str, str]) -> str:
    return abridged((f"{file}: {detail}" for file, detail in details.items()), limit=5)


def _path(context: Context, name: str) -> str:
    weights = context.facts[name].weights
    return weights.path or "" if isinstance(weights, Weights) else ""
