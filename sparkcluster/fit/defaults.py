"""vLLM's settings, defaults and changes between versions that matter for memory.

Read in the Python source of the releases 0.11.1 to 0.32.0: ``vllm/config/cache.py``, ``vllm/envs.py``,
``vllm/engine/arg_utils.py`` and the files named in ``kv.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Version = tuple[int, ...]

# First release with each change. Utilization and profiling: https://github.com/vllm-project/vllm/pull/38284, announced
# for 0.21 (also in the engine's log) but shipped with 0.20.0.
SINCE: dict[str, Version] = {
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
"""Newest release that was read; later releases are treated like it."""

BATCHED_TOKENS = 8192
"""Default --max-num-batched-tokens of `vllm serve` on devices with 70 GiB or more, except A100; in all releases."""
SEQUENCES = 1024
"""Default --max-num-seqs on the same devices."""


def has(version: Version, change: str) -> bool:
    """Whether ``version`` has ``change``."""
    return version >= SINCE[change]


def utilization(version: Version) -> float:
    """Default --gpu-memory-utilization."""
    return 0.92 if has(version, "utilization is 0.92") else 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the engine that affect its memory.

    Attributes:
        version: engine version.
        ranks: tensor parallel size.
        stages: pipeline parallel size.
        context: --max-model-len.
        sequences: --max-num-seqs.
        batched_tokens: --max-num-batched-tokens.
        block_size: --block-size; None for the engine's own choice.
        kv_dtype: --kv-cache-dtype.
        dtype: --dtype.
        state_dtype: --mamba-ssm-cache-dtype.
        convolution_dtype: --mamba-cache-dtype.
        prefix_caching: None for the default of its version.
        drafted: tokens that speculative decoding proposes per step; 0 without it.
        mtp_drafts: whether the model's multi-token-prediction layers draft.
        falls_back: whether 4-bit experts first try kernels that fail on SM121.
        largest_graph: --max-cudagraph-capture-size; None for the engine's own choice.
        profiles_graphs: whether it estimates the memory of CUDA graphs, if its version supports that.
        loader: --load-format.
    """

    context: int
    version: Version
    device: Literal["gpu", "cpu"] = "gpu"
    ranks: int = 1
    stages: int = 1
    sequences: int = SEQUENCES
    batched_tokens: int = BATCHED_TOKENS
    block_size: int | None = None
    kv_dtype: str = "auto"
    dtype: str = "auto"
    state_dtype: str = "auto"
    convolution_dtype: str = "auto"
    prefix_caching: bool | None = None
    async_scheduling: bool = True
    drafted: int = 0
    mtp_drafts: bool = False
    eager: bool = False
    falls_back: bool = False
    largest_graph: int | None = None
    profiles_graphs: bool = True
    loader: str = "auto"

    def has(self, change: str) -> bool:
        """Whether this version has ``change``."""
        return has(self.version, change)

    @property
    def in_flight(self) -> int:
        """Tokens of batches in flight."""
        twice = self.async_scheduling and self.device == "gpu" and self.has("two batches in flight")
        return self.batched_tokens * (self.stages + 1 if twice else self.stages)
