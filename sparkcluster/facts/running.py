"""State of a running cluster: its ranks and their logs, counters, Ray's members, and one real completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from sparkcluster.facts.base import Fact, Few, Measure, Number, Raw, Unread
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.model import LeaseFact, Memory, ReleaseFact
from sparkcluster.facts.release_record import Launcher
from sparkcluster.node.shared import LABEL_GROUP

Reading = Annotated[float, Field(ge=-1e6, le=1e6)]
"""Of a sensor."""


class RankSeen(Rank):
    """One rank of a running cluster, with its log.

    Attributes:
        log: its first and its last lines; all of them if it is short.
        launcher: of its launcher document: role, executor, address, members, engine's command, ray, hashes of secrets.
        gpu: output of nvidia-smi inside the container; None where it was not run.
    """

    launcher: Launcher = Field(default_factory=Launcher)
    log: tuple[str, ...] | Unread = ()
    gpu: Raw | Unread | None = None

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.state == "running"

    @property
    def group(self) -> str:
        """Its group's name."""
        return self.labels.get(LABEL_GROUP) or self.launcher.get("group") or ""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of its log; none where it could not be read."""
        return () if isinstance(self.log, Unread) else self.log


class Counters(Fact):
    """The engine's counters ``at_s`` seconds after the program started; None for a counter that it lacks."""

    at_s: float
    generated: float | None = None
    prompted: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None


class GpuSample(Fact):
    """A GPU at one moment; None for what nvidia-smi does not report, or was not asked.

    Attributes:
        at_s: by the node's own clock.
        throttle: why its clock is low: a mask, nvmlClocksEventReasons in nvml.h.
    """

    at_s: float
    utilization_percent: Reading | None = None
    power_w: Reading | None = None
    sm_clock_mhz: Reading | None = None
    temperature_c: Reading | None = None
    throttle: Number | None = None


THROTTLES = {0x04: "power cap", 0x08: "hardware", 0x20: "thermal, software", 0x40: "thermal", 0x80: "power brake"}
"""Why a clock is low, by bit of nvmlClocksEventReasons in nvml.h; not that it idles, or was set so."""


class Traffic(Fact):
    """Bytes sent since boot: by RDMA per HCA, by sockets per interface of the same ports; pages swapped in and out."""

    at_s: float
    rdma_bytes: dict[str, int] = Field(default_factory=dict)
    socket_bytes: dict[str, int] = Field(default_factory=dict)
    swapped_pages: int = 0


class Observation(Fact):
    """One node as ``node/observe.py`` saw it.

    Attributes:
        counters, health, ray: of the node that has a running head; None on the others.
        health: status of ``/health``.
        ray: whether each node that ever joined Ray is alive, by address; None with another executor.
    """

    ranks: Few[RankSeen] | Unread
    gpus: Few[GpuSample] | Unread | None = None
    memory: Memory | Unread | None = None
    counters: Few[Counters] | Unread | None = None
    health: int | Unread | None = None
    ray: dict[str, bool] | Unread | None = None
    traffic: Few[Traffic] | Unread | None = None


class Usage(Fact):
    """Tokens of one completion; what else the engine counted is kept."""

    model_config = ConfigDict(extra="allow")
    completion_tokens: Number | None = None


class ToolCall(Fact):
    """A call of a tool that a request offered; ``arguments`` is JSON."""

    name: str = ""
    arguments: Raw = ""


class Done(Fact):
    """The final document of the ask program."""

    model_config = ConfigDict(extra="allow")
    content: Raw = ""
    reasoning: Raw = ""
    tool_calls: Few[ToolCall] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    ttft_s: Measure | None = None
    total_s: Measure | None = None


class Problem(Fact):
    """Why there is no completion: its kind as ``node/ask.py`` names it, and a message."""

    kind: str
    message: str


class Event(Fact):
    """One document of the ask program: a piece of text, counters of the engine, or the end."""

    text: Raw = ""
    reasoning: Raw = ""
    counters: dict[str, float] | None = None
    context: Number | None = None
    error: Problem | None = None
    done: Done | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The result of one streamed completion, requested on the head of a group.

    Attributes:
        head: the node that sent the request.
        ttft_s: seconds to the first streamed token of any field; None where none came.
        text: its content, or its reasoning where there was no content.
        finish: ``finish_reason``; None where it did not end.
        problem: kind of the error as ``node/ask.py`` names it, or ``timeout``; None on success.
        message: of that error.
        limit_s: the time limit.
        context: longest prompt and answer together, in tokens, where the engine reported it.
        stalled_s: seconds for which no counter of the engine had moved at the end; None where they could not be read.
        moved: whether a counter of the engine was seen to move.
        counters: the engine's, as last read; empty where they were not.
        done: the final document of the ask program; empty where the answer did not end.
        footprint: what the engine logged of its memory while it started, by keys of ``engines.phase.FOOTPRINT``, and
            ``start_s``, from the start of its ranks until it had answered.
    """

    group: str
    head: str
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    tokens: int | None = None
    text: str = ""
    finish: str | None = None
    problem: str | None = None
    message: str = ""
    limit_s: float = 0.0
    context: int | None = None
    stalled_s: float | None = None
    moved: bool = False
    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    done: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    footprint: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def content(self) -> str:
        """What a whole answer has beside its reasoning."""
        return str(self.done.get("content", self.text))

    def as_json(self) -> dict[str, Any]:
        """The reply as ``doctor --json`` shows it."""
        document = dataclasses.asdict(self)
        del document["done"], document["counters"], document["footprint"]
        return document


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """What ``doctor`` collected in addition to the facts.

    Attributes:
        observations: by node, or why there is none.
        replies: by group.
        recorded: the newest release recorded on any node; None where no record can be read.
        lease: the one that is held right now, or None.
        failed: what the last launch that failed said, if none has succeeded since; empty without one.
        rotated: by group, names of secrets that have another value here than it was started with.
        key_lost: why the API key that groups were started with is not here, and what makes another; None if it is.
    """

    observations: Mapping[str, Observation | Unread] = dataclasses.field(default_factory=dict)
    replies: Mapping[str, Reply] = dataclasses.field(default_factory=dict)
    recorded: ReleaseFact | None = None
    lease: LeaseFact | None = None
    failed: str = ""
    rotated: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    key_lost: tuple[str, str] | None = None

    def seen(self) -> Iterator[tuple[str, Observation]]:
        """Every node that was inspected."""
        for name, observation in self.observations.items():
            if isinstance(observation, Observation):
                yield name, observation

    def ranks(self) -> Iterator[tuple[str, RankSeen]]:
        """Every rank, with its node."""
        for name, observation in self.seen():
            if not isinstance(observation.ranks, Unread):
                for rank in observation.ranks:
                    yield name, rank

    def as_json(self) -> dict[str, Any]:
        """The document of ``doctor --json``; of logs, only how many lines were read."""
        nodes: dict[str, Any] = {}
        for name, observation in self.observations.items():
            nodes[name] = document = observation.model_dump(mode="json")
            ranks = document.get("ranks")
            for rank in ranks if isinstance(ranks, list) else ():
                log = rank.pop("log")
                rank["log_lines"] = len(log) if isinstance(log, list) else None
        return {
            "nodes": nodes,
            "replies": {name: reply.as_json() for name, reply in self.replies.items()},
            "release": self.recorded.number if self.recorded else None,
            "operator": (self.lease.operator or "another operator") if self.lease else None,
            "operation": self.lease.operation if self.lease else None,
        }
