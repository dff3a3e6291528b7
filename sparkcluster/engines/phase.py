"""From log lines to phases: how far a rank has come. Pure.

What the launcher (``node/launcher.py``) and Ray print is read here; the rest is in the table of each engine, whose
last phase is ``api-ready``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkcluster.engines.base import Engine
from sparkcluster.engines.signature import Step, plain

FOOTPRINT: dict[str, Callable[[float, float], float]] = {
    "load_gib": max,
    "kv_gib": min,
    "kv_tokens": min,
    "graphs_gib": max,
    "peak_gib": max,
    "used_gib": max,
}
"""What an engine may log of its memory, and which figure of several ranks counts: that of the rank with least room.

``peak_gib`` is by how much MemAvailable of the node fell at most while the rank started, ``used_gib`` by how much once
it had answered.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a launch.

    Attributes:
        kind: its name.
        done: how much of it is done, in units of ``total`` (weights in percent, graphs and ranks in pieces).
        total: all of it, or None if the log does not say.
        detail: what else a person wants to see, as the addresses that are missing.
        place: of this phase among those of a launch.
        words: the phase in a few words.
    """

    kind: str
    done: int | None = None
    total: int | None = None
    detail: str = ""
    place: int = dataclasses.field(default=0, compare=False)
    words: str = dataclasses.field(default="", compare=False)

    @property
    def text(self) -> str:
        """The phase and how far it is, for a live display."""
        count = ""
        if self.done is not None:
            count = f" {self.done} %" if self.kind == "weights" else f" {self.done}/{self.total}"
        return self.words + count + (f", {self.detail}" if self.detail else "")

    def is_after(self, other: Phase) -> bool:
        """Whether a rank that was at ``other`` came further.

        A line of an earlier phase comes from a slower rank whose output the head repeats, and is no progress.
        """
        if self.kind != other.kind:
            return self.place > other.place
        if self.done is None:
            return False
        return other.done is None or self.done > other.done or self.detail != other.detail


_COUNT = r" (?P<done>\d+)/(?P<total>\d+)(?: (?P<detail>missing .+))?"
# What the launcher prints, and Ray on a worker (ray/scripts/scripts.py); those of the engine come after.
_LAUNCHER = (
    Step(r"\[sparkcluster\] phase=setup" + _COUNT, "setup", "setup"),
    Step(r"\[sparkcluster\] phase=ptxas", "ptxas", "ptxas linked"),
    Step(r"\[sparkcluster\] phase=ray-start", "ray-start", "starting Ray"),
    Step(r"\[sparkcluster\] phase=ray-join", "ray-join", "waiting for the head's Ray"),
    Step(r"\[sparkcluster\] phase=ray-wait" + _COUNT, "ray-wait", "Ray"),
    Step(r"\[sparkcluster\] phase=ray-formed" + _COUNT, "ray-formed", "Ray formed"),
    Step(r"Ray runtime started\.", "ray-formed"),
    Step(r"\[sparkcluster\] phase=engine", "engine", "starting the engine"),
)


def phase(line: str, engine: Engine) -> Phase | None:
    """The phase that ``line`` in the log of a rank of ``engine`` announces, or None."""
    (shown,) = plain([line])
    steps = (*_LAUNCHER, *engine.phases)
    for step in steps:
        found = re.search(step.pattern, shown)
        if found:
            place, first = next((at, each) for at, each in enumerate(steps) if each.kind == step.kind)
            groups = {name: text for name, text in found.groupdict().items() if text is not None}
            seen: dict[str, Any] = {name: int(text) if text.isdecimal() else text for name, text in groups.items()}
            return Phase(**{"kind": step.kind, "done": step.done, "place": place, "words": first.words, **seen})
    return None


def joined(footprints: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """What several ranks, or several lines of a log, say of the memory of a group."""
    found: dict[str, float] = {}
    for each in footprints:
        for key, value in each.items():
            found[key] = FOOTPRINT[key](found.get(key, value), value)
    return found


def footprint(line: str, engine: Engine) -> dict[str, float]:
    """What ``line`` in the log of a rank says of its memory, by keys of ``FOOTPRINT``; mostly empty."""
    found = engine.footprint.search(line) if engine.footprint is not None else None
    if found is None:
        return {}
    return {key: float(text.replace(",", "")) for key, text in found.groupdict().items() if text is not None}


@dataclasses.dataclass
class Progress:
    """The progress of one node.

    Attributes:
        engine: what the node runs.
        latest: the furthest phase seen, or None.
        footprint: what it has said of its memory.
    """

    engine: Engine
    latest: Phase | None = None
    footprint: dict[str, float] = dataclasses.field(default_factory=dict)

    def feed(self, line: str) -> Phase | None:
        """Take in a log line; the phase when it brought the node further, else None."""
        self.footprint = joined((self.footprint, footprint(line, self.engine)))
        now = phase(line, self.engine)
        if now is None or (self.latest is not None and not now.is_after(self.latest)):
            return None
        self.latest = now
        return now

    @property
    def joined_ray(self) -> bool:
        """Whether it has joined Ray, and nothing is known of the engine on it."""
        return self.latest is not None and self.latest.kind == "ray-formed"

    @property
    def place(self) -> int:
        """How far it is, as a number: of two nodes the one with the lower is behind."""
        return -1 if self.latest is None else self.latest.place

    @property
    def ready(self) -> bool:
        """Whether the API accepts requests; whether the model answers is not known by this."""
        return self.latest is not None and self.latest.kind == "api-ready"

    @property
    def text(self) -> str:
        """One line for a live display."""
        return self.latest.text if self.latest else "starting"
