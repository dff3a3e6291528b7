"""``models --prune``: remove staged models that nothing uses from the nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

from sparkcluster.errors import CommandFailed, UsageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.models import Found, Model
from sparkcluster.report import Report, count, size
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec

_LIMIT_S = 600


def prunable(found: Found, clusters: Collection[str]) -> tuple[dict[str, list[Model]], dict[str, str]]:
    """Models staged only for ``clusters`` that no playbook and no release on any node uses, by node. Pure.

    Also returns the users of the other staged models, by the models' names.
    """
    staged = {node: [each for each in models if each.staged_bytes] for node, models in found.nodes.items()}
    users: dict[str, set[str]] = {model.name: set() for models in staged.values() for model in models}
    for model in (model for models in found.nodes.values() for model in models if model.name in users):
        others = {*model.clusters}.difference(clusters) if model.staged_bytes else set()
        users[model.name] |= {f"cluster {name}" for name in others.union(model.used_by)}
        if playbook := model.playbook(found.named):
            users[model.name].add(f"playbook {playbook}")
    nodes = {node: [model for model in models if not users[model.name]] for node, models in staged.items()}
    return (
        {node: models for node, models in nodes.items() if models},
        {name: ", ".join(sorted(names)) for name, names in users.items() if names},
    )


def prune(
    fleet: Fleet, spec: Spec, look: Callable[[], Found], report: Report, *, others: Sequence[Spec] = (), yes: bool
) -> dict[str, dict[str, int]]:
    """Remove the prunable models that ``look`` finds, after a question unless ``yes``; returns bytes by model and node.

    ``others`` are the specs of the inventory's models, if it has several. It holds the leases of all their clusters:
    what an ``up`` has staged counts as unused until its ranks start.

    Raises:
        UsageError: it was not confirmed.
        CommandFailed: a node did not answer, so the models it uses are unknown; or it could not remove a model.
        LeaseHeld: another operator is staging, or starting or stopping the cluster.
    """
    inventories = {each.inventory.cluster: each.inventory for each in (*others, spec)}
    with contextlib.ExitStack() as leases:
        for inventory in inventories.values():
            nodes_of = [node.label for node in inventory.nodes]
            for kind in ("cluster", "staging"):
                staging = leases.enter_context(Lease(fleet, inventory, "prune", kind).acquire(nodes_of))
        found = look()
        for node, why in found.errors.items():
            text = f"{why}; nothing was removed: the models that {node} uses are unknown"
            raise CommandFailed(text, node=node, step="prune")
        nodes, used = prunable(found, inventories)
        for name, by in used.items():
            report.note(f"kept: {name}: used by {by}")
        if nodes and not yes:
            _confirm(nodes, report)
        steps = {node: [{"do": "prune", "roots": [model.path for model in models]}] for node, models in nodes.items()}
        if steps:
            report.step("remove", f"{_size(nodes)} on {count(len(nodes), 'Spark')}")
        results = staging.changer.apply(steps, timeout_s=_LIMIT_S)
    removed: dict[str, dict[str, int]] = {}
    for node, models in nodes.items():
        freed = results[node][0].freed
        for model in models:
            removed.setdefault(model.name, {})[node] = freed.get(model.path, 0)
    return removed


def _confirm(nodes: Mapping[str, list[Model]], report: Report) -> None:
    lines = [
        f"{model.name}: {size(model.staged_bytes)} on {node}, in {model.path}"
        for node, models in nodes.items()
        for model in models
    ]
    lines.append(f"remove these unused models, {_size(nodes)}?")
    if not report.confirm("\n".join(lines)):
        hint = "answer y on a terminal, or add --yes"
        raise UsageError(f"nothing was removed; {_size(nodes)} are unused", hint=hint)


def _size(nodes: Mapping[str, list[Model]]) -> str:
    return size(sum(model.staged_bytes for models in nodes.values() for model in models))
