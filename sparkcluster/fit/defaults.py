"""How vLLM is started, its defaults and behaviour by version: the one table of what changed, and when.

Read in the Python source of the releases 0.11.1 to 0.32.0: ``vllm/config/cache.py``, ``vllm/envs.py``,
``vllm/engine/arg_utils.py`` and those that ``kv.py`` names.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Version = tuple[int, ...]

# The oldest release that has each change. Utilization and profiling: https://github.com/vllm-project/vllm/pull/38284,
# which was announced for 0.21, as the engine still logs, and shipped with 0.20.0.
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
"""The newest release that was read; what comes after it is computed as this one."""

BATCHED_TOKENS = 8192
"""--max-num-batched-tokens of `vllm serve` where the device has 70 GiB or more, and is no A100; in all releases."""
SEQUENCES = 1024
"""--max-num-seqs for the same devices."""


def has(version: Version, change: str) -> bool:
    """Whether ``version`` has ``change``."""
    return version >= SINCE[change]


def utilization(version: Version) -> float:
    """--gpu-memory-utilization where it is not set."""
    return 0.92 if has(version, "utilization is 0.92") else 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """How the engine is started, as far as its KV cache is concerned.

    Attributes:
        version: of the engine.
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
        prefix_caching: None for its default.
        drafted: tokens that speculative decoding proposes at once; 0 without it.
        mtp_drafts: whether the model's own multi-token-prediction layers draft.
        falls_back: whether experts of four bits run on kernels that fail on SM121 and fall back.
        largest_graph: --max-cudagraph-capture-size; None for the engine's own choice.
        profiles_graphs: whether it estimates the memory of CUDA graphs, if its version can.
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
        """Tokens that are scheduled and not yet settled."""
        twice = self.async_scheduling and self.device == "gpu" and self.has("two batches in flight")
        return self.batched_tokens * (self.stages + 1 if twice else self.stages)
