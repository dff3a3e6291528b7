"""``gpu-memory-utilization: auto``: the smallest that holds --max-num-seqs requests of full context.

It depends on the model, the arguments and the installed memory in whole GiB, and not on free memory, so that the plan
does not change by itself nor with another kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sparkcluster.engines.vllm import arguments
from sparkcluster.engines.vllm.memory import beside, of_playbook, source
from sparkcluster.errors import PlanError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.fit.source import GIB, Machine, Source
from sparkcluster.fit.verdict import CEILING
from sparkcluster.spec import Playbook, Spec
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group, Topology

NUMBER = "write a number, as gpu-memory-utilization: 0.82"


def planned(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:
    """``spec`` with a number where its playbook has auto; unchanged without it.

    Every group gets the number of the group and node that need most, so that the plan does not depend on which nodes
    answer first.

    Raises:
        PlanError: the model or its drafter is on no node yet, is not known, or does not fit.
    """
    playbook = spec.playbook
    if not arguments.wants_auto(playbook):
        return spec
    weights, others = _weights(facts), _beside(facts)
    drafter = arguments.drafter(playbook)
    memories = [memory.total_bytes for memory in (read(node.memory) for node in facts.values()) if memory is not None]
    missing = None
    if weights is None:
        missing = "the model's config.json, which is not on any node yet"
    elif drafter not in others and drafter in {each.id for each in playbook.companions}:
        missing = f"the weights of the draft model {drafter}, which are not on any node yet"
    elif not memories:
        missing = "the memory of a node"
    if weights is None or missing:
        raise PlanError(
            f"gpu-memory-utilization: auto of playbook {playbook.name} needs {missing}",
            step="plan",
            hint=f"sparkcluster stage INVENTORY weights copies it; or {NUMBER}",
        )
    installed = min(memories) // GIB * GIB
    try:
        models = (source(playbook.model.label, weights), others)
        found = max(_smallest(playbook, models, group, facts, installed) for group in topology.groups)
    except UsageError as error:
        raise PlanError(error.message, step="plan", hint=f"{error.hint}; or {NUMBER}") from None
    args = {
        name: found if name.replace("_", "-") == arguments.UTILIZATION else value
        for name, value in playbook.args.items()
    }
    return dataclasses.replace(spec, playbook=playbook.model_copy(update={"args": args}))


def _smallest(
    playbook: Playbook,
    models: tuple[Source, Mapping[str, Source]],
    group: Group,
    facts: Mapping[str, Facts],
    installed: int,
) -> float:
    """The smallest utilization of a group that is safe; a UsageError if none fits, or the model is not known.

    ``models`` is the model, and the repositories beside it; ``installed`` is in bytes.
    """
    model, others = models
    tensor_parallel = parallel.tensor_parallel(playbook, group.name, group.size)
    requests = arguments.concurrent(playbook)
    fit = of_playbook(
        playbook,
        model,
        Machine(installed, installed),
        nodes=tensor_parallel * playbook.pipeline_parallel,
        facts=[facts[group.head.name]],
        requests=requests,
        beside=others,
    ).fit
    taken = fit.utilization
    if fit.problems or taken > CEILING:
        problems = fit.problems or (f"it needs gpu-memory-utilization {taken:.2f}, above the safe {CEILING:.2f}",)
        raise UsageError(
            f"{playbook.name} does not fit with {requests} requests at once: {problems[0]}",
            hint=(fit.advice or ("lower max-num-seqs or max-model-len in the playbook",))[0],
        )
    return taken


def _beside(facts: Mapping[str, Facts]) -> dict[str, Source]:
    """The repositories beside the model, each of one node that has it whole."""
    return {name: found for node in sorted(facts, reverse=True) for name, found in beside(facts[node]).items()}


def _weights(facts: Mapping[str, Facts]) -> Weights | None:
    """The complete model of one node; staging makes it the same on all."""
    for name in sorted(facts):
        found = facts[name].weights
        weights = read(found) if found is not None else None
        if weights is not None and weights.complete and weights.config is not None:
            return weights
    return None
