"""Caches of a layer (keys and values, a latent, or a state of fixed size), and their blocks."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Literal

from sparkcluster.fit.defaults import EngineSettings

StateKind = Literal["mamba1", "mamba2", "delta", "convolution"]


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of one layer.

    Attributes:
        kv_heads: KV heads of the model; a rank has its share, at least one.
        head_dim: width of keys.
        value_dim: width of values.
        window: tokens of the sliding window; None without a window.
        chunk: tokens per chunk of chunked attention; None without chunks.
        index_dim: width of the key that selects tokens to attend to; 0 if it attends to all.
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    chunk: int | None = None
    index_dim: int = 0

    def numbers_per_token(self, ranks: int) -> int:
        """Numbers per token on one of ``ranks``; fewer heads than ranks are replicated."""
        return max(1, self.kv_heads // ranks) * (self.head_dim + self.value_dim)


@dataclasses.dataclass(frozen=True, slots=True)
class Latent:
    """Compressed keys and values of multi-head latent attention (MLA), replicated on every rank.

    Attributes:
        sparse: whether it attends only to selected tokens (DeepSeek sparse attention).
        index_dim: width of the key that selects them; 0 in layers that reuse another selection.
    """

    rank: int
    rope_dim: int
    sparse: bool = False
    index_dim: int = 0

    def numbers_per_token(self, ranks: int) -> int:
        """Numbers per token on one of ``ranks``."""
        del ranks
        return self.rank + self.rope_dim


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """The state of a Mamba, gated-delta-net or short-convolution layer, independent of the context length.

    Attributes:
        width: inner size of the layer: convolution channels without groups and keys.
        kernel: taps of the convolution; the state has one fewer.
        heads: heads of the recurrent state.
        head_dim: rows of one head's state.
        state_size: columns of one head's state.
        groups: groups of B and C of Mamba-2, or key heads of a delta net.
        chunk: tokens per chunk of Mamba-2's kernels.
    """

    kind: StateKind
    width: int
    kernel: int
    heads: int = 1
    head_dim: int = 1
    state_size: int = 1
    groups: int = 0
    chunk: int = 256

    def convolution_numbers(self, ranks: int, speculative: int) -> int:
        """Numbers of the convolution state on one of ``ranks``, with room for ``speculative`` drafted tokens."""
        taps = self.kernel - 1
        if self.kind not in {"mamba2", "delta"}:
            return self.width // ranks * taps
        replicated = self.kind == "mamba2" and self.groups % ranks
        groups = ranks if replicated else self.groups
        return (self.width + 2 * groups * self.state_size) // ranks * (taps + speculative)

    def recurrent_numbers(self, ranks: int) -> int:
        """Numbers of the recurrent state on one of ``ranks``."""
        if self.kind == "convolution":
            return 0
        if self.kind == "mamba1":
            return self.width // ranks * self.state_size
        return self.heads // ranks * self.head_dim * self.state_size


@dataclasses.dataclass(frozen=True, slots=True)
class Compressed:
    """Cache of a DeepSeek V4 layer: its last tokens, and one entry per ``ratio`` tokens, replicated on every rank.

    Attributes:
        head_dim: width of an entry.
        rope_dim: part of this width with a position.
        window: last tokens, which are kept uncompressed.
        ratio: tokens per entry; 0 if only the window is kept.
        index_dim: width of the key that selects entries; 0 if it attends to all.
    """

    head_dim: int
    rope_dim: int
    window: int
    ratio: int = 0
    index_dim: int = 0


Cache = Attention | Latent | State | Compressed


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A block of one layer.

    Attributes:
        kind: kind of cache for the engine's accounting.
        reach: tokens of the window or chunk; 0 without either.
        block: tokens per block; for a state, its checkpoint interval.
        size_bytes: size of the block.
        checkpoint: additional blocks of a state for prefill.
    """

    kind: Literal["full", "sliding", "chunked", "state"]
    block: int
    size_bytes: int
    reach: int = 0
    checkpoint: int = 0

    def blocks(self, engine: EngineSettings, mode: str) -> int:
        """Blocks of one request of full context."""
        if self.kind == "full":
            return ceil(engine.context, self.block)
        if self.kind == "sliding":
            return ceil(min(self.reach - 1 + engine.in_flight, engine.context), self.block) + 1
        if self.kind == "chunked":
            return ceil(min(self.reach + engine.in_flight, engine.context), self.block)
        if mode == "all":
            return ceil(engine.context, self.block) + engine.drafted
        return (2 + self.checkpoint if mode == "align" else 1) + engine.drafted


PageGroup = Counter[Page]
"""Layers that share a block table: the number of layers per page."""


def split(group: PageGroup, size: int) -> list[PageGroup]:
    """Split ``group``, whose pages have equal counts, into groups with at most ``size`` of each page."""
    count = max(group.values())
    number = ceil(count, size)
    return [Counter(dict.fromkeys(group, len(range(at, count, number)))) for at in range(number)]


def ceil(number: int, by: int) -> int:
    """``number`` over ``by``, rounded up."""
    return -(-number // by)
