"""Checks whether the model fits the memory of each node."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from sparkcluster.checks.check import Context, Seen, check
from sparkcluster.engines.vllm import arguments
from sparkcluster.engines.vllm.memory import Planned, beside, of_playbook, source
from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.findings import on_node
from sparkcluster.fit.source import Machine
from sparkcluster.report import share, size
from sparkcluster.topology import parallel

AT = ("args", "gpu-memory-utilization")


def _planned(context: Context) -> Iterator[tuple[str, Planned]]:
    """Every node that will run the model on a GPU, with its computed memory."""
    if arguments.on_cpu(context.spec.playbook):
        return
    for member in context.topology.members.values():
        facts = context.facts[member.name]
        weights = read(facts.weights)
        if weights is None or weights.config is None or read(facts.memory) is None:
            continue
        try:
            yield member.name, _of_node(context, member.name, facts, weights)
        except UsageError:
            continue  # reported by FIT-002


planned_check = functools.partial(check, each=_planned)


@planned_check(
    "FIT-001",
    "Weights and one request of full context fit the memory",
    needs=("memory", "weights"),
    source="vLLM: _check_enough_kv_cache_memory in vllm/v1/core/kv_cache_utils.py",
    remedy="set what `sparkcluster fit PLAYBOOK` advises: gpu-memory-utilization, max-model-len, or more Sparks",
)
def fits(context: Context, name: str, planned: Planned) -> Iterator[Seen]:
    """The engine loads for minutes and fails with `No available memory for the cache blocks`.

    Computed as in vLLM: the engine's memory, minus weights and activations, has to hold one request of
    max-model-len. Nodes without the model are skipped, since its config.json is needed. Activations are estimated: if
    the result is too close to call, or depends on which version of vLLM the image has, it is a warning. docs/fit.md
    explains the computation, and compares it with measurements on Sparks.
    """
    fit = planned.fit
    if fit.layout.bytes_for(1) <= fit.least_bytes:
        return
    memory = read(context.facts[name].memory)
    possible = planned.best.layout.bytes_for(1) <= planned.best.most_bytes
    yield Seen(
        f"{context.spec.playbook.model.label} {'may' if possible else 'does'} not fit {name}",
        f"{(*fit.problems, *fit.doubts)[0]}; {size(memory.total_bytes if memory else 0)} in all",
        fit.advice or ("sparkcluster fit PLAYBOOK   lists what uses how much",),
        at=AT if AT[1] in context.spec.playbook.args else None,
        severity="warning" if possible else None,
    )


@check(
    "FIT-002",
    "The memory of this model can be computed",
    severity="info",
    needs=("weights",),
    remedy="read `GPU KV cache size` in the engine's log; sparkcluster logs INVENTORY shows it",
)
def unknown(context: Context) -> Iterator[Seen]:
    """Whether the model fits is unknown until it starts, since the memory of its layers cannot be computed.

    This is not an error of the model.
    """
    reported = set()
    for name, facts in context.facts.items():
        weights = read(facts.weights)
        if not weights or weights.config is None or read(facts.memory) is None:
            continue
        try:
            _of_node(context, name, facts, weights)
        except UsageError as error:
            if error.message not in reported:
                reported.add(error.message)
                yield Seen(
                    f"it is unknown whether the model fits {name}", error.message, (error.hint or "",), node=name
                )


@planned_check(
    "FIT-003",
    "The minimum memory of the model is free",
    scope="container",
    needs=("memory", "weights"),
    source="vllm-project/vllm#48140: MemAvailable must suffice; swap does not count",
    remedy="stop other programs, or serve the model on more Sparks",
)
def free(context: Context, name: str, planned: Planned) -> Iterator[Seen]:
    """The node freezes while the weights load, or the kernel kills the engine, at any gpu-memory-utilization.

    Weights, activations, one request of full context and the engine's processes have to fit next to the programs that
    already run there. If a lower utilization is enough, HOST-006 reports it.
    """
    facts, fit = context.facts[name], planned.fit
    memory = read(facts.memory)
    if memory is None or context.runs_rank(name):
        return
    needed = fit.weights.rank_bytes + fit.runtime_bytes + fit.layout.bytes_for(1) + fit.host_bytes
    have = memory.available_bytes
    if have < needed <= memory.total_bytes:
        yield Seen(
            f"{name} has less memory free than {context.spec.playbook.model.label} needs at least",
            f"{share(have, memory.total_bytes)} free, {size(needed)} needed",
            (on_node("ps aux --sort=-rss | head"), on_node("docker ps")),
        )


def _of_node(context: Context, name: str, facts: Facts, weights: Weights) -> Planned:
    """The model's memory on one node; a UsageError if the model is unknown."""
    playbook = context.spec.playbook
    nodes = next((group.size for group in context.topology.groups if name in group.names), 1)
    with contextlib.suppress(SparkclusterError):  # the plan reports it
        nodes = parallel.tensor_parallel(playbook, "", nodes) * playbook.pipeline_parallel
    memory = read(facts.memory)
    total = memory.total_bytes if memory is not None else 0
    return of_playbook(
        playbook,
        source(playbook.model.label, weights),
        Machine(total, total, 0),
        nodes=nodes,
        facts=(facts,),
        beside=beside(facts),
    )
