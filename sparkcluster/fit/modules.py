"""The weight matrices of a model from its config.json: names, shapes and counts.

Names are those of checkpoints without the prefix (``model.``, ``backbone.``), since quantization_config refers to them.
Shapes follow transformers' modeling files. Norms, biases and convolutions are omitted; they are less than a thousandth
of any model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkcluster.fit import family_layers
from sparkcluster.fit.family_layers import Shape
from sparkcluster.fit.layers import Attention, Cache, Compressed, Latent, State
from sparkcluster.fit.read import Document

if TYPE_CHECKING:
    from sparkcluster.fit.config import ModelConfig

_GATED = ("qwen3_next", "qwen3_5")
_TWO_MATRICES = ("nemotron",)


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """A weight matrix.

    Attributes:
        name: name in the checkpoint; for experts, of the first.
        rows: outputs.
        columns: inputs.
        count: number of equal matrices, such as experts of a layer.
    """

    name: str
    rows: int
    columns: int
    count: int = 1


def modules(config: ModelConfig) -> Iterator[Module]:
    """Every matrix of the model; draft layers are named ``mtp`` or numbered as further layers.

    Raises:
        UsageError: invalid sizes.
    """
    shape, text = config.shape, config.text
    yield Module("embed_tokens", config.vocabulary, shape.hidden)
    if not config.tied:
        yield Module("lm_head", config.vocabulary, shape.hidden)
    yield from _vision(config.top, shape.hidden)
    each_input = text.number("hidden_size_per_layer_input", default=0, least=0, most=1 << 16)
    if each_input:  # Gemma's small models have an embedding per layer
        table = text.number("vocab_size_per_layer_input", default=config.vocabulary, most=1 << 24)
        yield Module("embed_tokens_per_layer", table, shape.layers * each_input)
    for at, layer in enumerate(config.layers):
        for cache in layer.caches:
            yield from _mixer(f"layers.{at}.", cache, config)
        yield from _feed_forward(f"layers.{at}.", at, layer.kind, config)
    # DeepSeek V3 and GLM number their draft layers after the others.
    numbered = text.has("num_nextn_predict_layers") and not family_layers.is_compressed(text)
    for at, cache in enumerate(config.drafts):
        name = f"layers.{shape.layers + at}." if numbered else f"mtp.layers.{at}."
        yield Module(f"{name}fc", shape.hidden, 2 * shape.hidden)
        yield from _mixer(name, cache, config)
        kind = "E" if _is_nemotron(shape) else "full_attention"
        yield from _feed_forward(name, shape.layers - 1, kind, config)


def _mixer(at: str, cache: Cache, config: ModelConfig) -> Iterator[Module]:
    """Matrices of attention or a state."""
    text, shape = config.text, config.shape
    hidden, heads = shape.hidden, shape.heads
    if isinstance(cache, Latent):
        yield from _latent(f"{at}self_attn.", cache, text, shape)
    elif isinstance(cache, Compressed):
        yield from _compressed(f"{at}attn.", cache, text, shape)
    elif isinstance(cache, Attention):
        name = f"{at}mixer." if _is_nemotron(shape) else f"{at}self_attn."
        gated = text.flag("attn_output_gate", default=shape.model_type.startswith(_GATED))
        yield Module(f"{name}q_proj", heads * cache.head_dim * (2 if gated else 1), hidden)
        yield Module(f"{name}k_proj", cache.kv_heads * cache.head_dim, hidden)
        same = text.flag("attention_k_eq_v", default=False) and cache.window is None
        if not same:
            yield Module(f"{name}v_proj", cache.kv_heads * cache.value_dim, hidden)
        yield Module(f"{name}o_proj", hidden, heads * cache.value_dim)
        if cache.index_dim:
            yield Module(f"{name}index_q_proj", cache.kv_heads * cache.index_dim, hidden)
            yield Module(f"{name}index_k_proj", cache.index_dim, hidden)
    elif cache.kind == "delta":
        keys, values = cache.groups * cache.state_size, cache.width
        name = f"{at}linear_attn."
        if shape.model_type == "qwen3_next":
            yield Module(f"{name}in_proj_qkvz", 2 * keys + 2 * values, hidden)
            yield Module(f"{name}in_proj_ba", 2 * cache.heads, hidden)
        else:
            yield Module(f"{name}in_proj_qkv", 2 * keys + values, hidden)
            yield Module(f"{name}in_proj_z", values, hidden)
            yield Module(f"{name}in_proj_b", cache.heads, hidden)
            yield Module(f"{name}in_proj_a", cache.heads, hidden)
        yield Module(f"{name}out_proj", hidden, values)
    else:
        yield from _state(f"{at}mixer." if _is_nemotron(shape) else f"{at}mamba.", cache, hidden)


def _state(name: str, state: State, hidden: int) -> Iterator[Module]:
    if state.kind == "mamba2":
        yield Module(f"{name}in_proj", 2 * state.width + 2 * state.groups * state.state_size + state.heads, hidden)
    elif state.kind == "mamba1":
        yield Module(f"{name}in_proj", 2 * state.width, hidden)
        yield Module(f"{name}x_proj", hidden // 16 + 2 * state.state_size, state.width)
    else:
        yield Module(f"{name}in_proj", 3 * state.width, hidden)
    yield Module(f"{name}out_proj", hidden, state.width)


def _latent(name: str, cache: Latent, text: Document, shape: Shape) -> Iterator[Module]:
    hidden, heads = shape.hidden, shape.heads
    without = text.number("qk_nope_head_dim", default=128, most=1 << 14)
    value = text.number("v_head_dim", default=without, most=1 << 14)
    query = heads * (without + cache.rope_dim)
    rank = text.number("q_lora_rank", default=0, least=0, most=1 << 16)
    if rank:
        yield Module(f"{name}q_a_proj", rank, hidden)
        yield Module(f"{name}q_b_proj", query, rank)
    else:
        yield Module(f"{name}q_proj", query, hidden)
    yield Module(f"{name}kv_a_proj_with_mqa", cache.rank + cache.rope_dim, hidden)
    yield Module(f"{name}kv_b_proj", heads * (without + value), cache.rank)
    yield Module(f"{name}o_proj", hidden, heads * value)
    if cache.index_dim:
        select = text.number("index_n_heads", most=4096)
        yield Module(f"{name}indexer.wq_b", select * cache.index_dim, rank or hidden)
        yield Module(f"{name}indexer.wk", cache.index_dim, hidden)
        yield Module(f"{name}indexer.weights_proj", select, hidden)


def _compressed(name: str, cache: Compressed, text: Document, shape: Shape) -> Iterator[Module]:
    """DeepSeek V4: see ``kv_packed``."""
    hidden, heads = shape.hidden, shape.heads
    rank, groups = text.number("q_lora_rank", most=1 << 16), text.number("o_groups", most=4096)
    grouped = groups * text.number("o_lora_rank", most=1 << 16)
    yield Module(f"{name}wq_a", rank, hidden)
    yield Module(f"{name}wq_b", heads * cache.head_dim, rank)
    yield Module(f"{name}wkv", cache.head_dim, hidden)
    yield Module(f"{name}wo_a", grouped, heads * cache.head_dim // groups)
    yield Module(f"{name}wo_b", hidden, grouped)
    twice = 2 if cache.ratio == 4 else 1  # entries overlap
    if cache.ratio:
        yield Module(f"{name}compressor.wkv", twice * cache.head_dim, hidden)
        yield Module(f"{name}compressor.wgate", twice * cache.head_dim, hidden)
    if cache.index_dim:
        select = text.number("index_n_heads", most=4096)
        yield Module(f"{name}indexer.wq_b", select * cache.index_dim, rank)
        yield Module(f"{name}indexer.weights_proj", select, hidden)
        yield Module(f"{name}indexer.compressor.wkv", twice * cache.index_dim, hidden)
        yield Module(f"{name}indexer.compressor.wgate", twice * cache.index_dim, hidden)


def _feed_forward(at: str, layer: int, kind: str, config: ModelConfig) -> Iterator[Module]:
    text, shape = config.text, config.shape
    nemotron, gemma = _is_nemotron(shape), shape.model_type.startswith("gemma4")
    if nemotron and kind not in family_layers.SILENT_WORDS:
        return
    name = f"{at}mixer." if nemotron else f"{at}ffn." if family_layers.is_compressed(text) else f"{at}mlp."
    experts = config.experts
    if experts is not None and not family_layers.is_mixed(text, shape, layer, kind):
        experts = None
    if experts is not None:
        block = f"{at}block_sparse_moe." if shape.model_type.startswith("minimax") else at if gemma else name
        latent = text.number("moe_latent_size", default=0, least=0, most=1 << 20)
        if latent:
            yield Module(f"{block}fc1_latent_proj", latent, shape.hidden)
            yield Module(f"{block}fc2_latent_proj", shape.hidden, latent)
        yield Module(f"{block}{'router' if gemma else 'gate'}", experts.count, shape.hidden)
        yield from _matrices(f"{block}experts.0.", latent or shape.hidden, experts.width, shape, experts.count)
        if experts.shared_width:
            shared = "shared_expert." if text.has("shared_expert_intermediate_size") else "shared_experts."
            yield from _matrices(f"{block}{shared}", shape.hidden, experts.shared_width, shape)
    if experts is None or gemma:  # Gemma 4 has both in each layer
        yield from _matrices(name, shape.hidden, config.widths[layer], shape)


def _matrices(name: str, hidden: int, width: int, shape: Shape, count: int = 1) -> Iterator[Module]:
    """The matrices of a feed-forward layer: three, or two without a gate."""
    up, down, gate = ("w3", "w2", "w1") if "block_sparse_moe.experts" in name else ("up_proj", "down_proj", "gate_proj")
    if not shape.model_type.startswith(_TWO_MATRICES):
        yield Module(f"{name}{gate}", width, hidden, count)
    yield Module(f"{name}{up}", width, hidden, count)
    yield Module(f"{name}{down}", hidden, width, count)


def _vision(top: Document, hidden: int) -> Iterator[Module]:
    """The vision tower, if it has a standard form, with one projection matrix into the language model."""
    vision = top.below("vision_config")
    if vision is None:
        return
    width = vision.number("hidden_size", "vt_hidden_size", "embed_dim", default=0, least=0, most=1 << 16)
    layers = vision.number("depth", "num_hidden_layers", "vt_num_hidden_layers", default=0, least=0, most=1024)
    wide = vision.number("intermediate_size", "vt_intermediate_size", default=4 * width, least=0, most=1 << 20)
    if width and layers:
        yield Module("visual.blocks.attn", 4 * width, width, layers)
        yield Module("visual.blocks.mlp", 2 * wide, width, layers)
        merged = width * vision.number("spatial_merge_size", default=1, most=64) ** 2
        yield Module("visual.merger", merged + hidden, merged)


def _is_nemotron(shape: Shape) -> bool:
    return shape.model_type.startswith("nemotron")
