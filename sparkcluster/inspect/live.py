"""What moves in a cluster that runs, reading by reading, for ``status --watch``. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.running import GpuSample, Observation, Traffic
from sparkcluster.inspect.status import load_of
from sparkcluster.plan.release_record import ClusterRanks

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeNow:
    """One node at one moment; None for what it does not report.

    Attributes:
        used_bytes, total_bytes: memory, which CPU and GPU share; used is what is not available.
        gpu_percent: utilization of its busiest GPU.
        power_w: of its GPUs together.
        rdma_gbps: that its HCAs sent since the reading before, in Gb/s (10⁹ bits).
        socket_gbps: likewise by sockets of the same ports: with NCCL over RoCE next to nothing.
        why: why nothing is known of it.
    """

    used_bytes: int | None = None
    total_bytes: int | None = None
    gpu_percent: float | None = None
    power_w: float | None = None
    rdma_gbps: float | None = None
    socket_gbps: float | None = None
    why: str | None = None


def node_now(observation: Observation | Unread) -> NodeNow:
    """What a node reported in one reading."""
    if isinstance(observation, Unread):
        return NodeNow(why=observation.unread)
    memory = read(observation.memory)
    gpus = _last(_read(observation.gpus))
    traffic = _read(observation.traffic)
    return NodeNow(
        used_bytes=memory.total_bytes - memory.available_bytes if memory else None,
        total_bytes=memory.total_bytes if memory else None,
        gpu_percent=max((gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None), default=None),
        power_w=_sum(gpu.power_w for gpu in gpus),
        rdma_gbps=_rate(traffic, "rdma_bytes"),
        socket_gbps=_rate(traffic, "socket_bytes"),
    )


def _read(value: Sequence[T] | Unread | None) -> Sequence[T]:
    return () if value is None or isinstance(value, Unread) else value


def _last(samples: Sequence[GpuSample]) -> Sequence[GpuSample]:
    """Those of the latest reading."""
    return [sample for sample in samples if sample.at_s == samples[-1].at_s] if samples else []


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rate(traffic: Sequence[Traffic], key: str) -> float | None:
    """Gb/s between the first reading and the last; a counter that went back was reset."""
    if len(traffic) < 2 or traffic[-1].at_s <= traffic[0].at_s:
        return None
    first, last = getattr(traffic[0], key), getattr(traffic[-1], key)
    if not last:
        return None
    sent = sum(max(0, count - first[name]) for name, count in last.items() if name in first)
    return float(sent * 8 / 1e9 / (traffic[-1].at_s - traffic[0].at_s))


def loads(seen: Mapping[str, Observation | Unread], present: ClusterRanks) -> dict[str, dict[str, Any]]:
    """What each group's engine does in one reading; groups without one are left out."""
    found = {group: load_of(nodes, seen) for group, nodes in present.groups().items()}
    return {group: load for group, load in found.items() if load is not None}
