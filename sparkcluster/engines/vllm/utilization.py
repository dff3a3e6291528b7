"""``gpu-memory-utilization: auto``: a number in its place, from the model and from what is built into the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sparkcluster.engines.vllm import arguments
from sparkcluster.engines.vllm.memory import automatic_utilization
from sparkcluster.engines.vllm.weights import size_of
from sparkcluster.errors import PlanError, UsageError
from sparkcluster.facts.model import Facts, Weights, read
from sparkcluster.models.source import Source
from sparkcluster.spec import Spec
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Topology

NUMBER = "write a number, as gpu-memory-utilization: 0.85"


def planned(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:
    """``spec`` with a number where its playbook has auto; unchanged without it.

    Every group gets the number of the group and node that need most, so that the plan does not depend on which nodes
    answer first.

    Raises:
        PlanError: the model is on no node yet, is not known, or does not fit.
    """
    playbook = spec.playbook
    if not arguments.wants_auto(playbook):
        return spec
    weights = _weights(facts)
    memories = [memory.total_bytes for memory in (read(node.memory) for node in facts.values()) if memory is not None]
    if weights is None or not memories:
        missing = "the model's config.json, which is on no node yet" if weights is None else "the memory of a node"
        raise PlanError(
            f"gpu-memory-utilization: auto of playbook {playbook.name} needs {missing}",
            step="plan",
            hint=f"sparkcluster stage INVENTORY weights brings it; or {NUMBER}",
        )
    model = Source(playbook.model.label, weights.config, None)
    found = []
    for group in topology.groups:
        shared = parallel.sizes(playbook, group.name, group.size)
        try:
            found.append(
                automatic_utilization(
                    playbook,
                    model,
                    min(memories),
                    nodes=shared.tensor * shared.pipeline,
                    facts=[facts[group.head.name]],
                    size_bytes=size_of(weights.files),
                )
            )
        except UsageError as error:
            raise PlanError(error.message, step="plan", hint=f"{error.hint}; or {NUMBER}") from None
    args = {
        name: max(found) if name.replace("_", "-") == arguments.UTILIZATION else value
        for name, value in playbook.args.items()
    }
    return dataclasses.replace(spec, playbook=playbook.model_copy(update={"args": args}))


def _weights(facts: Mapping[str, Facts]) -> Weights | None:
    """The model as it lies whole on one node; the same on all, since staging makes it so."""
    for name in sorted(facts):
        found = facts[name].weights
        weights = read(found) if found is not None else None
        if weights is not None and weights.complete and weights.config is not None:
            return weights
    return None
