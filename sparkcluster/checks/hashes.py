"""Checks of what the weights hold, byte by byte."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.checks.wording import abridged, listed
from sparkcluster.facts.hashes import HashedFile
from sparkcluster.facts.model import Weights

HUB = "huggingface_hub documentation, Understand caching: a blob of a large file is named by its SHA-256"


@check(
    "MDL-020",
    "Every large file of the weights is what the hub sent",
    stage="deep",
    source=HUB,
    remedy="remove the damaged file and stage the weights again",
)
def damaged(context: Context) -> Iterator[Seen]:
    """The engine loads what is there: a damaged file ends in a crash while loading, or in garbage for an answer.

    The hub names a large file by its SHA-256, so that one node alone can be judged.
    """
    for name, files in _hashed(context):
        wrong = [one for one in files if _is_damaged(one)]
        if wrong:
            yield Seen(
                name,
                f"{_counted(wrong)} of the weights on {name} {'is' if len(wrong) == 1 else 'are'} damaged",
                _seen((one.name, f"SHA-256 {one.sha256[:12]}…, its name says {str(one.blob)[:12]}…") for one in wrong),
                _again(context, name, wrong),
            )


@check(
    "MDL-021",
    "The weights are the same on every node",
    stage="deep",
    source="sizes may agree where bytes do not; owners' reports of garbage answers from one rank's weights",
    remedy="remove what differs and stage the weights again",
)
def alike(context: Context) -> Iterator[Seen]:
    """Ranks with different weights answer garbage, and no log says why.

    Where most nodes agree, the others are named; between two that differ nothing tells which is right.
    """
    held: dict[str, dict[str, HashedFile]] = {}
    for name, files in _hashed(context):
        for one in files:
            if not _is_damaged(one):
                held.setdefault(one.name, {})[name] = one
    others: dict[str | None, list[tuple[str, dict[str, HashedFile]]]] = {}
    for file, nodes in held.items():
        common = Counter(one.sha256 for one in nodes.values()).most_common(2)
        if len(common) < 2:
            continue
        right = common[0][0] if common[0][1] > common[1][1] else None
        blamed: list[str | None] = [name for name, one in nodes.items() if right not in {None, one.sha256}]
        for node in blamed or [None]:
            others.setdefault(node, []).append((file, nodes))
    for node, found in others.items():
        wrong = [next(iter(nodes.values())) for _, nodes in found]
        names = sorted({name for _, nodes in found for name in nodes})
        verb = "differs" if len(wrong) == 1 else "differ"
        summary = (
            f"{_counted(wrong)} of the weights {verb} between {listed(names)}"
            if node is None
            else f"{_counted(wrong)} of the weights on {node} {verb} from what the other nodes have"
        )
        seen = _seen(
            (file, ", ".join(f"{name} {one.sha256[:12]}…" for name, one in nodes.items())) for file, nodes in found
        )
        again = _again(context, node, wrong) if node is not None else ("sparkcluster stage INVENTORY weights --verify",)
        yield Seen(node, summary, seen, again)


@check(
    "MDL-022",
    "The weights could be read on every node",
    stage="deep",
    severity="warning",
    remedy="let the user who starts the ranks read them",
)
def unread(context: Context) -> Iterator[Seen]:
    """Whether they are whole is not known, and what cannot be read cannot be loaded."""
    for name, reason in (context.hashes.unasked if context.hashes else {}).items():
        yield Seen(name, f"the weights on {name} were not hashed", reason, (f"ls -lL {_path(context, name)}",))


def _hashed(context: Context) -> Iterable[tuple[str, tuple[HashedFile, ...]]]:
    return context.hashes.files.items() if context.hashes else ()


def _is_damaged(one: HashedFile) -> bool:
    return one.blob is not None and one.blob != one.sha256


def _counted(files: list[HashedFile]) -> str:
    return files[0].name if len(files) == 1 else f"{len(files)} files"


def _seen(said: Iterable[tuple[str, str]]) -> str:
    return abridged((f"{file}: {words}" for file, words in said), limit=5)


def _path(context: Context, name: str) -> str:
    weights = context.facts[name].weights
    return shlex.quote(weights.path if isinstance(weights, Weights) and weights.path else context.facts[name].hf_home)


def _again(context: Context, name: str, files: Iterable[HashedFile]) -> tuple[str, ...]:
    """Commands that remove ``files`` with what they point at, then fetch them again."""
    weights = context.facts[name].weights
    top = weights.path if isinstance(weights, Weights) and weights.path else ""
    paths = [shlex.quote(f"{top}/{one.name}") for one in files]
    return (
        *(f'rm -f "$(readlink -f {path})" {path}' for path in paths[:5]),
        "sparkcluster stage INVENTORY weights --verify",
    )
