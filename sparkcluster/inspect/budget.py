"""The memory that several models take together, as ``fit`` calculates it; no node is queried."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.errors import SparkclusterError, SpecError
from sparkcluster.fit.budget import PROCESS_BYTES, Budget, Part, add_up
from sparkcluster.fit.known import known
from sparkcluster.fit.source import GIB, Machine, spark
from sparkcluster.spec import Playbook, Spec
from sparkcluster.spec.load import read


def budget(
    specs: Sequence[Spec],
    machine: Machine | None = None,
    measured: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> Budget:
    """The memory that the models of an inventory take on its nodes.

    Args:
        specs: one per model, from ``load_all``.
        machine: memory of a node; a Spark's by default.
        measured: results of ``inspect.releases.measured``, by ``name_of``, if there are any.
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
    """The name of its model in a budget."""
    return spec.model or spec.playbook.name


def by_size(specs: Sequence[Spec], found: Budget | None = None) -> list[Spec]:
    """``specs`` in the order in which they start: the largest first, and unknown sizes before it.

    An engine takes more memory while it starts, so the largest needs the most room. On-demand models come last:
    earlier they could take the room of a model that is always on.
    """
    found = found or budget(specs)
    sizes = {part.model: part.bytes or found.machine.visible_bytes for parts in found.sparks.values() for part in parts}
    return sorted(specs, key=lambda spec: (spec.idle_s is not None, -sizes[name_of(spec)]))


def require_room(specs: Sequence[Spec]) -> Budget:
    """The budget of ``specs``, all of one inventory.

    Raises:
        SpecError: they need more memory than a Spark has.
    """
    found = budget(specs)
    if found.problems:
        document = read(specs[0].inventory_path)
        raise SpecError([document.problem(("models",), text, found.hint, key=True) for text in found.problems])
    return found


def part(
    name: str,
    playbook: Playbook,
    nodes: int,
    machine: Machine,
    *,
    measured: Mapping[str, Any] | None = None,
) -> Part:
    """The memory that ``playbook`` takes on each of ``nodes``.

    Args:
        name: name of the model in the result.
        playbook: the playbook to serve.
        nodes: number of nodes that share the model.
        machine: memory of a node.
        measured: measurements from its last start here; used if it had as many nodes.
    """
    engine = engines.engine(playbook.engine)
    common = engine.common_arguments
    smaller = tuple(common[each] for each in ("kv_bytes", "requests", "context") if each in common)
    taken = functools.partial(Part, name, smaller=smaller)
    try:
        model = known(playbook.model, playbook.companions)
        found = engine.forecast(playbook, model, machine, nodes=nodes, requests=None, beside=model.beside)
        why = f"the memory that {engine.title} needs is unknown"
    except SparkclusterError as error:
        found, why = None, error.message
    if found is None:
        if not engine.takes_share(playbook):
            return taken(kind="unknown", doubts=(f"its memory use is unknown: {why}",))
        most = int(machine.visible_bytes * engine.memory_share(playbook))
        return taken(step_bytes=most, kind="at most", doubts=(f"its model is unknown: {why}",))
    memory, cache, auto = found["memory"], found["kv_cache"], found["gpu_memory_utilization_is_auto"]
    logged = {key: int(value * GIB) for key, value in (measured or {}).items() if key.endswith("_gib")}
    logged = logged if (measured or {}).get("nodes") == nodes else {}
    weights = logged.get("load_gib", memory["weights_bytes"])
    # With a utilization, the KV cache gets what weights and activations leave.
    left = memory["weights_bytes"] - weights if found["gpu_memory_utilization"] is not None else 0
    certain, why_not = cache["bytes_most"] < cache["bytes_wanted"], tuple(found["problems"])
    return taken(
        weights,
        cache["bytes_wanted"] if auto else max(0, cache["bytes"] + left),
        memory["runtime_bytes"],
        _beside(logged) or max(PROCESS_BYTES, memory["engine_host_bytes"]),
        "measured" if logged else "computed",
        peak_bytes=_peak(logged),
        problems=why_not if certain else (),
        doubts=(*(() if certain else why_not), *found["doubts"]),
    )


def _beside(measured: Mapping[str, int]) -> int:
    """Memory of the engine's processes besides weights, KV cache and CUDA graphs; 0 if not measured."""
    if not measured.keys() >= {"used_gib", "load_gib", "kv_gib"}:
        return 0
    return max(0, measured["used_gib"] - measured["load_gib"] - measured["kv_gib"] - measured.get("graphs_gib", 0))


def _peak(measured: Mapping[str, int]) -> int | None:
    """Additional memory at the peak of the start; None if not measured."""
    if not measured.keys() >= {"peak_gib", "used_gib"}:
        return None
    return max(0, measured["peak_gib"] - measured["used_gib"])
