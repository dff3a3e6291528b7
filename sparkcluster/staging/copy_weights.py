"""Copies a model's files to the nodes that lack them; if several nodes have them, selects correct copies."""

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
    """Copy the files of the first of ``staging.sources`` to the nodes that lack them.

    With ``verify`` every copy is read, and a corrupt one is replaced by a correct one from another node.

    Returns:
        The nodes that were read, and the corrupt copies.

    Raises:
        StageError: a file cannot be read, is corrupt, or did not reach a node; or no copy can be trusted.
        LeaseLost: another operator has the lease.
    """
    sources, facts = staging.sources, _facts(run)
    some = {node for node, its in facts.items() if its.files and its.revision == facts[sources[0]].revision}
    nodes = (*sources, *(node for node in staging.nodes if node in some)) if verify else sources[:1]
    lists = _look(run, staging, nodes, request)
    for node in set(nodes).difference(sources):  # a file with another size counts as missing
        whole = {(each.name, each.size) for source in sources for each in lists[source].values()}
        lists[node] = {name: each for name, each in lists[node].items() if (name, each.size) in whole}
    hint = f"{VERIFY}   copies it from a node with a correct copy" if len(nodes) < len(sources) else ""
    found, corrupt = compare(lists, lists[sources[0]], staging.name, facts, hint)
    revision = request(sources[0]).get("revision")
    files = _files(run, staging, found, revision)
    numbers = {name: number for number, file in enumerate(files) for name in (file["path"], *file["links"])}
    replace: dict[str, list[int]] = {}
    for each in corrupt:
        name = f"snapshots/{revision}/{each.file}" if revision else each.file
        replace.setdefault(each.node, []).append(numbers[name])
    # if the SHA-256 of a file is unknown, other nodes may have another version of it
    having = sources if all(file["sha256"] for file in files) else sources[:1]
    if staging.missing or replace:
        run.move(staging.what, request, [*having, *staging.nodes], files, replace)
    return nodes, corrupt


def unite(run: Transfers, staging: Staging, request: RequestOf) -> tuple[str, ...]:
    """Copy to each node of ``staging.parts`` the files that only the other parts have.

    If all files together make the model complete, the other nodes get them in the same copy. In a user's directory
    every file is read first, since names do not identify content.

    Returns:
        The nodes that have all these files now.

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
    """The list of the files ``found``, for all nodes."""
    try:
        return Manifest.of(found, revision).files
    except BadAnswer as error:
        node = (*staging.sources, *staging.parts)[0]
        raise stage_error(run.step(staging.what), Failure(node, "source", str(error))) from None
