"""From log lines to phases: how far a rank has come. Pure.

What the launcher (``node/launcher.py``) and Ray print is read here; the rest is in the table of each engine.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Literal, get_args

from sparkcluster.engines.base import Engine
from sparkcluster.engines.signature import ANSI

Kind = Literal[
    "setup",
    "ptxas",
    "ray-start",
    "ray-join",
    "ray-wait",
    "ray-formed",
    "engine",
    "weights",
    "compile",
    "kv-cache",
    "autotune",
    "graphs",
    "warm-up",
    "api-ready",
]

# Phases follow each other in this order; a line of an earlier one comes from a slower rank whose output
# the head repeats, and is no progress.
ORDER: tuple[Kind, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One step of a launch.

    Attributes:
        kind: which step.
        done: how much of it is done, in units of ``total`` (weights in percent, graphs and ranks in pieces).
        total: all of it, or None if the log does not say.
        detail: what else a person wants to see, as the addresses that are missing.
    """

    kind: Kind
    done: int | None = None
    total: int | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        """The phase in a few words, for a live display."""
        if self.kind == "weights":
            return f"loading weights {self.done} %" if self.done is not None else "loading weights"
        count = f" {self.done}/{self.total}" if self.done is not None and self.total is not None else ""
        return _WORDS[self.kind] + count + (f", {self.detail}" if self.detail else "")


_WORDS: dict[Kind, str] = {
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

Build = Callable[[re.Match[str]], Phase]
Pattern = tuple[re.Pattern[str], Build]


def fixed(kind: Kind, done: int | None = None) -> Build:
    """The phase ``kind``, whatever else is in the line."""
    return lambda _: Phase(kind, done)


def counted(kind: Kind) -> Build:
    """The phase ``kind`` with the pattern's groups ``done`` and ``total``."""
    return lambda found: Phase(kind, int(found["done"]), int(found["total"]))


def _waiting(found: re.Match[str]) -> Phase:
    missing = found["missing"]
    return Phase("ray-wait", int(found["done"]), int(found["total"]), f"missing {missing}" if missing else "")


_LAUNCHER: tuple[Pattern, ...] = tuple(
    (re.compile(pattern), build)
    for pattern, build in (
        (r"\[sparkcluster\] phase=setup (?P<done>\d+)/(?P<total>\d+)", counted("setup")),
        (r"\[sparkcluster\] phase=ptxas", fixed("ptxas")),
        (r"\[sparkcluster\] phase=ray-start", fixed("ray-start")),
        (r"\[sparkcluster\] phase=ray-join", fixed("ray-join")),
        (
            r"\[sparkcluster\] phase=ray-wait (?P<done>\d+)/(?P<total>\d+)(?: missing (?P<missing>.*))?",
            _waiting,
        ),
        (r"\[sparkcluster\] phase=ray-formed (?P<done>\d+)/(?P<total>\d+)", counted("ray-formed")),
        (r"\[sparkcluster\] phase=engine", fixed("engine")),
        # ray/scripts/scripts.py, on a worker
        (r"Ray runtime started\.", fixed("ray-formed")),
    )
)


def phase(line: str, engine: Engine) -> Phase | None:
    """The phase that ``line`` in the log of a rank of ``engine`` announces, or None."""
    plain = ANSI.sub("", line)
    for pattern, build in (*_LAUNCHER, *engine.phases):
        found = pattern.search(plain)
        if found:
            return build(found)
    return None


@dataclasses.dataclass
class Progress:
    """The progress of one node.

    Attributes:
        engine: what the node runs.
        latest: the furthest phase seen, or None.
    """

    engine: Engine
    latest: Phase | None = None

    def feed(self, line: str) -> Phase | None:
        """Take in a log line; the phase when it brought the node further, else None."""
        now = phase(line, self.engine)
        if now is None or (self.latest is not None and not _further(self.latest, now)):
            return None
        self.latest = now
        return now

    @property
    def ready(self) -> bool:
        """Whether the API accepts requests; whether the model answers is not known by this."""
        return self.latest is not None and self.latest.kind == "api-ready"

    @property
    def text(self) -> str:
        """One line for a live display."""
        return self.latest.text if self.latest else "starting"


def _further(before: Phase, now: Phase) -> bool:
    """Whether ``now`` comes after ``before``."""
    first, second = ORDER.index(before.kind), ORDER.index(now.kind)
    if first != second:
        return second > first
    if now.done is None:
        return False
    return before.done is None or now.done > before.done or now.detail != before.detail
