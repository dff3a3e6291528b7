"""What ``preflight --deep`` measured between pairs of nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

RateKind = Literal["tcp", "rdma", "rdma-both", "nccl", "collective"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """One measurement.

    Attributes:
        kind: ``tcp`` one rail by TCP, ``rdma`` one HCA by ib_write_bw, ``rdma-both`` both twins of a port at the
            same time, ``nccl`` one HCA by a send of NCCL in the serving image, ``collective`` an all-gather of the
            whole group in that image.
        nodes: who took part; source and target of the kinds that have two.
        over: interface, HCA, or transport that it went over, for example ``NCCL over IB``.
        gbit_s: 10^9 bits per second, of a collective its bus bandwidth; None where it gave no result, which
            ``seen`` explains.
        latency_ms: median round trip of a small message, where it was measured.
        subnet: the rail, of the kinds that have one.
    """

    kind: RateKind
    nodes: tuple[str, ...]
    over: str
    gbit_s: float | None
    latency_ms: float | None = None
    seen: str = ""
    subnet: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """All measurements, and what could not be taken.

    Attributes:
        unasked: by node, why it could not take part at all.
        skipped: by ``rdma``, ``nccl`` or ``collective``, why none was tried.
        without_perftest: nodes that lack ib_write_bw.
    """

    rates: tuple[Rate, ...] = ()
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    without_perftest: tuple[str, ...] = ()
