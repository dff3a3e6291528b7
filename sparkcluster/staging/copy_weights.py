"""Copies a model's files to the nodes that lack them; those that are right, where several nodes have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.facts.base import read
from sparkcluster.facts.weights import Weights
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import VERIFY, Failure, stage_error
from sparkcluster.staging.manifest import BadAnswer, ListedFile, Manifest
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers
from sparkcluster.staging.trust import Corrupt, Lists, compare, union

RequestOf = Callable[[str], Request]
"""The request for ``node.listing`` and ``node.worker`` on a node."""


def copy(
    run: Transfers, staging: Staging, request: RequestOf, *, verify: bool = False
) -> tuple[tuple[str, ...], list[Corrupt]]:
    """Copy what the first of ``staging.sources`` has to the nodes that lack it.

    With ``verify`` every copy is read, and what is corrupt is replaced by what another node has right.

    Returns:
        The nodes that were read, and the copies that were corrupt.

    Raises:
        StageError: a file cannot be read, is corrupt, or did not reach a node; or it is unknown which copy is right.
        LeaseLost: another operator has the lease.
    """
    sources, facts = staging.sources, _facts(run)
    some = {node for node, its in facts.items() if its.files and its.revision == facts[sources[0]].revision}
    nodes = (*sources, *(node for node in staging.nodes if node in some)) if verify else sources[:1]
    lists = _look(run, staging, nodes, request)
    for node in set(nodes).difference(sources):  # what it has in another size it lacks
        whole = {(each.name, each.size) for source in sources for each in lists[source].values()}
        lists[node] = {name: each for name, each in lists[node].items() if (name, each.size) in whole}
    hint = f"{VERIFY}   takes it from a node that has it right" if len(nodes) < len(sources) else ""
    found, corrupt = compare(lists, lists[sources[0]], staging.name, facts, hint)
    revision = request(sources[0]).get("revision")
    files = _files(run, staging, found, revision)
    numbers = {name: number for number, file in enumerate(files) for name in (file["path"], *file["links"])}
    replace: dict[str, list[int]] = {}
    for each in corrupt:
        name = f"snapshots/{revision}/{each.file}" if revision else each.file
        replace.setdefault(each.node, []).append(numbers[name])
    # of a file whose SHA-256 is unknown, other nodes may have another version
    having = sources if all(file["sha256"] for file in files) else sources[:1]
    if staging.missing or replace:
        run.move(staging.what, request, [*having, *staging.nodes], files, replace)
    return nodes, corrupt


def unite(run: Transfers, staging: Staging, request: RequestOf) -> tuple[str, ...]:
    """Copy to each node of ``staging.parts`` the files that only others of them have.

    Where all files together are what the model needs, the other nodes get them in the same copy. In a directory of the
    user's every file is read before, since no name tells its content.

    Returns:
        The nodes that have them now.

    Raises:
        StageError: a file differs between two nodes; nothing was changed. Or one did not reach a node.
        LeaseLost: another operator has the lease.
    """
    parts, facts, revision = staging.parts, _facts(run), request(staging.parts[0]).get("revision")
    lists = _look(run, staging, parts, lambda node: {**request(node), "verify": revision is None})
    found = union(lists, staging.name, facts)
    needed = {name for node in parts for name in facts[node].missing}
    whole = needed <= {file.name for file in found}
    # Without its configuration a directory does not look like a model.
    files = [file for file in found if whole or revision or file.name != "config.json"]
    nodes = (*parts, *(node for node in staging.nodes if whole and node not in parts))
    run.move(staging.what, request, nodes, _files(run, staging, files, revision))
    return nodes


def _facts(run: Transfers) -> Mapping[str, Weights]:
    return {node: weights for node, each in run.facts.items() if (weights := read(each.weights)) is not None}


def _look(run: Transfers, staging: Staging, nodes: Sequence[str], request: RequestOf) -> Lists:
    """The files that each of ``nodes`` lists."""
    return dict(run.at_once(lambda node: run.files(staging, node, request(node)).listed, nodes))


def _files(run: Transfers, staging: Staging, found: list[ListedFile], revision: str | None) -> list[dict[str, Any]]:
    """The list of the files that were ``found``, for all nodes."""
    try:
        return Manifest.of(found, revision).files
    except BadAnswer as error:
        node = (*staging.sources, *staging.parts)[0]
        raise stage_error(run.step(staging.what), Failure(node, "source", str(error))) from None
