"""Reads every copy of a model, and replaces what is wrong or missing by what another node has right."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkcluster.facts.base import read
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Failure, stage_error
from sparkcluster.staging.manifest import BadAnswer, ListedFile, Manifest
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers
from sparkcluster.staging.trust import Corrupt, examine


def verify(
    run: Transfers, staging: Staging, request: Callable[[str], Request]
) -> tuple[tuple[str, ...], tuple[Corrupt, ...]]:
    """Read every copy of ``staging`` by each node's ``request``, and copy what is right to where it is not.

    Returns:
        The nodes that had something to read, and what was found to be wrong.

    Raises:
        StageError: which copy is right is unknown, or one that is wrong could not be replaced.
        LeaseLost: another operator has the lease.
    """
    first = staging.sources[0]
    there = read(run.facts[first].weights)
    nodes = [*staging.sources]
    for node, _ in staging.missing:
        part = read(run.facts[node].weights)
        if part and there and part.path and part.files and part.revision == there.revision:
            nodes.append(node)  # it has some of them

    def look(node: str) -> Mapping[str, ListedFile]:
        return run.files(staging, node, request(node), judged=False).listed

    found = examine(run.at_once(look, nodes), staging.sources, staging.name)
    places = {node: weights.path or "" for node in nodes if (weights := read(run.facts[node].weights))}
    if (error := found.error(places)) is not None:
        raise error
    for each in found.corrupt:
        run.progress(each.node, str(each))
    revision = request(first).get("revision")
    try:
        files = Manifest.of(found.wanted.files, revision).files
    except BadAnswer as bad:
        raise stage_error(run.step(staging.what), Failure(first, "source", str(bad))) from None
    numbers = {name: number for number, file in enumerate(files) for name in (file["path"], *file["links"])}
    prefix = f"snapshots/{revision}/" if revision else ""
    everybody = [*nodes, *(node for node, _ in staging.missing if node not in nodes)]
    replace = {
        node: sorted({numbers[f"{prefix}{file.name}"] for file in lacked})
        for node in everybody
        if (lacked := found.wanted.lacked(node))
    }
    if replace:
        run.move(staging.what, request, everybody, files, replace)
    return tuple(nodes), tuple(found.corrupt)
