"""The KV cache of DeepSeek V4: blocks that contain pages of several sizes.

Read in vLLM 0.32.0 and, for differences, in 0.26.0 to 0.29.0: ``vllm/models/deepseek_v4/attention.py`` and
``compressor.py``, ``vllm/v1/attention/backends/mla/sparse_swa.py``, ``_get_packed_kv_cache_groups`` in
``vllm/v1/core/kv_cache_utils.py``. On SM12x entries have vLLM's format fp8_ds_mla, regardless of --kv-cache-dtype.
Compared with public logs in docs/fit.md.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from sparkcluster.errors import UsageError
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.layers import Compressed, Page, PageGroup, ceil, split

BLOCK, WINDOW_BLOCK = 256, 64
# Entries per block of the compressor's state, by tokens per entry.
STATE_BLOCK = {4: 4, 128: 8}
HEAD_DIM, ROPE_DIM = 512, 64
ENTRY_BYTES = HEAD_DIM - ROPE_DIM + 2 * ROPE_DIM + 8
ALIGNED_BYTES = 576
SELECTED_BYTES = 656
"""Bytes per token of DeepSeek V3.2 and GLM-5: 512 8-bit numbers, four scales, and 64 16-bit numbers."""


def index_bytes(width: int) -> int:
    """Bytes of one token's indexer key: 8-bit numbers, and a scale per 128 numbers."""
    return width + width // 128 * 4


def pages(cache: Compressed, block: int) -> list[Page]:
    """The pages of one layer; ``block`` is the number of tokens per block.

    Raises:
        UsageError: entries of another size than in published models.
    """
    if (cache.head_dim, cache.rope_dim) != (HEAD_DIM, ROPE_DIM):
        raise UsageError(
            f"unsupported head_dim {cache.head_dim} with qk_rope_head_dim {cache.rope_dim}",
            hint=f"DeepSeek V4 has {HEAD_DIM} and {ROPE_DIM}",
        )
    found = [_page("sliding", WINDOW_BLOCK, WINDOW_BLOCK * ENTRY_BYTES, cache.window)]
    widths = []
    if cache.ratio:
        found.append(_page("full", block, block // cache.ratio * ENTRY_BYTES))
        widths.append(cache.head_dim)
    if cache.index_dim:
        found.append(_page("full", block, block // cache.ratio * index_bytes(cache.index_dim)))
        widths.append(cache.index_dim)
    overlapping = 2 if cache.ratio == 4 else 1
    for width in widths:  # uncompressed tokens: 32-bit keys and scores
        rows = STATE_BLOCK[cache.ratio]
        found.append(_page("sliding", rows, rows * 2 * overlapping * width * 4, overlapping * cache.ratio))
    return found


def _page(kind: str, block: int, size: int, reach: int = 0) -> Page:
    aligned = ceil(size, ALIGNED_BYTES) * ALIGNED_BYTES
    return Page("full" if kind == "full" else "sliding", block, aligned, reach=reach)


def groups(found: Sequence[Page], *, padded: bool) -> list[PageGroup]:
    """Groups of pages that share a block table, full pages first.

    Up to 0.26, window pages are ``padded`` to the size of a full page.
    """
    buckets: dict[tuple[bool, int, int], PageGroup] = {}
    for page in found:
        buckets.setdefault((page.kind == "sliding", page.block, page.reach), Counter())[page] += 1
    ordered = [buckets[key] for key in sorted(buckets, key=lambda key: key[0])]
    if padded:
        sizes = sorted(page.size_bytes for page in ordered[0])
        ordered = [ordered[0], *(_padded(bucket, sizes) for bucket in ordered[1:])]
    even = [bucket for bucket in ordered if len(set(bucket.values())) == 1]
    mixed = [max(bucket.values()) for bucket in even if len(bucket) > 1]
    repeats = _least_padding([max(bucket.values()) for bucket in even], max(mixed, default=1))
    return [group for bucket in ordered for group in (split(bucket, repeats) if bucket in even else [bucket])]


def _padded(bucket: PageGroup, sizes: Sequence[int]) -> PageGroup:
    made: PageGroup = Counter()
    for page, count in bucket.items():
        larger = next((size for size in sizes if size >= page.size_bytes), page.size_bytes)
        made[dataclasses.replace(page, size_bytes=larger)] += count
    return made


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size, at least ``least``, with the fewest padding layers; the largest on a tie."""
    choices = range(least, max(*counts, least) + 1)
    return min(choices, key=lambda size: (sum(-count % size for count in counts), -size))


def side_by_side(found: Sequence[PageGroup], engine: EngineSettings, mode: str) -> tuple[int, int]:
    """Bytes of a block with room for all groups in each page size, and blocks per request; up to 0.26.

    A request's blocks are its bytes divided by the block bytes of the first group.
    """
    room: Counter[int] = Counter()
    needed = 0
    for group in found:
        slots: Counter[int] = Counter()
        for page, count in group.items():
            slots[page.size_bytes] += ceil(count, engine.stages)
        room |= slots
        needed += max(page.blocks(engine, mode) for page in group) * _bytes(group)
    return sum(size * count for size, count in room.items()), ceil(needed, _bytes(found[0]))


def _bytes(group: PageGroup) -> int:
    return sum(page.size_bytes * count for page, count in group.items())
