"""Lines of vLLM's log: the rows of ``log.toml``, and functions that some rows use.

A launch searches for signatures when a rank has ended, ``checks.running`` when a cluster does not answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.engines.common_signatures import common
from sparkcluster.engines.signature import Cause, Step, rows, signatures
from sparkcluster.engines.vllm import ENGINE, flags
from sparkcluster.fit.source import FREE_BYTES, GIB, spark
from sparkcluster.suggest import closest


def argument(found: re.Match[str], _lines: Sequence[str]) -> Cause:
    """The argument that vLLM rejected, and the closest one that it has."""
    words = found["what"].split()
    flag = next((word for word in words if word.startswith("-")), words[0]).split("=")[0]
    name = flag.lstrip("-").replace("_", "-")
    names = [each.name for each in flags.table().values() if each.last is None and each.name != name]
    close = closest(name, names, cutoff=0.75)
    advice = f"write {close}" if close else f"remove {name}"
    return Cause(
        f"this vLLM does not have the argument {flag}",
        f"{advice} under args in the playbook, or use an image whose vLLM has it",
    )


def kv_cache(found: re.Match[str], lines: Sequence[str]) -> Cause:
    """How much memory the KV cache lacks; suggests a larger share only if it leaves the node ``FREE_BYTES``."""
    said = {name: value for name, value in found.groupdict().items() if value is not None}
    hint = (
        "lower max-num-seqs or max-num-batched-tokens, remove the drafter (speculative-config), or lower max-model-len"
    )
    if "need" in said:
        summary = f"max-model-len {said['length']} needs {said['need']} GiB of KV cache, but only {said['have']} GiB is"
        summary, missing = f"{summary} available", float(said["need"]) - float(said["have"])
        hint = hint.replace("lower max-model-len", f"set max-model-len to {said['fits']}") if "fits" in said else hint
    else:
        summary, missing = "the model leaves no memory for the KV cache", None
        left = _last(r"Available KV cache memory: (-?[\d.]+) GiB", lines)
        if left is not None and left < 0:
            summary, missing = f"{summary}: the rest needs {-left} GiB more than is available", -left
    share, machine = _last(r"gpu[-_]memory[-_]utilization['\"]?[=: ]+([\d.]+)", lines), spark()
    if missing is not None and share is not None:
        larger = math.ceil((share + missing * GIB / machine.visible_bytes) * 100 + 1) / 100
        free = machine.visible_bytes * (1 - larger) - machine.system_bytes
        # A share of 0.90 after such a failure froze and rebooted a Spark (eugr/spark-vllm-docker#388).
        if free >= FREE_BYTES:
            return Cause(summary, f"{hint} in the playbook; or set gpu-memory-utilization to {larger:.2f}")
        hint += " in the playbook; a larger gpu-memory-utilization would leave less than 10 GB of the node"
        return Cause(summary, hint)
    return Cause(summary, f"{hint} in the playbook")


def _last(pattern: str, lines: Sequence[str]) -> float | None:
    """The number in the last of ``lines`` that matches ``pattern``."""
    found = (match for line in reversed(lines) if (match := re.search(pattern, line)))
    return next((float(match[1]) for match in found if re.fullmatch(r"-?\d+(?:\.\d+)?", match[1])), None)


_FILE = Path(__file__).with_name("log.toml")
_OWN = signatures(_FILE, memory_hint=ENGINE.memory_hint, more={each.__name__: each for each in (argument, kv_cache)})
_ROOTS = [each for each in _OWN if not (each.consequence or each.by_peer)]
SIGNATURES = tuple(
    sorted(
        (*_ROOTS, *common(ENGINE.memory_hint), *(each for each in _OWN if each not in _ROOTS)),
        key=lambda each: (each.consequence, each.by_peer),
    )
)
EAGER, *SCALES = signatures(_FILE, "running")
"""The engine continues to serve after these."""

PHASES = tuple(Step(**row) for row in rows(_FILE, "phases"))
(FOOTPRINT,) = (re.compile(row["pattern"]) for row in rows(_FILE, "footprint"))
CULPRITS = tuple(re.compile(row["pattern"]) for row in rows(_FILE, "culprits"))

EXPERTS = r"Using '?(?P<name>[A-Za-z0-9_ ]+?)'? (?P<kind>\w+) MoE backend"
"""The line in which vLLM names the kernel of the experts (vllm-project/vllm#31085)."""
