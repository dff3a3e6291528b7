"""What each layer of a family remembers, read from config.json as transformers 5 reads it.

A family that remembers in another way than those written here is refused by name: a made-up number is worse than none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from sparkcluster.errors import UsageError
from sparkcluster.fit.layers import Attention, Cache, Compressed, Latent, State
from sparkcluster.fit.read import Document

# ModelArchConfigConvertorBase.is_deepseek_mla, less those with a cache of another shape (UNKNOWN).
LATENT = {
    "axk1",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "kimi_k2",
    "longcat_flash",
    "pangu_ultra_moe",
}
# Those whose tokens are selected (DeepSeek sparse attention): one class of the engine serves all of them.
SPARSE = {"deepseek_v32", "glm_moe_dsa"}
INDEXED = "minimax_m3"
UNKNOWN = {
    "bailing_hybrid": "the states of its linear attention are not computed",
    "deepseek_v41": "its layers that reuse the keys of others, and its lookup tables (Engram), are not computed",
    "dots3_note": "the keys that its sparse attention selects by are not computed",
    "glm5_next": "the states of its delta attention, and its pooled keys, are not computed",
    "hy_v4": "the keys that its sparse attention selects by are not computed",
    "kimi_k3": "the states of its delta attention (KDA) are not computed",
    "kimi_linear": "the states of its delta attention (KDA) are not computed",
    "minimax": "the states of its lightning attention are not computed",
    "nemotron-nas": "its layers differ in what config.json calls block_configs, which is not read",
    "qwen4_exp": "its compressed keys (QSA) and lookup tables (PLE) are not computed",
    "zamba2": "its shared attention layers are not computed",
}
"""Families whose memory is not computed, and what is missing."""
PURE_STATES = {"mamba", "falcon_mamba", "mamba2"}
ATTENTION_WORDS = {"full_attention", "attention", "*"}
SILENT_WORDS = {"mlp", "moe", "-", "E", "O"}
STATE_WORDS = {"mamba", "mamba2", "linear_attention", "conv", "M"}
BOTH = "both"
"""A layer with a state and with attention."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What every family has."""

    model_type: str
    layers: int
    heads: int
    hidden: int
    head_dim: int


def caches(text: Document, shape: Shape) -> list[Cache]:
    """What each layer remembers, in order; layers without memory are left out.

    Raises:
        UsageError: the family, or a kind of layer, is not known here.
    """
    missing = _missing(text, shape)
    if missing is not None:
        raise UsageError(
            f"{text.name}: how much memory {shape.model_type or 'this model'} needs is unknown: {missing}",
            hint="start it once, and read `GPU KV cache size` in sparkcluster logs INVENTORY",
        )
    if _is_latent(text, shape):
        return list(_latents(text, shape))
    if is_compressed(text):
        return list(_compressed(text, shape))
    if shape.model_type in PURE_STATES:
        made = _mamba2(text, shape) if shape.model_type == "mamba2" else _mamba1(text, shape)
        return [made] * shape.layers
    if shape.heads == 0:
        raise text.refused("num_attention_heads", "is missing")
    if shape.model_type == "falcon_h1":
        return [cache for _ in range(shape.layers) for cache in (_mamba2(text, shape), _attention(text, shape))]
    words = kinds(text, shape)
    shared = text.number("num_kv_shared_layers", default=0, least=0, most=shape.layers)
    layered = text.below("per_layer_config")
    found: list[Cache] = []
    for at, kind in enumerate(words[: shape.layers - shared]):
        # transformers 5 writes what differs from layer to layer under the layer's number.
        found += _of(kind, text.over(layered.below(str(at))) if layered is not None else text, shape)
    return _indexed(found, text) if shape.model_type.startswith(INDEXED) else found


def _indexed(found: Sequence[Cache], text: Document) -> list[Cache]:
    """``found`` with the keys by which MiniMax M3 selects tokens, in the layers that do."""
    sparse = text.below("sparse_attention_config")
    if sparse is None:
        return list(found)
    width, often = sparse.number("sparse_index_dim", most=1 << 14), sparse.numbers("sparse_attention_freq")
    if len(often) != len(found):
        raise sparse.refused("sparse_attention_freq", f"names {len(often)} layers, the model has {len(found)}")
    return [
        dataclasses.replace(cache, index_dim=width) if on and isinstance(cache, Attention) else cache
        for cache, on in zip(found, often, strict=True)
    ]


