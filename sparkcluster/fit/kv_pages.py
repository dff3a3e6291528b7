"""How the engine is started, and one block of one layer of its KV cache: what ``kv.py`` computes with."""

from __future__ import annotations

import dataclasses
from typing import Literal

from sparkcluster.fit import defaults
from sparkcluster.fit.defaults import Version


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
    sequences: int = defaults.SEQUENCES
    batched_tokens: int = defaults.BATCHED_TOKENS
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

    def has(self, change: defaults.Change) -> bool:
        """Whether this version has ``change``."""
        return defaults.has(self.version, change)

    @property
    def in_flight(self) -> int:
        """Tokens that are scheduled and not yet settled."""
        twice = self.async_scheduling and self.device == "gpu" and self.has("two batches in flight")
        return self.batched_tokens * (self.stages + 1 if twice else self.stages)


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """One block of one layer.

    Attributes:
        kind: what the layer is to the bookkeeping.
        reach: tokens of the window or chunk; 0 where there is none.
        block: tokens of a block; for a state, of its checkpoint interval.
        size_bytes: of the block.
        checkpoint: further blocks that a state keeps of prefill.
    """

    kind: Literal["full", "sliding", "chunked", "state"]
    block: int
    size_bytes: int
    reach: int = 0
    checkpoint: int = 0

    def blocks(self, engine: Engine, mode: str) -> int:
        """Blocks that one request of full context holds."""
        if self.kind == "full":
            return ceil(engine.context, self.block)
        if self.kind == "sliding":
            return ceil(min(self.reach - 1 + engine.in_flight, engine.context), self.block) + 1
        if self.kind == "chunked":
            return ceil(min(self.reach + engine.in_flight, engine.context), self.block)
        if mode == "all":
            return ceil(engine.context, self.block) + engine.drafted
        return (2 + self.checkpoint if mode == "align" else 1) + engine.drafted


def ceil(number: int, by: int) -> int:
    """``number`` over ``by``, rounded up."""
    return -(-number // by)
