"""The progress of a rank, from log lines to phases. Pure.

This module has the lines of the launcher (``node/launcher.py``) and of Ray; the table of each engine has its own. The
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
"""Memory figures in an engine's log, and the function that joins several ranks': the fullest rank counts.

``peak_gib`` is the largest drop of the node's MemAvailable while the rank started, ``used_gib`` the drop after its
first answer.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a launch.

    Attributes:
        kind: its name.
        done: completed part, in units of ``total`` (weights in percent, graphs and ranks by number).
        total: complete amount; None if the log does not say.
        detail: further text to show, such as missing addresses.
        place: its position among the phases of a launch.
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
        """The phase and its progress, for a live display."""
        count = ""
        if self.done is not None:
            count = f" {self.done} %" if self.kind == "weights" else f" {self.done}/{self.total}"
        return self.words + count + (f", {self.detail}" if self.detail else "")

    def is_after(self, other: Phase) -> bool:
        """Whether this is progress after ``other``.

        A line of an earlier phase comes from a slower rank whose output the head repeats.
        """
        if self.kind != other.kind:
            return self.place > other.place
        if self.done is None:
            return False
        return other.done is None or self.done > other.done or self.detail != other.detail


_COUNT = r" (?P<done>\d+)/(?P<total>\d+)(?: (?P<detail>missing .+))?"
# Lines of the launcher, and of Ray on a worker (ray/scripts/scripts.py); the engine's phases come after.
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
    """The memory figures of a group, from several ranks or log lines."""
    found: dict[str, float] = {}
    for each in footprints:
        for key, value in each.items():
            found[key] = FOOTPRINT[key](found.get(key, value), value)
    return found


def footprint(line: str, engine: Engine) -> dict[str, float]:
    """Memory figures in a log ``line`` of a rank, by keys of ``FOOTPRINT``; usually empty."""
    found = engine.footprint.search(line) if engine.footprint is not None else None
    if found is None:
        return {}
    return {key: float(text.replace(",", "")) for key, text in found.groupdict().items() if text is not None}


@dataclasses.dataclass
class Progress:
    """The progress of one node.

    Attributes:
        engine: the engine on the node.
        latest: the furthest phase seen, or None.
        footprint: memory figures in its log so far.
    """

    engine: Engine
    latest: Phase | None = None
    footprint: dict[str, float] = dataclasses.field(default_factory=dict)

    def feed(self, line: str) -> Phase | None:
        """Read a log line; returns the phase if it is progress, else None."""
        self.footprint = joined((self.footprint, footprint(line, self.engine)))
        now = phase(line, self.engine)
        if now is None or (self.latest is not None and not now.is_after(self.latest)):
            return None
        self.latest = now
        return now

    @property
    def joined_ray(self) -> bool:
        """Whether it has joined Ray, and the engine has not logged anything yet."""
        return self.latest is not None and self.latest.kind == "ray-formed"

    @property
    def place(self) -> int:
        """Its progress as a number; a lower number is behind."""
        return -1 if self.latest is None else self.latest.place

    @property
    def ready(self) -> bool:
        """Whether the API accepts requests; the model may not answer yet."""
        return self.latest is not None and self.latest.kind == "api-ready"

    @property
    def text(self) -> str:
        """One line for a live display."""
        return self.latest.text if self.latest else "starting"