def _missing(text: Document, shape: Shape) -> str | None:
    """Why the memory of a model is not computed; None where it is."""
    if shape.model_type.removesuffix("_text") in UNKNOWN:
        return UNKNOWN[shape.model_type.removesuffix("_text")]
    if text.has("linear_attn_config"):
        return UNKNOWN["kimi_linear"]
    if text.has("block_configs"):
        return UNKNOWN["nemotron-nas"]
    selects = text.has("index_topk") and shape.model_type not in SPARSE and not is_compressed(text)
    if selects or (text.has("sparse_attention_config") and not shape.model_type.startswith(INDEXED)):
        return UNKNOWN["dots3_note"]
    return None


def is_compressed(text: Document) -> bool:
    """Whether it has the layers of DeepSeek V4."""
    return text.has("compress_ratios")


def _latents(text: Document, shape: Shape) -> Iterator[Latent]:
    rank, rope = text.number("kv_lora_rank", most=1 << 16), text.number("qk_rope_head_dim", most=1 << 14)
    if shape.model_type not in SPARSE:
        yield from [Latent(rank, rope)] * (shape.layers * (2 if shape.model_type == "longcat_flash" else 1))
        return
    index = text.number("index_head_dim", most=1 << 14)
    every = text.number("index_topk_freq", default=1, most=1024)
    first = text.number("index_skip_topk_offset", default=2, least=0, most=1024)
    pattern = text.values.get("index_topk_pattern")
    if pattern is not None:
        pattern = text.text("index_topk_pattern")
    for at in range(shape.layers):
        # Layers in between take the selection of the last one that made it.
        shares = pattern[at : at + 1] == "S" if pattern is not None else max(at - first + 1, 0) % every != 0
        yield Latent(rank, rope, sparse=True, index_dim=0 if shares else index)


def _compressed(text: Document, shape: Shape) -> Iterator[Compressed]:
    ratios = text.numbers("compress_ratios")
    if len(ratios) < shape.layers:
        raise text.refused("compress_ratios", f"names {len(ratios)} layers, the model has {shape.layers}")
    window = text.number("sliding_window")
    rope, index = text.number("qk_rope_head_dim", most=1 << 14), text.number("index_head_dim", most=1 << 14)
    for ratio in ratios[: shape.layers]:
        if ratio not in {0, 1, 4, 128}:
            raise text.refused("compress_ratios", f"has a ratio that is not supported: {ratio}")
        yield Compressed(shape.head_dim, rope, window, 0 if ratio == 1 else ratio, index if ratio == 4 else 0)


def _of(kind: str, text: Document, shape: Shape) -> list[Cache]:
    if kind in SILENT_WORDS:
        return []
    if kind in STATE_WORDS:
        return [_state(kind, text, shape)]
    if kind in ATTENTION_WORDS:
        return [_attention(text, shape, everywhere=True)]
    if kind == "sliding_attention":
        return [_attention(text, shape, window=text.number("sliding_window", "window_size"))]
    if kind == "chunked_attention":
        return [_attention(text, shape, chunk=text.number("attention_chunk_size"))]
    raise text.refused("layer_types", f"lists an unknown kind of layer: {kind[:40]}")


def kinds(text: Document, shape: Shape) -> Sequence[str]:  # noqa: PLR0911 - one way of writing it after another
    """One word for each layer: what it is."""
    layers = shape.layers
    alike = _alike(text, shape)
    if alike is not None:
        return [alike] * layers
    pattern = text.text("hybrid_override_pattern") or text.text("hybrid_layer_pattern")
    if pattern and shape.model_type.startswith("nemotron"):
        pattern = pattern.replace("|", "")
        if len(pattern) != layers:
            raise text.refused("hybrid_override_pattern", f"names {len(pattern)} layers, the model has {layers}")
        return pattern
    for key in ("layer_types", "layers_block_type"):
        words = text.words(key, layers)
        if words is not None:
            return words
    if text.has("attn_layer_indices"):  # bamba
        full = set(text.numbers("attn_layer_indices"))
        return ["attention" if at in full else "mamba" for at in range(layers)]
    if text.has("attn_layer_period"):  # jamba
        period = text.number("attn_layer_period", most=1024)
        offset = text.number("attn_layer_offset", default=0, least=0, most=1024)
        return ["attention" if at % period == offset else "mamba" for at in range(layers)]
    if text.has("linear_num_value_heads"):  # qwen3-next, qwen3.5, qwen3.6
        every = text.number("full_attention_interval", default=4, most=1024)
        return ["linear_attention" if (at + 1) % every else "full_attention" for at in range(layers)]
    if text.has("full_attn_idxs"):  # lfm2
        full = set(text.numbers("full_attn_idxs"))
        return ["full_attention" if at in full else "conv" for at in range(layers)]
    return _windows(text, shape)


