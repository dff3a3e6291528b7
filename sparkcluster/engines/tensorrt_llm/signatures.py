"""Lines of TensorRT-LLM's log: the tables of ``log.toml``."""

from __future__ import annotations

import re
from pathlib import Path

from sparkcluster.engines.common_signatures import beside_common
from sparkcluster.engines.signature import Step, rows
from sparkcluster.engines.tensorrt_llm import ENGINE

_FILE = Path(__file__).with_name("log.toml")
PHASES = tuple(Step(**row) for row in rows(_FILE, "phases"))
FOOTPRINT = re.compile(
    r"Use (?P<load_gib>[\d.]+) GB for model weights"
    r"|Allocated (?P<kv_gib>[\d.]+) GiB for max tokens in paged KV cache \((?P<kv_tokens>\d+)\)"
)
SIGNATURES = beside_common(_FILE, ENGINE.memory_hint)
