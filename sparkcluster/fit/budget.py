"""Memory budget of several models on one Spark, and which of them can run together. Pure.

An engine takes the memory set by its arguments, regardless of its model, plus memory of its processes. Other programs
on the node are not counted here, but by checks of the node (FIT-003, HOST-006).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sparkcluster.fit import verdict
from sparkcluster.fit.source import FREE_BYTES, GIB, Machine
from sparkcluster.report import size

PROCESS_BYTES = int(5.6 * GIB)
"""Memory of an engine's processes outside its budget, measured by owners with several engines. A cautious value: others
measured 5.4 to 6.7 GiB for all but weights and KV cache (https://github.com/llamastash/llamastash/pull/81), and
``verdict.HOST_BYTES`` for single models. Only the latter proves that models do not fit."""
START_SHARE = 0.4
"""Peak memory while an engine starts, above its final memory, as a share of its weights: 112 of 119 GiB with weights of
48 and a utilization of 0.70, less ``HOST_BYTES`` and the system's 5 (issue 46307 of the engine; issue 56824 reports a
tenth of it, so this only gives a doubt)."""

MOST_MODELS = 10
"""Limit of models for combinations, of which there are 1,024."""

SizeSource = Literal["computed", "measured", "at most", "unknown"]
"""Source of the sizes of a part; ``at most`` is the engine's limit for an unknown model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Memory of one model on one node.

    Attributes:
        step_bytes: memory of the engine in addition to weights and KV cache: a step, the driver, CUDA graphs.
        host_bytes: memory of the engine's processes outside its budget.
        peak_bytes: additional memory while it starts; None if not measured.
        problems: why it does not fit even alone.
        doubts: why it may not fit, or why its sizes are unknown.
        on_demand: whether it is loaded on demand; then other models on demand are stopped first.
        smaller: arguments of its engine that lower its memory.
    """

    model: str
    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    step_bytes: int = 0
    host_bytes: int = PROCESS_BYTES
    kind: SizeSource = "computed"
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    peak_bytes: int | None = None
    on_demand: bool = False
    smaller: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Total memory of the serving model; 0 if unknown."""
        used = self.weights_bytes + self.kv_cache_bytes + self.step_bytes
        return used + self.host_bytes if self.kind != "unknown" else 0

    @property
    def start_peak_bytes(self) -> int:
        """Additional memory while it starts, measured or estimated."""
        return int(START_SHARE * self.weights_bytes) if self.peak_bytes is None else self.peak_bytes

    def as_json(self) -> dict[str, Any]:
        """Sizes in bytes, null if unknown."""
        names = ("weights_bytes", "kv_cache_bytes", "step_bytes", "host_bytes", "start_peak_bytes")
        sizes = {name: getattr(self, name) if self.kind in {"computed", "measured"} else None for name in names}
        said = {"model": self.model, "on_demand": self.on_demand, "bytes": self.bytes or None, "kind": self.kind}
        return {**said, **sizes}


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Total memory of the models on each node.

    Attributes:
        sparks: parts by node, in the order of the inventory.
        machine: the memory of a node.
        problems: why they do not fit, one sentence per set of equal nodes.
        doubts: why they may not fit.
        together: combinations that can run together, by node, if not all can.
    """

    sparks: Mapping[str, tuple[Part, ...]]
    machine: Machine
    problems: list[str]
    doubts: list[str]
    together: Mapping[str, list[tuple[str, ...]]]

    @property
    def fits(self) -> bool | None:
        """Whether all can run together, with one model on demand at a time; None if uncertain."""
        return False if self.problems else None if self.doubts else True

    @property
    def hint(self) -> str:
        """What to change where they do not fit."""
        every = dict.fromkeys(name for parts in self.sparks.values() for part in parts for name in part.smaller)
        smaller = " or ".join(f"args.{name}" for name in every) or "the context"
        return f"lower {smaller} of one of them, or give one other nodes"

    def free_bytes(self, node: str) -> int:
        """Memory left by always-on models beyond the free reserve; negative if they need more."""
        return room(self.machine) - sum(part.bytes for part in self.sparks[node] if not part.on_demand)

    def as_json(self) -> dict[str, Any]:
        """The document of ``fit --json`` for several models."""
        sparks = [
            {
                "node": node,
                "visible_bytes": self.machine.visible_bytes,
                "system_bytes": self.machine.system_bytes,
                "kept_free_bytes": FREE_BYTES,
                "parts": [part.as_json() for part in parts],
                "free_bytes": self.free_bytes(node),
                "together": [list(names) for names in self.together.get(node, ())],
            }
            for node, parts in self.sparks.items()
        ]
        return {"sparks": sparks, "fits": self.fits, "problems": self.problems, "doubts": self.doubts}


def room(machine: Machine) -> int:
    """Bytes for all engines of a node."""
    return machine.visible_bytes - machine.system_bytes - FREE_BYTES


def add_up(sparks: Mapping[str, Sequence[Part]], machine: Machine) -> Budget:
    """The budget of nodes with the given models.

    A single model on a node is not checked here, but by ``verdict``.
    """
    by_node = {node: tuple(parts) for node, parts in sparks.items()}
    alike: dict[tuple[Part, ...], list[str]] = {}
    for node, found in by_node.items():
        alike.setdefault(found, []).append(node)
    every = dict.fromkeys(part for parts in by_node.values() for part in parts)
    problems = [f"{part.model}: {why}" for part in every for why in part.problems]
    doubts = [f"{part.model}: {why}" for part in every for why in part.doubts]
    together: dict[str, list[tuple[str, ...]]] = {}
    for parts, nodes in alike.items():
        if len(parts) == 1:
            continue
        where = ", ".join(nodes)
        always = [part for part in parts if not part.on_demand]
        for at_once in [[*always, part] for part in parts if part.on_demand] or [always]:
            certain, why = _judged(at_once, machine)
            (problems if certain else doubts).extend(f"{where}: {each}" for each in why)
        if sum(part.bytes for part in parts) > room(machine) or any(part.kind == "unknown" for part in parts):
            together |= dict.fromkeys(nodes, _together(parts, room(machine)))
    return Budget(by_node, machine, problems, [*dict.fromkeys(doubts)], together)


def _judged(parts: Sequence[Part], machine: Machine) -> tuple[bool, list[str]]:
    """Whether it is certain that ``parts`` do not fit together, and why; at most one of them is on demand."""
    over = sum(part.bytes for part in parts) - room(machine)
    if over <= 0:
        return False, _starting(parts, machine)
    less = sum(PROCESS_BYTES - verdict.HOST_BYTES for part in parts if part.bytes and part.host_bytes == PROCESS_BYTES)
    certain = over > less and all(part.kind != "at most" for part in parts)
    return certain, [_too_much(parts, over, machine, "are" if certain else "may be")]


def _too_much(parts: Sequence[Part], over: int, machine: Machine, verb: str) -> str:
    known = [part for part in parts if part.bytes]
    listed = [f"{part.model} {'up to ' * (part.kind == 'at most')}{size(part.bytes)}" for part in known]
    whole, system, free = map(size, (machine.visible_bytes, machine.system_bytes, FREE_BYTES))
    listed = [*listed, f"the system's {system} and {free} kept free"]
    return f"{', '.join(listed)} {verb} {size(over)} more than {whole}"


def _starting(parts: Sequence[Part], machine: Machine) -> list[str]:
    """Parts that may need too much while they start: the largest starts first, models on demand last."""
    found, left = [], room(machine)
    for part in sorted(parts, key=lambda part: (part.on_demand, -part.bytes)):
        left -= part.bytes
        if part.start_peak_bytes > left:
            peak = f"{part.model} may briefly need {size(part.start_peak_bytes)} more while it starts"
            found.append(f"{peak}, but only {size(left)} is free then")
    return found


def _together(parts: Sequence[Part], limit: int) -> list[tuple[str, ...]]:
    """The largest sets of ``parts`` that fit together, among the first ``MOST_MODELS`` of known size.

    If some are on demand, each set includes all always-on models.
    """
    known = [part for part in parts if part.bytes][:MOST_MODELS]
    always = {at for at, part in enumerate(known) if not part.on_demand and any(each.on_demand for each in known)}
    found: list[frozenset[int]] = []
    for number in range(len(known), 0, -1):
        for chosen in map(frozenset, itertools.combinations(range(len(known)), number)):
            fits = always <= chosen and sum(known[at].bytes for at in chosen) <= limit
            if fits and not any(chosen <= larger for larger in found):
                found.append(chosen)
    return [tuple(known[at].model for at in sorted(chosen)) for chosen in found]
