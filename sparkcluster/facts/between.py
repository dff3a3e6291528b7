"""What was found out between nodes: who reaches whom, what links carry, and whose weights have which hashes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

PathKind = Literal["ping", "jumbo", "port", "ephemeral"]


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """One attempt of ``source`` to reach ``target`` over one rail.

    Attributes:
        subnet: the rail, None for the management network.
        kind: ``ping`` a small packet, ``jumbo`` one of the rail's whole MTU that may not be fragmented, ``port``
            a TCP connection to a port that the launch will use, ``ephemeral`` to one that the kernel chose.
        port: TCP port, of the two kinds that have one.
        use: what will listen there, for example ``Ray``.
        size_bytes: of a ``jumbo`` packet, headers included.
        seen: what went wrong, as the system words it; empty where ``ok``.
        lost_at: whose incoming packets do not arrive, where that is known: the target's, or the source's, which
            then waits for an answer that was sent; ``sent`` where the source itself would not send it.
    """

    source: str
    target: str
    subnet: str | None
    source_address: str
    target_address: str
    kind: PathKind
    ok: bool
    port: int | None = None
    use: str = ""
    size_bytes: int | None = None
    rtt_ms: float | None = None
    seen: str = ""
    lost_at: Literal["source", "target", "sent"] | None = None

    @property
    def nodes(self) -> tuple[str, str]:
        """Both ends."""
        return self.source, self.target


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """All attempts, and why some nodes could not take part."""

    paths: tuple[Path, ...] = ()
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)


RateKind = Literal["tcp", "rdma", "rdma-both", "collective"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """One measurement.

    Attributes:
        kind: ``tcp`` one rail by TCP, ``rdma`` one HCA by ib_write_bw, ``rdma-both`` both twins of a port at the
            same time, ``collective`` an all-gather of the whole group in the serving image.
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
        skipped: by ``rdma`` or ``collective``, why none was tried.
        without_perftest: nodes that lack ib_write_bw.
    """

    rates: tuple[Rate, ...] = ()
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    without_perftest: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class HashedFile:
    """One file of the weights.

    Attributes:
        name: relative to the model's directory.
        blob: name of the file in Hugging Face's cache that it points at, where that is a SHA-256; the hub names
            large files so.
    """

    name: str
    size_bytes: int
    sha256: str
    blob: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Hashes:
    """Hashed files by node, and why some nodes have none."""

    files: Mapping[str, tuple[HashedFile, ...]] = dataclasses.field(default_factory=dict)
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)
