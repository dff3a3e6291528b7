"""``models --prune``: remove from the nodes what staging wrote and nothing names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

from sparkcluster.errors import CommandFailed, UsageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.models import Found, Model
from sparkcluster.report import Report, count, size
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec

_LIMIT_S = 600


@dataclasses.dataclass(frozen=True, slots=True)
class Prunable:
    """What may be removed.

    Attributes:
        nodes: the models by node.
        kept: why what staging wrote of the others stays, by their names.
    """

    nodes: Mapping[str, tuple[Model, ...]]
    kept: Mapping[str, str]

    @property
    def bytes(self) -> int:
        """Of all files that would go."""
        return sum(model.staged_bytes for models in self.nodes.values() for model in models)


def prunable(found: Found, cluster: str) -> Prunable:
    """What staging wrote for ``cluster`` alone, and neither a playbook nor a release on any node names. Pure."""
    staged = {node: tuple(model for model in models if model.staged_bytes) for node, models in found.nodes.items()}
    kept: dict[str, str] = {}
    for models in found.nodes.values():
        for model in models:
            if playbook := model.playbook(found.named):
                kept[model.name] = f"playbook {playbook} names it"
            elif model.used_by:
                kept.setdefault(model.name, f"a release of {', '.join(model.used_by)} names it, or cannot be read")
    nodes: dict[str, tuple[Model, ...]] = {}
    for node, models in staged.items():
        for model in models:
            others = [name for name in model.clusters if name != cluster]
            if model.name not in kept and others:
                kept[model.name] = f"{', '.join(others)} staged it as well"
        nodes[node] = tuple(model for model in models if model.name not in kept)
    written = {model.name for models in staged.values() for model in models}
    return Prunable(
        {node: models for node, models in nodes.items() if models},
        {name: why for name, why in kept.items() if name in written},
    )


def prune(
    fleet: Fleet, spec: Spec, found: Found, look: Callable[[], Found], report: Report, *, yes: bool
) -> dict[str, dict[str, int]]:
    """Remove what is prunable, after a question unless ``yes``; bytes by model, by node.

    It has the lease of the cluster as well: what an ``up`` has staged is named by nothing until its ranks start. With
    both, ``look`` finds what there is then; only what was confirmed is removed of that.

    Raises:
        UsageError: it was not confirmed.
        CommandFailed: a node did not answer, so it is unknown what is named there; or it could not remove something.
        LeaseHeld: another operator is staging, or starting or stopping the cluster.
    """
    removable = _prunable(found, spec)
    for name, why in removable.kept.items():
        report.note(f"kept: {name}: {why}")
    if not removable.nodes:
        return {}
    if not yes:
        lines = [
            f"{model.name}: {size(model.staged_bytes)} on {node}, in {model.path}"
            for node, models in removable.nodes.items()
            for model in models
        ]
        question = f"remove what sparkcluster staged and nothing names, {size(removable.bytes)}?"
        if not report.confirm("\n".join([*lines, question])):
            raise UsageError(
                f"nothing was removed: {size(removable.bytes)} could be",
                hint="sparkcluster models INVENTORY --prune, and y on a terminal; or with --yes",
            )
    inventory = spec.inventory
    removed: dict[str, dict[str, int]] = {}
    lease = partial(Lease, fleet, cluster=inventory.cluster, state_dir=inventory.state_dir, operation="prune")
    with lease().acquire(list(found.nodes)), lease(kind="staging").acquire(list(found.nodes)) as staging:
        report.step("remove", f"{size(removable.bytes)} on {count(len(removable.nodes), 'Spark')}")
        now = _prunable(look(), spec).nodes
        confirmed = {node: {model.path for model in models} for node, models in removable.nodes.items()}
        nodes = {
            node: left
            for node, models in now.items()
            if (left := [model for model in models if model.path in confirmed.get(node, ())])
        }
        steps = {node: [{"do": "prune", "roots": [model.path for model in models]}] for node, models in nodes.items()}
        results = staging.changer.apply(steps, timeout_s=_LIMIT_S)
    for node, models in nodes.items():
        freed = results[node][0].freed
        for model in models:
            removed.setdefault(model.name, {})[node] = freed.get(model.path, 0)
    return removed


def _prunable(found: Found, spec: Spec) -> Prunable:
    if found.errors:
        node, why = next(iter(found.errors.items()))
        raise CommandFailed(
            f"{why}; nothing is removed while it is unknown what {node} serves", node=node, step="prune"
        )
    return prunable(found, spec.inventory.cluster)
