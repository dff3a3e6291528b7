"""Samples nodes while they serve, in one time base; ``inspect.signals`` interprets the samples."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from sparkcluster.endpoint.find import Endpoint
from sparkcluster.engines.base import Engine
from sparkcluster.errors import CommandFailed, CommandTimeout, HostError, SparkclusterError
from sparkcluster.facts.base import Fact
from sparkcluster.facts.model import Memory
from sparkcluster.facts.running import GpuSample
from sparkcluster.hosts.base import SILENT_S, Closing, Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import Conversation

Count = Annotated[float, Field(ge=0, le=1e18)]
"""A counter since boot or since the engine's start; bounded, so that rates are finite."""
Total = Annotated[int, Field(ge=0, lt=1 << 63)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,32}$")]
"""Name of a device or a counter."""
Bound = Annotated[float, Field(allow_inf_nan=True, ge=0)]
"""Upper bound of a histogram bucket; infinite for the last one."""
Buckets = Annotated[dict[Bound, Count], Field(max_length=64)]
"""Counts by upper bound."""
Resource = Literal["cpu", "memory", "io"]
EngineAt = tuple[Endpoint, Engine]
"""An engine that serves, and its API endpoint on its node."""
_SOONEST_S, _REST_S = 0.2, 0.05
"""Samples that arrive sooner, after a stalled link or from a faulty node, are dropped, each after a pause."""
_SILENT_S, _LONGEST_S = 10.0, 20.0
"""With ``retry_s``: silence after which a node is lost, and the longest pause between two retries."""


