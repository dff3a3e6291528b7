"""A fake ``Live`` that tests fill: its samples and facts have the real types."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from sparkcluster.facts.model import EnabledFact
from sparkcluster.findings import Finding
from sparkcluster.inspect.vitals import Sample

GIB = 1 << 30
ENGINE = {
    "clock_s": 1.0,
    "counts": {
        "generated": 2048, "prompted": 6144, "running": 2, "waiting": 1, "kv_cache": 0.4375, "hits": 3840,
        "queries": 5120, "preemptions": 3, "drafts": None, "ttft_sum": 1.5,
    },
    "ttft": {"0.1": 2, "1.0": 3, "inf": 4},
    "itl": {"0.05": 7, "inf": 9},
}  # fmt: skip
SAMPLE: dict[str, Any] = {
    "at_s": 99.0, "clock_s": 1000.0, "swapped_pages": 12, "system_w": None, "utilization_percent": 93.0, "power_w": 61.0,
    "sm_clock_mhz": 2405.0, "temperature_c": None, "throttle": 0x20 | 0x1,
    "memory": {"total_bytes": 120 * GIB, "free_bytes": GIB, "available_bytes": 20 * GIB, "cached_bytes": 2 * GIB,
               "swap_total_bytes": 4 * GIB, "swap_free_bytes": 3 * GIB},
    "pressure": {"memory": {"some": 1.5, "full": 0.5}},
    "disks": {"nvme0n1": {"read_bytes": 10, "written_bytes": 20, "busy_s": 0.25}},
    "rdma": {"rocep1s0f1": {"sent_bytes": 7, "received_bytes": 8, "errors": {"out_of_sequence": 2}}},
    "engines": {"atlas/default": ENGINE},
}  # fmt: skip


def sample(**changes: Any) -> Sample:
    """A sample that arrived a second ago, as a node sends it."""
    return Sample.model_validate_json(json.dumps({**SAMPLE, **changes}))


def model(**changes: Any) -> dict[str, Any]:
    """The document of a model that serves on one Spark."""
    group = {"name": "default", "ready": True, "release": 7}
    finding = Finding("HOST-017", "warning", "the clocks differ", "spark-1").as_json()
    return {
        "cluster": "atlas", "name": None, "state": "serving", "model": "openai/gpt-oss-120b", "image": "vllm:v1",
        "release": 7, "released_at": 1796004000.0, "groups": [group], "findings": [finding, finding], **changes,
    }  # fmt: skip


class FakeLive:
    """One Spark with one model; ``tick`` makes another document."""

    def __init__(self, *samples: Sample, **changes: Any) -> None:
        guard = EnabledFact(runs=True, events={"restart": 3})
        spec = SimpleNamespace(model=None, playbook=SimpleNamespace(model_name="gpt"))
        self.views = {"atlas": SimpleNamespace(spec=spec, facts={"spark-1": SimpleNamespace(enabled=guard)})}
        self.replies = {"atlas": {"default": SimpleNamespace(problem=None)}}
        self.sampler = SimpleNamespace(
            samples={"spark-1": samples or (sample(),), "spark-2": (sample(at_s=1.0),)},
            engines={"spark-1": {"atlas/default": ("http://127.0.0.1:8000/v1", None)}},
            now_s=lambda: 100.0,
        )
        nodes = {"spark-1": {"state": "up"}, "spark-2": {"state": "lost"}}
        self.document = {"models": [model()], "gateway": None, "nodes": nodes, "checked_s": 12.5, **changes}
        self.number = 1
        self.said: list[str] = []
        self.history = {"at": [1.0, 2.0], "nodes": {"spark-1": {"gpu_power_w": [60.0, None]}}, "groups": {}}

    def wait(self, number: int, limit_s: float) -> int:
        """The number of the last tick, immediately."""
        return self.number

    def tick(self, **changes: Any) -> None:
        """Another complete document."""
        self.document = {**self.document, **changes}
        self.number += 1
