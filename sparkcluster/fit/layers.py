"""What a layer remembers between tokens (keys and values, a latent, a state of fixed size), and one block of it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Literal

from sparkcluster.fit.defaults import Engine

StateKind = Literal["mamba1", "mamba2", "delta", "convolution"]


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of one layer.

    Attributes:
        kv_heads: of the whole model; a rank holds its share, and at least one.
        head_dim: of keys.
        value_dim: of values.
        window: tokens that a sliding window keeps; None for all.
        chunk: tokens of a chunk of chunked attention; None for none.
        index_dim: width of the key that selects which tokens it attends to; 0 where it attends to all.
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    chunk: int | None = None
    index_dim: int = 0

    def numbers_per_token(self, ranks: int) -> int:
        """Numbers kept of each token on one of ``ranks``; fewer heads than ranks are replicated."""
        return max(1, self.kv_heads // ranks) * (self.head_dim + self.value_dim)


@dataclasses.dataclass(frozen=True, slots=True)
class Latent:
    """The compressed keys and values of multi-head latent attention (MLA); every rank holds all of it.

    Attributes:
        sparse: whether it attends to selected tokens alone (DeepSeek sparse attention).
        index_dim: width of the key that selects them, in layers that select for themselves; 0 in all others.
    """

    rank: int
    rope_dim: int
    sparse: bool = False
    index_dim: int = 0

    def numbers_per_token(self, ranks: int) -> int:
        """Numbers kept of each token on one of ``ranks``."""
        del ranks
        return self.rank + self.rope_dim


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """The state of one Mamba, gated-delta-net or short-convolution layer: the same size however long the context.

    Attributes:
        width: channels of the convolution that are neither groups nor keys: the inner size of a Mamba layer.
        kernel: taps of the convolution; one fewer are remembered.
        heads: heads of the recurrent state.
        head_dim: rows of one head's state.
        state_size: columns of one head's state.
        groups: groups of B and C of Mamba-2, or key heads of a delta net.
        chunk: tokens that Mamba-2's kernels take at once.
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
        """Numbers of the convolution's state on one of ``ranks``, with room for ``speculative`` drafted tokens."""
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
    """What a layer of DeepSeek V4 keeps: its last tokens, and of all tokens one entry for each ``ratio``.

    Every rank holds all of it.

    Attributes:
        head_dim: of an entry.
        rope_dim: of these, those with a position.
        window: last tokens that are kept as they are.
        ratio: tokens of one entry; 0 where only the window is kept.
        index_dim: width of the key that selects entries; 0 where all of them are attended to.
    """

    head_dim: int
    rope_dim: int
    window: int
    ratio: int = 0
    index_dim: int = 0


Cache = Attention | Latent | State | Compressed


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


Group = Counter[Page]
"""Layers that share a table of blocks: how many have which page."""


def split(group: Group, size: int) -> list[Group]:
    """``group``, of whose pages there are equally many, as groups with at most ``size`` of each."""
    count = max(group.values())
    number = ceil(count, size)
    return [Counter(dict.fromkeys(group, len(range(at, count, number)))) for at in range(number)]


def ceil(number: int, by: int) -> int:
    """``number`` over ``by``, rounded up."""
    return -(-number // by)
