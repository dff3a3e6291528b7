"""Which nodes reach one another, and how: facts about pairs, collected once the topology is known."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """All attempts, and why some nodes could not take part."""

    paths: tuple[Path, ...] = ()
    unasked: Mapping[str, str] = dataclasses.field(default_factory=dict)
