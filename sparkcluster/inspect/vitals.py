"""Samples of nodes while they serve, in one time base; what the engine counted between two of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from sparkcluster.engines.base import Engine
from sparkcluster.errors import HostError
from sparkcluster.facts.base import Measure, Number
from sparkcluster.facts.running import GpuSample
from sparkcluster.hosts.base import SILENT_S, Closing, Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import Conversation

Bound = Annotated[float, Field(allow_inf_nan=True, ge=0)]
"""Upper bound of a bucket; the last one's is infinite."""
_SOONEST_S = 0.2
"""A node that sends samples faster does not what it was asked to."""


class Sample(GpuSample):
    """One node at one moment, with its GPU; None for what it does not have, or what did not answer in time.

    Attributes:
        at_s: when it came, in seconds since the sampler began.
        memory: MemAvailable in bytes.
        swapped_pages: in and out since boot.
        rdma_bytes: sent and received through all HCAs since boot.
        system_w: power of the whole Spark in watts; ``power_w`` is that of its GPU.
        engine: counters and statistics of the engine by the names of ``engines.base``, since the engine started.
        ttft: of the engine: by upper bound in seconds, how many first tokens came within that.
    """

    at_s: float = 0.0
    memory: Number
    swapped_pages: Number
    rdma_bytes: Number | None
    system_w: Measure | None
    engine: dict[str, float | None] | None = None
    ttft: dict[Bound, float] | None = None


class Sampler(Closing):
    """Samples ``nodes`` until it is closed; ``urls`` are those of the engine's API, by the node that has one.

    A node that fails or goes silent ends its own series, which stays, and is in ``lost`` with the reason.
    """

    def __init__(self, fleet: Fleet, nodes: Iterable[str], urls: Mapping[str, str], engine: Engine) -> None:
        self.samples: dict[str, list[Sample]] = {name: [] for name in nodes}
        self.lost: dict[str, str] = {}
        self._began, self._open = time.monotonic(), True
        metrics = {**engine.counters, **engine.statistics}
        fleet.start(lambda host: self._follow(host, {"engine": urls.get(host.name), "metrics": metrics}), self.samples)

    def now_s(self) -> float:
        """Seconds since the sampler began."""
        return time.monotonic() - self._began

    def fresh(self, node: str, limit_s: float = 15.0) -> Sample:
        """A sample of ``node`` that was taken after this call, which lasts two seconds or less.

        Raises:
            HostError: none came within ``limit_s``, or the node is lost.
        """
        place, deadline = len(self.samples[node]) + 1, self.now_s() + limit_s  # the next one may be on its way
        while len(self.samples[node]) <= place:
            if node in self.lost or self.now_s() > deadline:
                raise HostError(self.lost.get(node) or f"{node} sent no sample for {limit_s:g} s", node=node)
            time.sleep(0.02)
        return self.samples[node][place]

    def close(self) -> None:
        """End each node's program with its next sample, without waiting for it."""
        self._open = False

    def _follow(self, host: Host, request: dict[str, Any]) -> None:
        try:
            with Conversation(host, "vitals", request, silence_s=SILENT_S) as conversation:
                while self._open:
                    found, series = conversation.answer(Sample), self.samples[host.name]
                    if not series or self.now_s() > series[-1].at_s + _SOONEST_S:
                        series.append(found.model_copy(update={"at_s": self.now_s()}))
        except HostError as error:
            self.lost[host.name] = error.message


def between(before: Sample, after: Sample) -> dict[str, float | None]:
    """What the engine did between two samples; None where that is unknown, or a counter went back: it was restarted.

    ``hit_rate`` (tokens that the prefix cache had, of those looked up), ``acceptance`` (of drafted tokens),
    ``accepted_length`` (tokens a step, with the one that needs no draft), ``preemptions``, ``generated``, ``prompted``
    and ``hits`` (tokens); ``ttft_p50_s`` and ``ttft_p95_s``: at most that, since a histogram knows no more, and None in
    its last bucket, which has no bound.
    """

    def grown(name: str) -> float:
        first, last = ((each.engine or {}).get(name) for each in (before, after))
        return math.nan if first is None or last is None or last < first else last - first

    def at_most(share: float) -> float:
        counts = sorted(
            (bound, count - (before.ttft or {}).get(bound, 0)) for bound, count in (after.ttft or {}).items()
        )
        wanted = share * counts[-1][1] if counts and min(count for _, count in counts) >= 0 else 0
        return next((bound for bound, count in counts if count >= wanted > 0 and bound < math.inf), math.nan)

    figures = {
        "hit_rate": grown("hits") / (grown("queries") or math.nan),
        "acceptance": grown("accepted") / (grown("drafted") or math.nan),
        "accepted_length": 1 + grown("accepted") / (grown("drafts") or math.nan),
        **{name: grown(name) for name in ("preemptions", "generated", "prompted", "hits")},
        "ttft_p50_s": at_most(0.5),
        "ttft_p95_s": at_most(0.95),
    }
    return {name: None if math.isnan(figure) else figure for name, figure in figures.items()}