def clock_s() -> float:
    """Seconds on a clock that also runs while this machine sleeps and is never set (macOS: CLOCK_MONOTONIC)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class DiskCounts(Fact):
    """Counters of a physical disk since boot; ``busy_s`` is the time with requests in flight."""

    read_bytes: Total
    written_bytes: Total
    busy_s: Count


class HcaCounts(Fact):
    """Counters of an HCA since boot; ``errors`` are those of ``HCA_ERRORS`` that it has."""

    sent_bytes: Total
    received_bytes: Total
    errors: Annotated[dict[Name, Total], Field(max_length=16)] = Field(default_factory=dict)


class EngineSample(Fact):
    """Counters and statistics of an engine since its start, by the names of ``engines.base``; None if it has none.

    Attributes:
        clock_s: when it was read, by the clock of its ``Sample``.
        ttft, itl: buckets of the time to the first token, and between tokens, in seconds.
    """

    clock_s: Count
    counts: Annotated[dict[Name, Count | None], Field(max_length=32)]
    ttft: Buckets | None = None
    itl: Buckets | None = None


class Sample(GpuSample):
    """One node at one moment, with its GPU; None for what it lacks or what did not answer in time.

    Attributes:
        at_s: when it arrived, in seconds since the sampler's start; used for its age.
        clock_s: when it was taken, by the node's clock since boot (CLOCK_BOOTTIME); used for rates.
        swapped_pages: pages swapped in and out since boot.
        pressure: by resource, seconds since boot in which ``some`` task, or all tasks (``full``), waited for it.
        disks: physical disks, by name.
        rdma: by HCA.
        system_w: power of the whole Spark in watts; ``power_w`` is its GPU's.
        engines: engines read since the previous sample, by key.
    """

    at_s: float = 0.0
    clock_s: Count
    memory: Memory
    swapped_pages: Total
    pressure: dict[Resource, dict[Literal["some", "full"], Count]] = Field(default_factory=dict)
    disks: Annotated[dict[Name, DiskCounts], Field(max_length=64)] = Field(default_factory=dict)
    rdma: Annotated[dict[Name, HcaCounts], Field(max_length=64)] = Field(default_factory=dict)
    system_w: Count | None = None
    engines: Annotated[dict[str, EngineSample], Field(max_length=16)] = Field(default_factory=dict)

    @property
    def engine(self) -> EngineSample | None:
        """The only engine that is read."""
        return next(iter(self.engines.values()), None)

    def count(self, name: str) -> float:
        """A counter of ``engine``; 0 if it has none or was not read."""
        return (self.engine.counts.get(name) if self.engine else None) or 0

    @property
    def rdma_bytes(self) -> int | None:
        """Bytes sent and received through all HCAs since boot; None without an HCA."""
        return sum(each.sent_bytes + each.received_bytes for each in self.rdma.values()) if self.rdma else None


class Samples(Conversation):
    """The conversation with the sampling program; its lines are short."""

    line_bytes = 1 << 16


class Sampler(Closing):
    """Samples ``nodes`` until it is closed, with one thread per node.

    Args:
        fleet: their hosts.
        nodes: the nodes to sample.
        engines: by node and key, engines whose metrics are read; can be replaced while it runs.
        every_s: seconds between reports of GPU and engines; everything else is read every second.
        keep: number of samples to keep per node; None for all.
        retry_s: seconds until a lost node is retried, doubled after each failure; a broken connection is renewed. None
            to not retry.

    Attributes:
        samples: the series of each node; a series is replaced, never changed.
        lost: by node, why it sends nothing now: it is unreachable, its program failed or went silent, or it sent an
            invalid sample. Its series remains.
    """

    def __init__(
        self,
        fleet: Fleet,
        nodes: Iterable[str],
        engines: Mapping[str, Mapping[str, EngineAt]],
        *,
        every_s: int = 1,
        keep: int | None = None,
        retry_s: float | None = None,
    ) -> None:
        self.samples: dict[str, Sequence[Sample]] = dict.fromkeys(nodes, ())
        self.lost: dict[str, SparkclusterError] = {}
        self.engines = engines
        self._every_s, self._keep, self._retry_s = every_s, keep or sys.maxsize, retry_s
        self._began, self._closed = clock_s(), threading.Event()
        self._calls = fleet.start(self._follow, self.samples)

    def now_s(self) -> float:
        """Seconds since the sampler's start."""
        return clock_s() - self._began

    def check(self) -> None:
        """Raise the error that ended a node's thread, if there is one."""
        self._calls.wait(0)

    def fresh(self, node: str, limit_s: float = 15.0) -> Sample:
        """A sample of ``node`` taken after this call, which lasts at most two seconds.

        Raises:
            HostError: none arrived within ``limit_s``, or the node is lost.
        """
        called_s = self.now_s()
        counted = any(of.counters for _, of in self.engines.get(node, {}).values())
        while True:
            came = [each for each in self.samples[node][-5:] if each.at_s > called_s]
            came = [each for each in came if each.engines or not counted]
            if len(came) > 1:  # the first may have been taken before
                return came[1]
            if node in self.lost or self.now_s() > called_s + limit_s:
                raise self.lost.get(node) or HostError(f"{node} sent no sample for {limit_s:g} s", node=node)
            time.sleep(0.02)

    def close(self) -> None:
        """End each node's program at its next sample, without waiting for it."""
        self._closed.set()

    def _follow(self, host: Host) -> None:
        pause_s = 0.0
        while not self._closed.is_set():
            last = self.samples[host.name][-1:]
            try:
                self._converse(host, self.engines.get(host.name, {}))
            except SparkclusterError as error:
                self.lost[host.name] = error
                if self._retry_s is None:
                    return
                again = pause_s and self.samples[host.name][-1:] == last
                pause_s = min(_LONGEST_S, 2 * pause_s) if again else self._retry_s
                # a check may use the same connection
                broken = not isinstance(error, CommandFailed) and (again or not isinstance(error, CommandTimeout))
                if not self._closed.wait(pause_s) and broken:
                    host.renew()

    def _converse(self, host: Host, wanted: Mapping[str, EngineAt]) -> None:
        """Take samples of ``host`` until the sampler is closed or its engines differ from ``wanted``."""
        engines = {
            key: {
                "url": at.url,
                "key_file": at.key_file,
                "key_name": at.key_name,
                "metrics": {**of.counters, **of.statistics},
            }
            for key, (at, of) in wanted.items()
            if of.counters
        }
        request = {"engines": engines, "every_s": self._every_s}
        silence_s = SILENT_S if self._retry_s is None else _SILENT_S
        with Samples(host, "vitals", request, silence_s=silence_s) as conversation:
            while not self._closed.is_set() and self.engines.get(host.name, {}) == wanted:
                found, series, now_s = conversation.answer(Sample), self.samples[host.name], self.now_s()
                if series and now_s < series[-1].at_s + _SOONEST_S:
                    time.sleep(_REST_S)
                    continue
                asked = {key: each for key, each in found.engines.items() if key in wanted}
                found = found.model_copy(update={"at_s": now_s, "engines": asked})
                self.samples[host.name] = (*series, found)[-self._keep :]
                self.lost.pop(host.name, None)
