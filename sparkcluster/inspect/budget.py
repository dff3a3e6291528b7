"""The memory that several models take together, by what ``fit`` knows of each; no node is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.errors import SparkclusterError, SpecError
from sparkcluster.fit.budget import HOST_BYTES, Budget, Part, add_up
from sparkcluster.fit.known import known
from sparkcluster.fit.source import GIB, Machine, spark
from sparkcluster.spec import Playbook, Spec
from sparkcluster.spec.load import read

HINT = (
    "set a smaller args.kv-cache-memory-bytes for one of them, or lower its args.max-num-seqs or args.max-model-len"
    "; or give one other nodes"
)


def budget(
    specs: Sequence[Spec],
    machine: Machine | None = None,
    measured: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> Budget:
    """What the models of an inventory take on its nodes.

    Args:
        specs: one for each, of ``load_all``.
        machine: memory of a node; a Spark's by default.
        measured: of ``inspect.releases.measured``, by ``name_of`` each, as far as it is known.
    """
    machine = machine or spark()
    parts: dict[str, list[Part]] = {}
    for spec in specs:
        name, nodes = name_of(spec), max(spec.inventory.group_sizes)
        logged = (measured or {}).get(name)
        found = part(name, spec.playbook, nodes, machine, measured=logged)
        found = dataclasses.replace(found, on_demand=spec.idle_s is not None)
        for node in spec.inventory.nodes:
            parts.setdefault(node.label, []).append(found)
    return add_up(parts, machine)


def name_of(spec: Spec) -> str:
    """What a budget calls its model."""
    return spec.model or spec.playbook.name


def by_size(specs: Sequence[Spec], found: Budget | None = None) -> list[Spec]:
    """``specs`` in the order in which they start: the biggest first, and before it what is not known.

    While it starts an engine takes more than later, and the biggest needs most room for that. Those on demand come
    last: before, they would have the room of one that always serves.
    """
    found = found or budget(specs)
    sizes = {part.model: part.bytes or found.machine.visible_bytes for parts in found.sparks.values() for part in parts}
    return sorted(specs, key=lambda spec: (spec.idle_s is not None, -sizes[name_of(spec)]))


def require_room(specs: Sequence[Spec]) -> Budget:
    """The budget of ``specs``, all of one inventory.

    Raises:
        SpecError: they certainly need more memory than a Spark has.
    """
    found = budget(specs)
    if found.problems:
        document = read(specs[0].inventory_path)
        raise SpecError([document.problem(("models",), text, HINT, key=True) for text in found.problems])
    return found


def part(
    name: str,
    playbook: Playbook,
    nodes: int,
    machine: Machine,
    *,
    measured: Mapping[str, Any] | None = None,
) -> Part:
    """What ``playbook`` takes on each of ``nodes``.

    Args:
        name: of the model in the answer.
        playbook: what it serves.
        nodes: how many share it.
        machine: memory of each.
        measured: what was measured when it last served here; it counts if it had as many nodes.
    """
    engine = engines.engine(playbook.engine)
    try:
        model = known(playbook.model, playbook.companions)
        found = engine.forecast(playbook, model, machine, nodes=nodes, requests=None, beside=model.beside)
        why = f"the memory that {engine.title} needs is unknown"
    except SparkclusterError as error:
        found, why = None, error.message
    if found is None:
        if not engine.takes_share(playbook):
            return Part(name, kind="unknown", doubts=(f"what it takes is unknown: {why}",))
        most = int(machine.visible_bytes * engine.memory_share(playbook))
        return Part(name, step_bytes=most, kind="at most", doubts=(f"its model is unknown: {why}",))
    memory, cache, auto = found["memory"], found["kv_cache"], found["gpu_memory_utilization_is_auto"]
    logged = {key: int(value * GIB) for key, value in (measured or {}).items() if key.endswith("_gib")}
    logged = logged if (measured or {}).get("nodes") == nodes else {}
    weights = logged.get("load_gib", memory["weights_bytes"])
    # Of a utilization the KV cache is what weights and a step leave.
    left = memory["weights_bytes"] - weights if found["gpu_memory_utilization"] is not None else 0
    certain, why_not = cache["bytes_most"] < cache["bytes_wanted"], tuple(found["problems"])
    return Part(
        name,
        weights,
        cache["bytes_wanted"] if auto else max(0, cache["bytes"] + left),
        memory["runtime_bytes"],
        _beside(logged) or max(HOST_BYTES, memory["engine_host_bytes"]),
        "measured" if logged else "computed",
        peak_bytes=_peak(logged),
        problems=why_not if certain else (),
        doubts=(*(() if certain else why_not), *found["doubts"]),
    )


def _beside(measured: Mapping[str, int]) -> int:
    """What the engine's processes took beside weights, KV cache and CUDA graphs; 0 where that was not measured."""
    if not measured.keys() >= {"used_gib", "load_gib", "kv_gib"}:
        return 0
    return max(0, measured["used_gib"] - measured["load_gib"] - measured["kv_gib"] - measured.get("graphs_gib", 0))


def _peak(measured: Mapping[str, int]) -> int | None:
    """What the engine took for a moment more while it started; None where that was not measured."""
    if not measured.keys() >= {"peak_gib", "used_gib"}:
        return None
    return max(0, measured["peak_gib"] - measured["used_gib"])
