"""Samples of a node as its program sends them."""

from __future__ import annotations

from typing import Any

from sparkcluster.inspect.vitals import Sample

GIB = 1 << 30
MEMORY = {
    "total_bytes": 128 * GIB,
    "free_bytes": 4 * GIB,
    "available_bytes": 24 * GIB,
    "cached_bytes": 20 * GIB,
    "swap_total_bytes": 16 * GIB,
    "swap_free_bytes": 15 * GIB,
}
DOCUMENT: dict[str, Any] = {
    "clock_s": 100.0,
    "memory": MEMORY,
    "swapped_pages": 0,
    "pressure": {"cpu": {"some": 5.0, "full": 0.0}, "memory": {"some": 1.0, "full": 0.5}, "io": {"some": 2.0}},
    "disks": {"nvme0n1": {"read_bytes": 512, "written_bytes": 1024, "busy_s": 0.5}},
    "rdma": {"roceP2p1s0f0": {"sent_bytes": 4000, "received_bytes": 8000, "errors": {"link_downed": 1}}},
    "system_w": 61.5,
    "at_s": 1.0,
    "utilization_percent": 96.0,
    "power_w": 24.3,
    "sm_clock_mhz": 2405.0,
    "temperature_c": 51.0,
    "throttle": 32,
    "engines": {},
}


def sampled(at_s: float = 1.0, *, engine: dict[str, Any] | None = None, key: str = "lab/a", **changed: Any) -> Sample:
    """``DOCUMENT`` with changed values; the node's clock is 99 s before ``at_s``, and ``engine`` are the engine's counters."""
    read = {"clock_s": changed.get("clock_s", 99.0 + at_s), "counts": engine, "ttft": changed.pop("ttft", None)}
    engines = {} if engine is None else {key: read}
    known = {"at_s": at_s, "clock_s": 99.0 + at_s, "engines": engines}
    return Sample.model_validate({**DOCUMENT, **known, **changed})
