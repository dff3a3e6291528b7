"""Lines of llama.cpp's log: the tables of ``log.toml``."""

from __future__ import annotations

from pathlib import Path

from sparkcluster.engines.common_signatures import common
from sparkcluster.engines.llama_cpp import ENGINE
from sparkcluster.engines.signature import Step, rows, signatures

_FILE = Path(__file__).with_name("log.toml")
PHASES = tuple(Step(**row) for row in rows(_FILE, "phases"))
SIGNATURES = tuple(
    sorted(
        (*signatures(_FILE, memory_hint=ENGINE.memory_hint), *common(ENGINE.memory_hint)),
        key=lambda each: each.consequence,
    )
)
