"""From log lines to phases: how far a rank has come. Pure.

What the launcher (``node/launcher.py``) and Ray print is read here; the rest is in the table of each engine.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkcluster.engines.base import Engine
from sparkcluster.engines.signature import plain

# Phases follow each other in this order; a line of an earlier one comes from a slower rank whose output
# the head repeats, and is no progress.
WORDS = {
    "setup": "setup",
    "ptxas": "ptxas linked",
    "ray-start": "starting Ray",
    "ray-join": "waiting for the head's Ray",
    "ray-wait": "Ray",
    "ray-formed": "Ray formed",
    "engine": "starting the engine",
    "weights": "loading weights",
    "compile": "compiling",
    "kv-cache": "KV cache",
    "autotune": "tuning kernels",
    "graphs": "capturing graphs",
    "warm-up": "warming up",
    "api-ready": "API ready",
}
_ORDER = list(WORDS)

FOOTPRINT: dict[str, Callable[[float, float], float]] = {
    "load_gib": max,
    "kv_gib": min,
    "kv_tokens": min,
    "graphs_gib": max,
}
"""What an engine may log of its memory, and which figure of several ranks counts: that of the rank with least room."""


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One step of a launch.

    Attributes:
        kind: which of ``WORDS``.
        done: how much of it is done, in units of ``total`` (weights in percent, graphs and ranks in pieces).
        total: all of it, or None if the log does not say.
        detail: what else a person wants to see, as the addresses that are missing.
    """

    kind: str
    done: int | None = None
    total: int | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        """The phase in a few words, for a live display."""
        count = ""
        if self.done is not None:
            count = f" {self.done} %" if self.kind == "weights" else f" {self.done}/{self.total}"
        return WORDS[self.kind] + count + (f", {self.detail}" if self.detail else "")

    def is_after(self, other: Phase) -> bool:
        """Whether a rank that was at ``other`` came further."""
        if self.kind != other.kind:
            return _ORDER.index(self.kind) > _ORDER.index(other.kind)
        if self.done is None:
            return False
        return other.done is None or self.done > other.done or self.detail != other.detail


# By regular expression; its groups ``kind``, ``done``, ``total`` and ``detail`` fill in the phase.
_LAUNCHER = {
    r"\[sparkcluster\] phase=(?P<kind>setup|ray-wait|ray-formed) (?P<done>\d+)/(?P<total>\d+)"
    r"(?: (?P<detail>missing .+))?": Phase("setup"),
    r"\[sparkcluster\] phase=(?P<kind>ptxas|ray-start|ray-join|engine)": Phase("engine"),
    # ray/scripts/scripts.py, on a worker
    r"Ray runtime started\.": Phase("ray-formed"),
}


def phase(line: str, engine: Engine) -> Phase | None:
    """The phase that ``line`` in the log of a rank of ``engine`` announces, or None."""
    (shown,) = plain([line])
    for pattern, announced in (*_LAUNCHER.items(), *engine.phases.items()):
        found = re.search(pattern, shown)
        if found:
            groups = {name: text for name, text in found.groupdict().items() if text is not None}
            seen: dict[str, Any] = {name: int(text) if text.isdecimal() else text for name, text in groups.items()}
            return dataclasses.replace(announced, **seen)
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
        return -1 if self.latest is None else _ORDER.index(self.latest.kind)

    @property
    def ready(self) -> bool:
        """Whether the API accepts requests; whether the model answers is not known by this."""
        return self.latest is not None and self.latest.kind == "api-ready"

    @property
    def text(self) -> str:
        """One line for a live display."""
        return self.latest.text if self.latest else "starting"
