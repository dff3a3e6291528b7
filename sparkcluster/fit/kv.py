"""vLLM's KV cache: blocks, groups of layers that share them, and the two figures that vLLM logs.

Read in vLLM 0.32.0 (``vllm/v1/core/kv_cache_utils.py``: get_kv_cache_groups, unify_kv_cache_spec_page_size,
_get_kv_cache_groups_uniform_page_size, get_max_concurrency_for_kv_cache_config; ``vllm/v1/kv_cache_interface.py``:
max_memory_usage_bytes of each spec; ``vllm/platforms/interface.py``: _align_hybrid_block_size) and, for differences, in
0.17.1 to 0.29.0; ``defaults.SINCE`` lists the changes. The shapes in ``layers.py`` are from the same release:
``vllm/model_executor/layers/mamba/mamba_utils.py`` (MambaStateShapeCalculator), get_num_kv_heads and
get_kv_cache_quant_algo_string of ``ModelConfig``, ``vllm/model_executor/models/config.py`` for the dtype of states, and
``vllm/config/speculative.py`` for draft layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from sparkcluster.errors import UsageError
from sparkcluster.fit import kv_packed
from sparkcluster.fit.config import DTYPE_BYTES, ModelConfig
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.layers import Attention, Cache, Compressed, Latent, Page, PageGroup, State, ceil, split

# Kernel block sizes and default block size: CPU_ATTN 32 and 128, CPU_MLA 16; FlashAttention, FlashInfer and Triton 16.
KERNEL_BLOCK = {"gpu": 16, "cpu": 32}
DEFAULT_BLOCK = {"gpu": 16, "cpu": 128}
LATENT_BLOCK = {"gpu": 64, "cpu": 16}
LATENT_HYBRID_BLOCK = 128
# NVFP4 has half a byte per number, and one byte of scale per 16 numbers.
KV_BYTES = {
    **DTYPE_BYTES,
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), 1),
    **dict.fromkeys(("nvfp4", "nvfp4_4over6"), 9 / 16),
}
# dtypes of sparse attention on SM12x; all use the format in ``kv_packed``.
PACKED_BYTES = dict.fromkeys(("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"), 1)
INDEXED_BLOCK = 128
"""Only block size of MiniMax M3 (vllm/models/minimax_m3/common/indexer.py)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The KV cache of one rank: a pool of blocks shared by all groups.

    Attributes:
        groups: page and number of layers of each group.
        block_bytes: size of a block on one rank.
        request_blocks: blocks of one request of full context.
    """

    engine: EngineSettings
    groups: tuple[tuple[Page, int], ...]
    block_bytes: int
    request_blocks: int

    @property
    def request_bytes(self) -> int:
        """Bytes of one request of full context on one rank."""
        return self.request_blocks * self.block_bytes

    def bytes_for(self, requests: int) -> int:
        """The smallest pool for ``requests`` requests of full context; vLLM starts with a pool for one."""
        return (requests * self.request_blocks + int(self.engine.has("one block is held back"))) * self.block_bytes

    def concurrency(self, pool_bytes: int) -> float:
        """``Maximum concurrency`` as logged by vLLM: requests of full context."""
        return max(0, pool_bytes // self.block_bytes) / self.request_blocks

    def tokens(self, pool_bytes: int) -> int:
        """``GPU KV cache size`` as logged by vLLM.

        This is concurrency times context. Before 0.21 it was blocks per group times tokens per block, which is too low
        if windows or states need fewer blocks than full attention.
        """
        if self.engine.has("size is concurrency times context"):
            return int(self.concurrency(pool_bytes) * self.engine.context)
        return max(0, pool_bytes // self.block_bytes) // len(self.groups) * min(page.block for page, _ in self.groups)

    @property
    def token_bytes(self) -> float:
        """Bytes of the pool on one rank per token of ``tokens``."""
        pool = 100_000 * self.block_bytes
        return pool / max(1, self.tokens(pool))


def layout(config: ModelConfig, engine: EngineSettings) -> Layout:
    """The KV cache of ``engine`` for a model.

    Raises:
        UsageError: unknown dtype, or a parallel size that does not divide the model.
    """
    _divides(config, engine)
    mode = _state_mode(config, engine)
    caches = [*config.caches, *(config.drafts if engine.mtp_drafts else ())]
    pages = _pages(caches, config, engine, mode)
    packed = any(isinstance(cache, Compressed) for cache in caches)
    overlap = engine.has("groups of different pages overlap")
    groups = kv_packed.groups(pages, padded=not overlap) if packed else _groups(pages, engine)
    sizes = [[ceil(count, engine.stages) * page.size_bytes for page, count in group.items()] for group in groups]
    block_bytes = max(map(sum, sizes))
    requests = sum(max(page.blocks(engine, mode) for page in group) for group in groups)
    if packed and not overlap:
        block_bytes, requests = kv_packed.side_by_side(groups, engine, mode)
    counted = tuple((next(iter(group)), group.total()) for group in groups)
    return Layout(engine, counted, block_bytes, requests)


def _supported(dtype: str, known: Mapping[str, float], what: str) -> str:
    """``dtype`` if it is in ``known``; otherwise raises UsageError."""
    if dtype not in known:
        raise UsageError(f"unsupported {what}: {dtype[:40]}", hint=f"use one of {', '.join(known)}")
    return dtype


def _model_dtype(config: ModelConfig, engine: EngineSettings) -> str:
    """Dtype of activations; float32 becomes bfloat16 unless requested."""
    named = {"half": "float16", "float": "float32"}.get(engine.dtype, engine.dtype)
    if named == "auto":
        return "bfloat16" if config.dtype in {"float32", "float8_e4m3fn", "float8_e5m2"} else config.dtype
    return _supported(named, DTYPE_BYTES, "dtype")


def _state_mode(config: ModelConfig, engine: EngineSettings) -> str:
    """How states are cached for prefixes: not at all (none), at the last block end (align), or at every one (all)."""
    caching = engine.prefix_caching
    if caching is None:
        caching = engine.has("hybrid models cache prefixes")
    if not caching or not any(isinstance(cache, State) for cache in config.caches):
        return "none"
    everywhere = any(isinstance(cache, State) and cache.kind == "mamba2" for cache in config.caches)
    old = not engine.has("states are cached at block ends alone")
    return "all" if old and everywhere else "align"


def _divides(config: ModelConfig, engine: EngineSettings) -> None:
    ranks, heads = engine.ranks, config.kv_heads
    states = [cache for cache in config.caches if isinstance(cache, State) and cache.kind in {"mamba2", "delta"}]
    uneven = [
        *([f"{config.shape.heads} attention heads"] if config.shape.heads % ranks else []),
        *([f"{heads} KV heads"] if heads is not None and heads % ranks and ranks % heads else []),
        *(f"{cache.heads} state heads" for cache in states if cache.heads % ranks),
    ]
    if uneven:
        also = " or a multiple" if "KV" in uneven[0] else ""
        raise UsageError(
            f"{uneven[0]} of {config.name} cannot be divided among {ranks} ranks",
            hint=f"use a divisor{also}: as tensor_parallel, and as the number of Sparks in a group",
        )


def _pages(caches: Sequence[Cache], config: ModelConfig, engine: EngineSettings, mode: str) -> list[Page]:
    model = _model_dtype(config, engine)
    kv_dtype = engine.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = config.quantization.kv_dtype or "auto"
    if any(isinstance(cache, Compressed) or (isinstance(cache, Latent) and cache.sparse) for cache in caches):
        _supported(kv_dtype, PACKED_BYTES, "KV cache dtype of sparse attention")
        kv_dtype = "fp8"
    number_size = KV_BYTES[_supported(model if kv_dtype == "auto" else kv_dtype, KV_BYTES, "KV cache dtype")]
    first = next((cache for cache in caches if isinstance(cache, (Attention, Latent))), None)
    token = math.floor(first.numbers_per_token(engine.ranks) * number_size) if first is not None else 0
    states = [_state_bytes(cache, config, engine, model) for cache in caches if isinstance(cache, State)]
    block = _block(engine, caches, token=token, state=max(states, default=0), mode=mode)
    pages: list[Page] = []
    for cache in caches:
        if isinstance(cache, State):
            size = max(_state_bytes(cache, config, engine, model), block * token)
            interval = engine.context if mode == "none" else block
            kept = cache.kind == "mamba2" and engine.has("Mamba-2 keeps a checkpoint of prefill")
            pages.append(Page("state", interval, size, checkpoint=int(kept)))
        elif isinstance(cache, Compressed):
            pages += kv_packed.pages(cache, block)
        else:
            size = math.floor(cache.numbers_per_token(engine.ranks) * number_size)
            if isinstance(cache, Latent) and cache.sparse:
                size = kv_packed.SELECTED_BYTES
            pages.append(_attention_page(cache, block, size, engine))
            if cache.index_dim:  # eight bits and scales, or the 16 bits of MiniMax M3
                latent = isinstance(cache, Latent)
                index = kv_packed.index_bytes(cache.index_dim) if latent else 2 * cache.index_dim
                pages.append(Page("full", block, block * index))
    return pages


def _attention_page(cache: Attention | Latent, block: int, token: int, engine: EngineSettings) -> Page:
    if isinstance(cache, Attention) and cache.window is not None:
        unit = KERNEL_BLOCK[engine.device]
        whole = max(unit, block // unit * unit)
        return Page("sliding", whole, whole * token, reach=cache.window)
    if isinstance(cache, Attention) and cache.chunk is not None:
        return Page("chunked", block, block * token, reach=cache.chunk)
    return Page("full", block, block * token)


def _block(engine: EngineSettings, caches: Sequence[Cache], *, token: int, state: int, mode: str) -> int:
    """Tokens per block; for hybrid models, enough that a block of keys and values is at least as large as a state."""
    latent = any(isinstance(cache, Latent) for cache in caches)
    block = engine.block_size or (LATENT_BLOCK if latent else DEFAULT_BLOCK)[engine.device]
    if any(isinstance(cache, Compressed) for cache in caches):
        return max(block, kv_packed.BLOCK)
    if any(isinstance(cache, Attention) and cache.index_dim for cache in caches):
        return max(block, INDEXED_BLOCK)
    if latent and engine.device == "cpu":
        block = LATENT_BLOCK["cpu"]
    if not state or not token:
        return block
    unit = max(KERNEL_BLOCK[engine.device], block, LATENT_HYBRID_BLOCK if latent else 1)
    if mode == "all":
        chunk = max((state.chunk for state in caches if isinstance(state, State)), default=256)
        unit = math.lcm(chunk, KERNEL_BLOCK[engine.device])
    return max(block, unit * ceil(state, unit * token))


def _state_bytes(state: State, config: ModelConfig, engine: EngineSettings, model: str) -> int:
    first = model if engine.convolution_dtype == "auto" else engine.convolution_dtype
    named = config.state_dtype if engine.state_dtype == "auto" else engine.state_dtype
    second = first if named in {None, "auto"} else str(named)
    convolution, recurrent = (DTYPE_BYTES[_supported(each, DTYPE_BYTES, "state dtype")] for each in (first, second))
    return (
        state.convolution_numbers(engine.ranks, engine.drafted) * convolution
        + state.recurrent_numbers(engine.ranks) * recurrent
    )


def _groups(pages: Sequence[Page], engine: EngineSettings) -> list[PageGroup]:
    """Groups of layers that share a block table."""
    kinds = {(page.kind, page.reach, page.block) for page in pages}
    if len(kinds) == 1 and (pages[0].kind != "state" or len(set(pages)) == 1):
        return [Counter(pages)]
    largest = max(page.size_bytes for page in pages)
    counts = Counter(_unified(page, largest) for page in pages)
    size = min(counts.values())
    wide = 1.5 if engine.has("wide groups up to half as large again") else 1.25
    if max(counts.values()) < size * wide:
        size = max(counts.values())
    return [group for page, count in counts.items() for group in split(Counter({page: count}), size)]


def _unified(page: Page, largest: int) -> Page:
    if page.kind != "state" and largest % page.size_bytes == 0:
        return dataclasses.replace(page, block=page.block * (largest // page.size_bytes), size_bytes=largest)
    return dataclasses.replace(page, size_bytes=largest)
