"""Lines of SGLang's log, and its metrics: the tables of ``log.toml`` and ``metrics.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.engines.common_signatures import beside_common
from sparkcluster.engines.sglang import ENGINE, flags
from sparkcluster.engines.signature import Cause, Step, rows
from sparkcluster.suggest import closest


def argument(found: re.Match[str], _lines: Sequence[str]) -> Cause:
    """The argument that SGLang rejected, and its replacement."""
    name = found["flag"].replace("_", "-")
    close = closest(name, flags.known_arguments() - {name}, cutoff=0.75)
    advice = flags.GONE.get(name) or (f"write {close} under args in the playbook" if close else f"remove {name}")
    return Cause(f"this SGLang does not have the argument --{name}", f"{advice}, or use another image")


_FILE = Path(__file__).with_name("log.toml")
COUNTERS, STATISTICS = tomllib.loads(_FILE.with_name("metrics.toml").read_text(encoding="utf-8")).values()
PHASES = tuple(Step(**row) for row in rows(_FILE, "phases"))
FOOTPRINT = re.compile(
    r"Load weight end\..{0,400}mem usage=(?P<load_gib>[\d.]{1,9}) GB"
    r"|Capture .{0,60}end\..{0,2000}mem usage=(?P<graphs_gib>[\d.]{1,9}) GB"
    r"|max_total_num_tokens=(?P<kv_tokens>\d{1,12}), chunked_prefill_size="
)
SIGNATURES = beside_common(_FILE, ENGINE.memory_hint, argument)
