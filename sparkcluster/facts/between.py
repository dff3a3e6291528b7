"""Facts between nodes: which nodes reach each other, link rates, and hashes of weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

PathKind = Literal["ping", "jumbo", "port", "ephemeral"]


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """A test whether ``source`` reaches ``target`` over one rail.

    Attributes:
        subnet: the rail; None for the management network.
        kind: ``ping`` a small packet; ``jumbo`` a packet of the rail's full MTU that must not be fragmented; ``port`` a
            TCP connection to a port that the launch will use; ``ephemeral`` to a port that the kernel chose.
        port: TCP port, for ``port`` and ``ephemeral``.
        use: what will listen there, for example ``Ray``.
        size_bytes: size of a ``jumbo`` packet with headers.
        seen: the error in the system's words; empty if ``ok``.
        lost_at: the node whose incoming packets do not arrive, if known; ``source`` if the answer was lost; ``sent`` if
            the source could not send.
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
        """Source and target."""
        return self.source, self.target


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """All tests, and why some nodes could not take part."""

    paths: tuple[Path, ...] = ()
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)


RateKind = Literal["tcp", "rdma", "rdma-both", "collective"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """A measurement.

    Attributes:
        kind: ``tcp`` one rail by TCP; ``rdma`` one HCA by ib_write_bw; ``rdma-both`` both twins of a port at the same
            time; ``collective`` an all-gather of the whole group in the serving image.
        nodes: the nodes that took part; source and target, except for ``collective``.
        over: interface, HCA or transport, for example ``NCCL over IB``.
        gbit_s: 10^9 bits per second; the bus bandwidth of a collective; None if it failed, for the reason in ``seen``.
        latency_ms: median round trip of a small message, if measured.
        subnet: the rail, except for ``collective``.
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
    """All measurements, and the reasons for missing ones.

    Attributes:
        unasked: why a node could not take part, by node.
        skipped: why ``rdma`` or ``collective`` was not measured.
        without_perftest: nodes without ib_write_bw.
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
        blob: name of the blob in Hugging Face's cache that it links to, if that is a SHA-256, as for large files.
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
