"""What a cluster that runs was seen doing: its ranks and their logs, counters, Ray's members, one real completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from sparkcluster.facts.model import Fact, LeaseFact, ReleaseFact, Unread
from sparkcluster.node.shared import LABEL_GROUP


class Log(Fact):
    """The first lines of a log and its last; ``last`` is empty where ``first`` is all there is."""

    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines that are known, oldest first."""
        return self.first + self.last


class RankSeen(Fact):
    """One rank as its container or process is now.

    Attributes:
        state: ``created``, ``running``, ``restarting``, ``paused``, ``exited``, ``dead`` or ``gone``.
        exit_code: None where it runs, or where nobody knows.
        restarts: how often Docker has started it again.
        labels: of its container: group, node, rank, release, plan.
        launcher: of its launcher document: role, executor, address, members, engine's command, ray.
        gpu: what nvidia-smi says inside the container; None where that was not asked.
    """

    name: str
    state: str
    exit_code: int | None = None
    oom_killed: bool = False
    restarts: int = 0
    started_at: str | None = None
    finished_at: str | None = None
    error: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    launcher: dict[str, Any] = Field(default_factory=dict)
    log: Unread | Log = Log()
    gpu: str | Unread | None = None

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.state == "running"

    @property
    def group(self) -> str:
        """Its group's name."""
        return str(self.labels.get(LABEL_GROUP) or self.launcher.get("group") or "")

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of its log; none where it could not be read."""
        return () if isinstance(self.log, Unread) else self.log.lines


class Counters(Fact):
    """The engine's own counters at one moment, ``at_s`` seconds after the look began; None where it has none."""

    at_s: float
    generated: float | None = None
    prompted: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None


class GpuSample(Fact):
    """What a GPU did at one moment; None for what nvidia-smi does not tell."""

    at_s: float
    utilization_percent: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


class Traffic(Fact):
    """Bytes sent since boot: by RDMA per HCA, by sockets per interface of the same ports; pages swapped in and out."""

    at_s: float
    rdma_bytes: dict[str, int] = Field(default_factory=dict)
    socket_bytes: dict[str, int] = Field(default_factory=dict)
    swapped_pages: int = 0


class Look(Fact):
    """One node as ``node/look.py`` saw it.

    Attributes:
        counters, health, ray: of the node that has a running head; None on the others.
        health: status of ``/health``.
        ray: whether each node that ever joined Ray is alive, by address; None with another executor.
    """

    ranks: tuple[RankSeen, ...] | Unread
    gpus: tuple[GpuSample, ...] | Unread | None = None
    counters: tuple[Counters, ...] | Unread | None = None
    health: int | Unread | None = None
    ray: dict[str, bool] | Unread | None = None
    traffic: tuple[Traffic, ...] | Unread | None = None
    look_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What came of one streamed completion, asked on the head of a group.

    Attributes:
        head: the node that was asked.
        ttft_s: seconds to the first streamed token of any field; None where none came.
        text: what it said, or where it said nothing what it thought.
        finish: why it ended, in OpenAI's words; None where it did not.
        problem: kind of the error as the ask program names it, or ``timeout``; None where it ended well.
        message: that error in words.
        limit_s: how long it was waited for.
        context: longest prompt and answer together, in tokens, where the engine said it.
        stalled_s: for how long, at the end, no counter of the engine had moved; None where they were not read.
        done: the final document of the ask program; empty where the answer did not end.
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
    done: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The reply as ``doctor --json`` shows it."""
        document = dataclasses.asdict(self)
        del document["done"]
        return document


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """What ``doctor`` gathered beside the facts.

    Attributes:
        looks: by node; why there is none, of the nodes that answered the probe and not this.
        replies: by group.
        recorded: the newest release that any node knows; None where no record can be read.
        lease: that is held right now, or None.
    """

    looks: Mapping[str, Look | Unread]
    replies: Mapping[str, Reply] = dataclasses.field(default_factory=dict)
    recorded: ReleaseFact | None = None
    lease: LeaseFact | None = None

    def seen(self) -> Iterator[tuple[str, Look]]:
        """Every node that could be looked at."""
        for name, look in self.looks.items():
            if isinstance(look, Look):
                yield name, look

    def ranks(self) -> Iterator[tuple[str, RankSeen]]:
        """Every rank, with its node."""
        for name, look in self.seen():
            if not isinstance(look.ranks, Unread):
                for rank in look.ranks:
                    yield name, rank

    def as_json(self) -> dict[str, Any]:
        """What was gathered as ``doctor --json`` shows it; of logs only how many lines were read."""
        nodes: dict[str, Any] = {}
        for name, look in self.looks.items():
            nodes[name] = document = look.model_dump(mode="json")
            ranks = document.get("ranks")
            for rank in ranks if isinstance(ranks, list) else ():
                log = rank.pop("log")
                rank["log_lines"] = len(log["first"]) + len(log["last"]) if "first" in log else None
        return {
            "nodes": nodes,
            "replies": {name: reply.as_json() for name, reply in self.replies.items()},
            "release": self.recorded.number if self.recorded else None,
            "operator": (self.lease.operator or "another operator") if self.lease else None,
            "operation": self.lease.operation if self.lease else None,
        }
