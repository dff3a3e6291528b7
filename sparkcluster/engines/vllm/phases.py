"""From log lines to phases: how far a rank has come. Pure.

Read in vLLM 0.19 to 0.32; formats that changed between them are both matched. The lines of the launcher
(``node/entry.py``) begin with ``[sparkcluster]``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Literal, get_args

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
# the head repeats, and says nothing new.
ORDER: tuple[Kind, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One step of a launch.

    Attributes:
        kind: which step.
        done: how much of it is done, in units of ``total`` (weights in percent, graphs and ranks in pieces).
        total: all of it, or None where the log does not say.
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
    "ptxas": "assembler placed",
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

_ANSI = re.compile(r"\x1b\[[0-9;]*m")

_Build = Callable[[re.Match[str]], Phase]


def _fixed(kind: Kind, done: int | None = None) -> _Build:
    return lambda _: Phase(kind, done)


def _counted(kind: Kind) -> _Build:
    return lambda found: Phase(kind, int(found["done"]), int(found["total"]))


def _waiting(found: re.Match[str]) -> Phase:
    missing = found["missing"]
    return Phase("ray-wait", int(found["done"]), int(found["total"]), f"missing {missing}" if missing else "")


# The patterns of vLLM are message templates of its own modules, named behind each.
_PATTERNS: tuple[tuple[re.Pattern[str], _Build], ...] = tuple(
    (re.compile(pattern), build)
    for pattern, build in (
        (r"\[sparkcluster\] phase=setup (?P<done>\d+)/(?P<total>\d+)", _counted("setup")),
        (r"\[sparkcluster\] phase=ptxas", _fixed("ptxas")),
        (r"\[sparkcluster\] phase=ray-start", _fixed("ray-start")),
        (r"\[sparkcluster\] phase=ray-join", _fixed("ray-join")),
        (
            r"\[sparkcluster\] phase=ray-wait (?P<done>\d+)/(?P<total>\d+)(?: missing (?P<missing>.*))?",
            _waiting,
        ),
        (r"\[sparkcluster\] phase=ray-formed (?P<done>\d+)/(?P<total>\d+)", _counted("ray-formed")),
        (r"\[sparkcluster\] phase=engine", _fixed("engine")),
        # ray/scripts/scripts.py, on a worker
        (r"Ray runtime started\.", _fixed("ray-formed")),
        # v1/engine/core.py; entrypoints/openai/api_server.py until 0.2x, a banner later
        (r"Initializing a V1 LLM engine|vLLM API server version|█\s+version \d+\.", _fixed("engine")),
        # v1/worker/gpu_model_runner.py
        (r"Starting to load model ", _fixed("weights", done=0)),
        # model_loader/weight_utils.py: one bar per loader, "Completed | 3/11"
        (
            r"[Ll]oading [\w -]*(?:shards|loader|weights|Streamer)[\w -]*:\s+(?P<percent>\d+)% Completed",
            lambda found: Phase("weights", int(found["percent"])),
        ),
        # model_loader/default_loader.py; gpu_model_runner.py
        (r"Loading weights took [\d.]+ seconds|Model loading took [\d.]+ Gi?B", _fixed("weights", done=100)),
        # compilation/backends.py, compilation/monitor.py, v1/worker/gpu_worker.py
        (
            (
                r"for vLLM's torch\.compile|Starting torch\.compile|Dynamo bytecode transform time"
                r"|Compiling a graph for|torch\.compile (?:takes|took)|Compile and warming up model for size"
            ),
            _fixed("compile"),
        ),
        # v1/core/kv_cache_utils.py: "GPU KV cache size: 1,234 tokens"
        (
            r"KV cache size: (?P<tokens>[\d,]+) tokens",
            lambda found: Phase("kv-cache", detail=f"{found['tokens']} tokens"),
        ),
        # flashinfer/autotuner.py; model_executor/warmup/kernel_warmup.py
        (r"Autotuning process starts|Running FlashInfer autotune|Warming up .*kernels", _fixed("autotune")),
        # v1/worker/gpu_model_runner.py: tqdm, "| 30/67 [00:05<"
        (r"Capturing CUDA graph.*\|\s*(?P<done>\d+)/(?P<total>\d+)", _counted("graphs")),
        (r"Graph capturing finished in", _fixed("graphs")),
        # v1/engine/core.py, the last line of the engine itself
        (r"init engine \(profile, create kv cache, warmup model\) took", _fixed("warm-up")),
        # uvicorn
        (r"Application startup complete", _fixed("api-ready")),
    )
)


def phase(line: str) -> Phase | None:
    """The phase that ``line`` announces, or None."""
    plain = _ANSI.sub("", line)
    for pattern, build in _PATTERNS:
        found = pattern.search(plain)
        if found:
            return build(found)
    return None


@dataclasses.dataclass
class Progress:
    """How far one node has come.

    Attributes:
        latest: the furthest phase seen, or None.
        kv_cache_tokens: room in the KV cache, once the engine told.
        engine: version of the engine, once it told.
    """

    latest: Phase | None = None
    kv_cache_tokens: int | None = None
    engine: str | None = None

    def feed(self, line: str) -> Phase | None:
        """Take in a log line; the phase when it brought the node further, else None."""
        found = _VERSION.search(line)
        if found:
            self.engine = found[1]
        now = phase(line)
        if now is None:
            return None
        if now.kind == "kv-cache":
            self.kv_cache_tokens = int(now.detail.split()[0].replace(",", ""))
        if self.latest is not None and not _further(self.latest, now):
            return None
        self.latest = now
        return now

    @property
    def ready(self) -> bool:
        """Whether the API says that it takes requests; whether the model answers is another question."""
        return self.latest is not None and self.latest.kind == "api-ready"

    @property
    def text(self) -> str:
        """One line for a live display."""
        return self.latest.text if self.latest else "starting"


_VERSION = re.compile(r"(?:LLM engine \(v|API server version |█\s+version )(\d+\.\d+[\w.+-]*)")


def _further(before: Phase, now: Phase) -> bool:
    """Whether ``now`` lies behind ``before``."""
    first, second = ORDER.index(before.kind), ORDER.index(now.kind)
    if first != second:
        return second > first
    if now.done is None:
        return False
    return before.done is None or now.done > before.done or now.detail != before.detail
