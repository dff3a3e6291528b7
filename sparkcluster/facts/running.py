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
"""Value of a sensor."""


class RankSeen(Rank):
    """A rank of a running cluster, with its log.

    Attributes:
        log: the first and the last lines; all lines if it is short.
        launcher: from its launcher document: role, executor, address, members, engine's command, ray, hashes of
            secrets.
        gpu: output of nvidia-smi inside the container; None if it was not run.
    """

    launcher: Launcher = Field(default_factory=Launcher)
    log: tuple[str, ...] | Unread = ()
    gpu: Raw | Unread | None = None

    @property
    def running(self) -> bool:
        """Whether the rank is running."""
        return self.state == "running"

    @property
    def group(self) -> str:
        """Name of its group."""
        return self.labels.get(LABEL_GROUP) or self.launcher.get("group") or ""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of its log; empty if it could not be read."""
        return () if isinstance(self.log, Unread) else self.log


class Counters(Fact):
    """The engine's counters ``at_s`` seconds after the program started; None for a missing counter."""

    at_s: float
    generated: float | None = None
    prompted: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None


class GpuSample(Fact):
    """A GPU at one moment; None for values that nvidia-smi does not report or was not asked for.

    Attributes:
        at_s: by the node's clock.
        throttle: why the clock is low: the bit mask nvmlClocksEventReasons in nvml.h.
    """

    at_s: float
    utilization_percent: Reading | None = None
    power_w: Reading | None = None
    sm_clock_mhz: Reading | None = None
    temperature_c: Reading | None = None
    throttle: Number | None = None


THROTTLES = {0x04: "power cap", 0x08: "hardware", 0x20: "thermal, software", 0x40: "thermal", 0x80: "power brake"}
"""Reasons for a low clock, by bit of nvmlClocksEventReasons in nvml.h; without idle and user settings."""


class Traffic(Fact):
    """Bytes sent since boot, by RDMA per HCA, by sockets per interface of the same ports; pages swapped in and out."""

    at_s: float
    rdma_bytes: dict[str, int] = Field(default_factory=dict)
    socket_bytes: dict[str, int] = Field(default_factory=dict)
    swapped_pages: int = 0


class Observation(Fact):
    """A node as observed by ``node/observe.py``.

    Attributes:
        counters, health, ray: only on the node with a running head; else None.
        health: status of ``/health``.
        ray: whether each node that ever joined Ray is alive, by address; None with other executors.
    """

    ranks: Few[RankSeen] | Unread
    gpus: Few[GpuSample] | Unread | None = None
    memory: Memory | Unread | None = None
    counters: Few[Counters] | Unread | None = None
    health: int | Unread | None = None
    ray: dict[str, bool] | Unread | None = None
    traffic: Few[Traffic] | Unread | None = None


class Usage(Fact):
    """Tokens of a completion; other keys of the engine's ``usage`` are kept."""

    model_config = ConfigDict(extra="allow")
    completion_tokens: Number | None = None


class ToolCall(Fact):
    """A call of a tool that the request offered; ``arguments`` is JSON."""

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
    """Why there is no completion: a kind of error from ``node/ask.py``, and a message."""

    kind: str
    message: str


class Event(Fact):
    """A document of the ask program: a piece of text, counters of the engine, or the end."""

    text: Raw = ""
    reasoning: Raw = ""
    counters: dict[str, float] | None = None
    context: Number | None = None
    error: Problem | None = None
    done: Done | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The result of a streamed completion, requested on the head of a group.

    Attributes:
        head: the node that sent the request.
        ttft_s: seconds to the first streamed token of any field; None if there was none.
        text: the content, or the reasoning if there was no content.
        finish: ``finish_reason``; None if the answer did not end.
        problem: the kind of error from ``node/ask.py``, or ``timeout``; None on success.
        message: message of that error.
        limit_s: the time limit.
        context: maximum length of prompt and answer together, in tokens, if the engine reported it.
        stalled_s: seconds without a change of the engine's counters, at the end; None if they could not be read.
        moved: whether a counter of the engine changed.
        counters: the engine's counters as last read; empty if they could not be read.
        done: the final document of the ask program; empty if the answer did not end.
        footprint: the memory that the engine logged while it started, by keys of ``engines.phase.FOOTPRINT``, and
            ``start_s``, from the start of its ranks to the end of the first answer.
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
        """The content of a complete answer, without its reasoning."""
        return str(self.done.get("content", self.text))

    def as_json(self) -> dict[str, Any]:
        """The reply as in ``doctor --json``."""
        document = dataclasses.asdict(self)
        del document["done"], document["counters"], document["footprint"]
        return document


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """Data that ``doctor`` collects in addition to the facts.

    Attributes:
        observations: by node, or why there is none.
        replies: by group.
        recorded: the newest release recorded on any node; None if no record can be read.
        lease: the lease that is held now, or None.
        failed: message of the last failed launch, if none has succeeded since; else empty.
        rotated: by group, names of secrets whose value here differs from the value it was started with.
        key_lost: reason and hint if the API key that groups were started with is not available here; else None.
    """

    observations: Mapping[str, Observation | Unread] = dataclasses.field(default_factory=dict)
    replies: Mapping[str, Reply] = dataclasses.field(default_factory=dict)
    recorded: ReleaseFact | None = None
    lease: LeaseFact | None = None
    failed: str = ""
    rotated: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    key_lost: tuple[str, str] | None = None

    def seen(self) -> Iterator[tuple[str, Observation]]:
        """Every node that was observed, with its observation."""
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
        """The document of ``doctor --json``; for logs, only the number of lines read."""
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