def _alike(text: Document, shape: Shape) -> str | None:
    """The word of each layer, for families whose layers are all alike."""
    if shape.model_type in PURE_STATES:
        return "mamba"
    if shape.model_type == "falcon_h1":
        return BOTH
    return "full_attention" if _is_latent(text, shape) or is_compressed(text) else None


def _windows(text: Document, shape: Shape) -> list[str]:
    """The defaults that transformers gives to families whose files may leave layer_types out."""
    layers, family = shape.layers, shape.model_type
    slides = text.number("sliding_window", default=0, least=0) > 0
    if family in {"gemma2", "gpt_oss"} and slides:
        return ["full_attention" if at % 2 else "sliding_attention" for at in range(layers)]
    if family.startswith(("gemma3", "cohere2")) and slides:
        usual = 4 if family.startswith("cohere2") else 6
        every = text.number("sliding_window_pattern", "_sliding_window_pattern", default=usual, most=1024)
        return ["sliding_attention" if (at + 1) % every else "full_attention" for at in range(layers)]
    if family.startswith("llama4") and text.has("attention_chunk_size"):
        every = text.number("no_rope_layer_interval", default=4, most=1024)
        without = text.numbers("no_rope_layers") or [int((at + 1) % every != 0) for at in range(layers)]
        if len(without) != layers:
            raise text.refused("no_rope_layers", f"names {len(without)} layers, the model has {layers}")
        return ["chunked_attention" if chunked else "full_attention" for chunked in without]
    if family.startswith(("qwen2", "qwen3")):
        first = text.number("max_window_layers", default=layers, least=0, most=1 << 16)
        slides = slides and text.flag("use_sliding_window", default=False)
        return ["sliding_attention" if slides and at >= first else "full_attention" for at in range(layers)]
    if family == "mistral" and "sliding_window" not in text.values:
        raise text.refused("sliding_window", "is missing, and transformers takes 4096 then: write it, or null")
    slides = slides and text.flag("use_sliding_window", default=True)
    return ["sliding_attention" if slides else "full_attention"] * layers


def _attention(
    text: Document, shape: Shape, *, window: int | None = None, chunk: int | None = None, everywhere: bool = False
) -> Attention:
    heads = text.number("num_key_value_heads", "num_kv_heads", "n_head_kv", default=shape.heads, most=4096)
    head_dim = shape.head_dim
    if text.layered:
        head_dim = text.number("head_dim", default=head_dim, most=1 << 14)
    elif shape.model_type.startswith("gemma4") and everywhere:
        # Full attention of Gemma 4 has heads of its own size and number.
        head_dim = text.number("global_head_dim", default=head_dim, most=1 << 14)
        if text.flag("attention_k_eq_v", default=False):
            heads = text.number("num_global_key_value_heads", default=heads, most=4096)
    if head_dim < 1:
        raise text.refused("head_dim", "is missing, and hidden_size is smaller than num_attention_heads")
    value = text.number("v_head_dim", default=head_dim, most=1 << 14) if shape.model_type == "mimo_v2" else head_dim
    return Attention(heads, head_dim, value, window, chunk)


def _state(kind: str, text: Document, shape: Shape) -> State:
    if kind == "conv":
        width = text.number("conv_dim", default=shape.hidden)
        return State("convolution", width, text.number("conv_L_cache", most=1024))
    if kind == "linear_attention" and not shape.model_type.startswith("nemotron"):
        values = text.number("linear_num_value_heads", most=4096)
        value_dim = text.number("linear_value_head_dim", most=1 << 14)
        key_dim = text.number("linear_key_head_dim", most=1 << 14)
        keys = text.number("linear_num_key_heads", most=4096)
        kernel = text.number("linear_conv_kernel_dim", most=1024)
        return State("delta", values * value_dim, kernel, values, value_dim, key_dim, keys)
    if shape.model_type == "jamba":
        return _mamba1(text, shape)
    return _mamba2(text, shape)


