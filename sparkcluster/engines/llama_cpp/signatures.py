"""Lines of llama.cpp's log: the tables of ``log.toml``."""

from __future__ import annotations

from pathlib import Path

from sparkcluster.engines.common_signatures import beside_common
from sparkcluster.engines.llama_cpp import ENGINE
from sparkcluster.engines.signature import Step, rows

_FILE = Path(__file__).with_name("log.toml")
PHASES = tuple(Step(**row) for row in rows(_FILE, "phases"))
SIGNATURES = beside_common(_FILE, ENGINE.memory_hint)
