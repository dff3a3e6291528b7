"""Brings together what several nodes have of a model that none has whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from sparkcluster.errors import StageError
from sparkcluster.facts.base import read
from sparkcluster.facts.weights import Weights
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Failure, stage_error
from sparkcluster.staging.manifest import BadAnswer, ListedFile, Manifest
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers
from sparkcluster.staging.trust import Lists, removal, wanted


def unite(run: Transfers, staging: Staging, request: Callable[[str], Request]) -> tuple[str, ...]:
    """Copy to each node of ``staging.parts`` the files that only others of them have, by each node's ``request``.

    Where all files together are what the model needs, the other nodes get them in the same copy. In a directory of the
    user's every file is read before, since no name tells its content.

    Returns:
        The nodes that have them now.

    Raises:
        StageError: two nodes have a file of a directory with different content; nothing was changed.
        LeaseLost: another operator has the lease.
    """
    first, step = staging.parts[0], run.step(staging.what)
    requests = {node: request(node) for node in staging.parts}
    revision = requests[first].get("revision")

    def look(node: str) -> Mapping[str, ListedFile]:
        return run.files(staging, node, {**requests[node], "verify": revision is None}, judged=False).listed

    lists = run.at_once(look, staging.parts)
    facts = {node: weights for node in staging.parts if (weights := read(run.facts[node].weights))}
    files = union(lists, facts, first, in_cache=revision is not None)
    needed = {name for weights in facts.values() for name in weights.missing}
    whole = needed <= {file.name for file in files}
    try:  # without its configuration a directory does not look like a model
        manifest = Manifest.of((file for file in files if whole or revision or file.name != "config.json"), revision)
    except BadAnswer as error:
        raise stage_error(step, Failure(first, "source", str(error))) from None
    others = [node for node, _ in staging.missing if node not in staging.parts] if whole else []
    run.move(staging.what, request, [*staging.parts, *others], manifest.files)
    return (*staging.parts, *others)


def union(lists: Lists, facts: Mapping[str, Weights], first: str, *, in_cache: bool) -> tuple[ListedFile, ...]:
    """The files that any node has whole, as far as it is known what is in them; pure.

    Raises:
        StageError: not ``in_cache``, and a file differs between nodes.
    """
    whole = {
        node: {name: file for name, file in found.items() if _counts(file, facts[node].truncated)}
        for node, found in lists.items()
    }
    found = wanted(whole, first)
    for file in () if in_cache else found.files:
        having = [node for node, files in whole.items() if file.name in files]
        if other := [node for node in having if node not in found.holders[file.name]]:
            copies = {node: whole[node][file.name] for node in (having[0], other[0])}
            places = {node: facts[node].path or "" for node in copies}
            raise StageError(
                f"no node has the weights whole, and {file.name} differs between {having[0]} and {other[0]}; which is "
                "right is unknown, and nothing was changed",
                step="copy weights",
                hint=f"{removal(copies, places, ' or ')}, where it is wrong, then run this again",
            )
    return found.files


def _counts(file: ListedFile, truncated: Collection[str]) -> bool:
    """Whether a node's copy is whole, and has the content that its name in the hub's cache says."""
    blob = file.blob or ""
    misnamed = (len(blob) == 64 and blob != file.sha256) or (len(blob) == 40 and file.git not in {None, blob})
    return file.sha256 is not None and file.name not in truncated and not misnamed
