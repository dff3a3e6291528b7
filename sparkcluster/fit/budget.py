"""Several models on one Spark: what each takes of its memory, and which may run together. Arithmetic over sizes.

An engine takes what its arguments say, whatever its model needs, and its processes take more beside that. What others
run on the node is not known here; checks of the node count it (FIT-003, HOST-006).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sparkcluster.fit import verdict
from sparkcluster.fit.source import FREE_BYTES, GIB, Machine
from sparkcluster.report import size

HOST_BYTES = int(5.6 * GIB)
"""What the processes of an engine take beside its arguments, as owners of several measured it. It is cautious: others
measured 5.4 to 6.7 GiB of all but weights and KV cache (https://github.com/llamastash/llamastash/pull/81), and
``verdict.HOST_BYTES`` of models that ran alone. So it is certain only with that one that models do not fit."""
START_SHARE = 0.4
"""What an engine takes for a moment while it starts, above what it takes then, as a part of its weights: 112 of 119 GiB
with weights of 48 and a utilization of 0.70, less ``HOST_BYTES`` and the system's 5 (issue 46307 of the engine; it is
one report, and issue 56824 has a tenth of it: no more than a doubt)."""

MOST_MODELS = 10
"""Of which it is said which may run together: that takes 1,024 sums."""

Kind = Literal["computed", "measured", "at most", "unknown"]
"""How the sizes of a part are known; ``at most`` is what the engine may take of a model that is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What one model takes on one node.

    Attributes:
        step_bytes: what its engine may take beside weights and KV cache: a step, the driver, CUDA graphs.
        host_bytes: what the engine's processes take beside its budget.
        peak_bytes: what it took for a moment more while it started; None where that was not measured.
        problems: why it does not run even alone.
        doubts: why that is not certain, or its sizes are not known.
        on_demand: whether it is loaded beside those that always serve, and others on demand make room for it.
    """

    model: str
    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    step_bytes: int = 0
    host_bytes: int = HOST_BYTES
    kind: Kind = "computed"
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    peak_bytes: int | None = None
    on_demand: bool = False

    @property
    def bytes(self) -> int:
        """All of it once the model serves; 0 where that is unknown."""
        used = self.weights_bytes + self.kv_cache_bytes + self.step_bytes
        return used + self.host_bytes if self.kind != "unknown" else 0

    @property
    def start_peak_bytes(self) -> int:
        """What it takes for a moment more while it starts, or may take."""
        return int(START_SHARE * self.weights_bytes) if self.peak_bytes is None else self.peak_bytes

    def as_json(self) -> dict[str, Any]:
        """Sizes in bytes; null where they are unknown."""
        names = ("weights_bytes", "kv_cache_bytes", "step_bytes", "host_bytes", "start_peak_bytes")
        sizes = {name: getattr(self, name) if self.kind in {"computed", "measured"} else None for name in names}
        said = {"model": self.model, "on_demand": self.on_demand, "bytes": self.bytes or None, "kind": self.kind}
        return {**said, **sizes}


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """What the models of each node take together.

    Attributes:
        sparks: parts by node, in the order of the inventory.
        machine: the memory of a node.
        problems: why they certainly do not fit, a sentence for each group of nodes.
        doubts: why they may not.
        together: which may run together where not all may, by node.
    """

    sparks: Mapping[str, tuple[Part, ...]]
    machine: Machine
    problems: list[str]
    doubts: list[str]
    together: Mapping[str, list[tuple[str, ...]]]

    @property
    def fits(self) -> bool | None:
        """Whether all may run at once, of those on demand one at a time; None where it is not certain."""
        return False if self.problems else None if self.doubts else True

    def free_bytes(self, node: str) -> int:
        """What those that always serve leave of a node beyond what has to stay free; negative where they take more."""
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
    """Bytes that all engines of a node may take together."""
    return machine.visible_bytes - machine.system_bytes - FREE_BYTES


def add_up(sparks: Mapping[str, Sequence[Part]], machine: Machine) -> Budget:
    """The budget of nodes by what the models on each of them take.

    A model alone on its node is no matter of a budget: ``verdict`` says whether it fits.
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
    """Why ``parts`` do not fit at once, after whether that is certain: those that always serve, and one on demand."""
    over = sum(part.bytes for part in parts) - room(machine)
    if over <= 0:
        return False, _starting(parts, machine)
    less = sum(HOST_BYTES - verdict.HOST_BYTES for part in parts if part.bytes and part.host_bytes == HOST_BYTES)
    certain = over > less and all(part.kind != "at most" for part in parts)
    return certain, [_too_much(parts, over, machine, "are" if certain else "may be")]


def _too_much(parts: Sequence[Part], over: int, machine: Machine, verb: str) -> str:
    known = [part for part in parts if part.bytes]
    listed = [f"{part.model} {'up to ' * (part.kind == 'at most')}{size(part.bytes)}" for part in known]
    whole, system, free = map(size, (machine.visible_bytes, machine.system_bytes, FREE_BYTES))
    listed = [*listed, f"the system's {system} and {free} that stay free"]
    return f"{', '.join(listed)} {verb} {size(over)} more than its {whole}"


def _starting(parts: Sequence[Part], machine: Machine) -> list[str]:
    """Which of ``parts`` may take too much while it starts: the biggest starts first, one on demand last."""
    found, left = [], room(machine)
    for part in sorted(parts, key=lambda part: (part.on_demand, -part.bytes)):
        left -= part.bytes
        if part.start_peak_bytes > left:
            peak = f"{part.model} may take {size(part.start_peak_bytes)} more for a moment while it starts"
            found.append(f"{peak}, and {size(left)} are free then")
    return found


def _together(parts: Sequence[Part], limit: int) -> list[tuple[str, ...]]:
    """The largest sets of ``parts`` that fit together, of the first ``MOST_MODELS`` of which something is known.

    Where some are on demand, those that always serve are in each set.
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
