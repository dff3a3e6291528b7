"""The arguments that are computed from the facts: gpu-memory-utilization if it is auto, and --shutdown-timeout.

The utilization is the smallest that holds --max-num-seqs requests of full context. It depends on the model, the
arguments and the installed memory in whole GiB. It does not depend on free memory, so the plan stays the same over time
and with a different kernel.

Next to other models (``Engine.beside_others``) the KV cache of those requests is requested in bytes (``CACHE``):
otherwise vLLM sizes it from the memory that is free when it starts, which depends on the other models. vLLM still
checks that the utilization is free (``request_memory`` in ``vllm/v1/worker/utils.py``, 0.28 to 0.33), so both are set.
Neither depends on the other models, so adding a model to the inventory does not restart any. Values in a playbook are
not changed.

--shutdown-timeout is how long requests in flight may take to finish when vLLM is stopped. It was added in
https://github.com/vllm-project/vllm/pull/36666, and is in 0.19; by default requests in flight are aborted. After
SIGTERM a new request ends immediately, with finish_reason abort and no text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sparkcluster.engines.vllm import arguments, flags
from sparkcluster.engines.vllm.arguments import Arguments
from sparkcluster.engines.vllm.memory import beside, of_playbook, source
from sparkcluster.engines.vllm.reported import of_engine
from sparkcluster.errors import PlanError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.fit.source import GIB, Machine, Source
from sparkcluster.fit.verdict import CEILING, Fit
from sparkcluster.report import count
from sparkcluster.spec import Playbook, Spec
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group, Topology

NUMBER = "write a number, such as gpu-memory-utilization: 0.82"
MIB = 1 << 20
DRAIN = "shutdown-timeout"
DRAIN_S = 60
"""Guides set 30 s where an answer takes 24 s and 300 s where it takes 260 s (https://github.com/llm-d/llm-d/pull/1653).

A Spark decodes 10 to 50 tokens/s for one request, so 60 s are enough for 600 to 3000 tokens.
"""


def planned(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:
    """``spec`` with all arguments that are computed from the facts; arguments of the playbook are not changed.

    Raises:
        PlanError: the model or its drafter is not on any node yet, is unknown, or does not fit.
    """
    playbook = spec.playbook
    computed: dict[str, Any] = {}
    if arguments.wants_auto(playbook):
        share, cache = _sizes(playbook, facts, topology)
        fixed = arguments.pool_bytes(playbook) is not None
        if spec.siblings and fixed:
            share = math.ceil(share * 100) / 100
        computed = {name: share for name in playbook.args if name.replace("_", "-") == arguments.UTILIZATION}
        if spec.siblings and not fixed:
            computed[arguments.CACHE] = cache
    nodes = [facts[name] for group in topology.groups for name in group.names if name in facts]
    if playbook.command is None and DRAIN not in Arguments(playbook).values and _drains(playbook, nodes):
        computed[DRAIN] = DRAIN_S
    args = {**playbook.args, **computed}
    return dataclasses.replace(spec, playbook=playbook.model_copy(update={"args": args})) if computed else spec


def drain_s(playbook: Playbook) -> int:
    """Implements ``Engine.drain_s``."""
    return max(0, int(Arguments(playbook).number(DRAIN) or 0))


def _drains(playbook: Playbook, nodes: list[Facts]) -> bool:
    """Whether every node's vLLM has the flag: by the flags that it reports, else by its version."""
    found = [engine.flags for node in nodes if (engine := engine_of(node)) is not None and engine.flags is not None]
    if found:
        return all(DRAIN in each for each in found)
    flag = flags.find(DRAIN)
    return flag is not None and flags.has(flag, of_engine(playbook.image, nodes)) is True


def _sizes(playbook: Playbook, facts: Mapping[str, Facts], topology: Topology) -> tuple[float, int]:
    """Utilization, and bytes of KV cache in whole MiB, of the group that needs most.

    They do not depend on the order of the nodes' answers.
    """
    # Staging makes the model the same on all nodes.
    read_weights = (read(facts[name].weights) for name in sorted(facts))
    weights = next((each for each in read_weights if each and each.complete and each.config is not None), None)
    others = {name: found for node in sorted(facts, reverse=True) for name, found in beside(facts[node]).items()}
    drafter = arguments.drafter(playbook)
    memories = [memory.total_bytes for memory in (read(node.memory) for node in facts.values()) if memory is not None]
    if weights is None:
        missing = "the model's config.json, which is not on any node yet"
    elif drafter not in others and drafter in {each.id for each in playbook.companions}:
        missing = f"the weights of the draft model {drafter}, which are not on any node yet"
    elif not memories:
        missing = "the memory of a node"
    else:
        installed, model = min(memories) // GIB * GIB, source(playbook.model.label, weights)
        try:
            found = [
                _smallest(playbook, model, others, group, facts[group.head.name], installed=installed)
                for group in topology.groups
            ]
            cache = max(fit.layout.bytes_for(fit.requests) for fit in found)
            return max(fit.utilization for fit in found), -(-cache // MIB) * MIB
        except UsageError as error:
            raise PlanError(error.message, step="plan", hint=f"{error.hint}; or {NUMBER}") from None
    raise PlanError(
        f"gpu-memory-utilization: auto of playbook {playbook.name} needs {missing}",
        step="plan",
        hint=f"sparkcluster stage INVENTORY weights copies it; or {NUMBER}",
    )


def _smallest(
    playbook: Playbook,
    model: Source,
    others: Mapping[str, Source],
    group: Group,
    head: Facts,
    *,
    installed: int,
) -> Fit:
    """A group with the smallest safe utilization; a UsageError if none fits, or the model is unknown.

    ``others`` are the companion repositories, ``head`` the facts of the group's head; ``installed`` is in bytes.
    """
    requests = arguments.concurrent(playbook)
    fit = of_playbook(
        playbook,
        model,
        Machine(installed, installed),
        nodes=parallel.tensor_parallel(playbook, group.name, group.size) * playbook.pipeline_parallel,
        facts=[head],
        requests=requests,
        beside=others,
    ).fit
    taken = fit.utilization
    if fit.problems or taken > CEILING:
        problems = fit.problems or (f"it needs gpu-memory-utilization {taken:.2f}, above the safe {CEILING:.2f}",)
        raise UsageError(
            f"{playbook.name} does not fit with {count(requests, 'concurrent request')}: {problems[0]}",
            hint=(fit.advice or ("lower max-num-seqs or max-model-len in the playbook",))[0],
        )
    return fit
