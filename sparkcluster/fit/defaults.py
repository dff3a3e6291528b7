"""vLLM's defaults and behaviour by version: the one table of what changed, and when.

Read in the Python source of the releases 0.11.1 to 0.32.0: ``vllm/config/cache.py``, ``vllm/envs.py``,
``vllm/engine/arg_utils.py`` and those that ``kv.py`` names.
"""

from __future__ import annotations

from typing import Literal

Version = tuple[int, ...]

Change = Literal[
    "wide groups up to half as large again",
    "FP4 experts run on kernels that SM121 has",
    "utilization is 0.92",
    "CUDA graphs are profiled",
    "size is concurrency times context",
    "two batches in flight",
    "groups of different pages overlap",
    "hybrid models cache prefixes",
    "states are cached at block ends alone",
    "Mamba-2 keeps a checkpoint of prefill",
    "one block is held back",
]

# The oldest release that has each change. Utilization and profiling: https://github.com/vllm-project/vllm/pull/38284,
# which was announced for 0.21, as the engine still logs, and shipped with 0.20.0.
SINCE: dict[Change, Version] = {
    "wide groups up to half as large again": (0, 18),
    "FP4 experts run on kernels that SM121 has": (0, 19),
    "utilization is 0.92": (0, 20),
    "CUDA graphs are profiled": (0, 20),
    "size is concurrency times context": (0, 21),
    "two batches in flight": (0, 26),
    "groups of different pages overlap": (0, 27),
    "hybrid models cache prefixes": (0, 28),
    "states are cached at block ends alone": (0, 28),
    "Mamba-2 keeps a checkpoint of prefill": (0, 29),
    "one block is held back": (0, 29),
}

NEWEST: Version = (0, 32, 0)
"""The newest release that was read; what comes after it is computed as this one."""

BATCHED_TOKENS = 8192
"""--max-num-batched-tokens of `vllm serve` where the device has 70 GiB or more, and is no A100; in all releases."""
SEQUENCES = 1024
"""--max-num-seqs for the same devices."""


def has(version: Version, change: Change) -> bool:
    """Whether ``version`` has ``change``."""
    return version >= SINCE[change]


def utilization(version: Version) -> float:
    """--gpu-memory-utilization where it is not set."""
    return 0.92 if has(version, "utilization is 0.92") else 0.9