def _mamba1(text: Document, shape: Shape) -> State:
    expand = text.number("mamba_expand", "expand", default=2, most=1024)
    width = text.number("intermediate_size", default=expand * shape.hidden) if shape.model_type != "jamba" else 0
    return State(
        "mamba1",
        width or expand * shape.hidden,
        text.number("mamba_d_conv", "conv_kernel", most=1024),
        state_size=text.number("mamba_d_state", "state_size", most=1 << 16),
    )


def _mamba2(text: Document, shape: Shape) -> State:
    heads = text.number("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads", most=1 << 14)
    head_dim = text.number("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim", most=1 << 14)
    expand = text.number("mamba_expand", "expand", default=2, most=1024)
    width = heads * head_dim
    if not shape.model_type.startswith("nemotron"):
        width = text.number("mamba_d_ssm", default=expand * shape.hidden)
    return State(
        "mamba2",
        width,
        text.number("mamba_d_conv", "conv_kernel", default=4, most=1024),
        heads,
        head_dim,
        text.number("ssm_state_size", "mamba_d_state", "state_size", most=1 << 16),
        text.number("n_groups", "mamba_n_groups", "mamba_ngroups", default=1, most=1 << 14),
        text.number("chunk_size", "mamba_chunk_size", default=256, most=1 << 16),
    )


def drafts(text: Document, shape: Shape, caches: Sequence[Cache]) -> list[Cache]:
    """What the multi-token-prediction layers remember that come along with a checkpoint; like its full attention."""
    count = text.number(
        "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", default=0, least=0, most=64
    )
    if count == 0 and shape.model_type == "qwen3_next":
        count = 1  # it has one, which its file leaves out
    window = next((cache for cache in caches if isinstance(cache, Compressed)), None)
    if window is not None:  # whatever its place in compress_ratios says
        return [dataclasses.replace(window, ratio=0, index_dim=0)] * count
    like = next((cache for cache in caches if isinstance(cache, Latent)), None) or next(
        (cache for cache in caches if isinstance(cache, Attention) and cache.window is None and cache.chunk is None),
        None,
    )
    return [like] * count if like is not None else []


def state_dtype(text: Document, model_type: str) -> str | None:
    """The dtype that the recurrent states have unless the user says another; None: the model's own."""
    if model_type.startswith("nemotron"):
        return text.text("mamba_ssm_cache_dtype", "float32")
    if model_type.startswith("qwen3_5"):
        return text.text("mamba_ssm_dtype") or None
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: how many there are in a layer, the width of one, and of those that every token takes."""

    count: int
    width: int
    shared_width: int


def experts(text: Document) -> Experts | None:
    """The mixture of experts that some layers have; None for a dense model."""
    count = text.number(
        "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", default=0, least=0, most=1 << 16
    )
    if count < 2:
        return None
    width = text.number("moe_intermediate_size", "intermediate_size", most=1 << 24)
    shared = text.number(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0, least=0, most=1 << 24
    )
    if not shared:
        shared = width * text.number("n_shared_experts", "num_shared_experts", default=0, least=0, most=1024)
    return Experts(count, width, shared)


def is_mixed(text: Document, shape: Shape, layer: int, kind: str) -> bool:
    """Whether a layer of a model with experts has them."""
    if shape.model_type.startswith("nemotron"):
        return kind in {"E", "O", "moe"}
    words = text.words("mlp_layer_types")
    if words is not None:
        return layer >= len(words) or words[layer] != "dense"
    often = text.values.get("moe_layer_freq")
    if isinstance(often, list):
        numbers = text.numbers("moe_layer_freq")
        return layer >= len(numbers) or numbers[layer] != 0
    if layer in text.numbers("mlp_only_layers"):
        return False
    step = text.number("decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period", default=1, most=1024)
    offset = text.number("expert_layer_offset", default=step - 1, least=0, most=1024)
    dense = text.number("first_k_dense_replace", "num_dense_layers", default=0, least=0, most=shape.layers)
    return layer >= dense and layer % step == offset % step


def _is_latent(text: Document, shape: Shape) -> bool:
    return shape.model_type in LATENT and text.has("kv_lora_rank")
