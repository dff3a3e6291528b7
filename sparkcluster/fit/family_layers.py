"""Caches of the layers of each model family, read from config.json in the same way as transformers 5.

Families with other caches are refused by name: a wrong number is worse than none.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.errors import UsageError
from sparkcluster.fit.layers import Attention, Cache, Compressed, Latent, State
from sparkcluster.fit.read import Document

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LATENT, SPARSE = frozenset(_FILE["latent"]), frozenset(_FILE["sparse"])
UNKNOWN: dict[str, dict[str, str]] = _FILE["unknown"]
"""Families whose memory cannot be computed."""
INDEXED = "minimax_m3"
ATTENTION_WORDS = {"full_attention", "attention", "*"}
SILENT_WORDS = {"mlp", "moe", "-", "E", "O"}
STATE_WORDS = {"mamba", "mamba2", "linear_attention", "conv", "M"}
# Our own words for layers of families in which all layers are alike.
LATENT_WORD, COMPRESSED_WORD, BOTH = "latent", "compressed", "state and attention"


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that every family has."""

    model_type: str
    layers: int
    heads: int
    hidden: int
    head_dim: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its kind and its caches, unless it shares those of another layer."""

    kind: str
    caches: tuple[Cache, ...]


def layers(text: Document, shape: Shape) -> list[Layer]:
    """The layers of a model, in order.

    Raises:
        UsageError: unknown family or kind of layer.
    """
    missing = _missing(text, shape)
    if missing is not None:
        raise UsageError(
            f"{text.name}: how much memory {shape.model_type or 'this model'} needs is unknown: {missing}",
            hint="start it once, and read `GPU KV cache size` in sparkcluster logs INVENTORY",
        )
    different = text.below("per_layer_config")
    found = []
    for at, kind in enumerate(_kinds(text, shape)):
        # transformers 5 stores per-layer differences under the layer's number.
        own = text if different is None else text.over(different.below(str(at)))
        found.append(Layer(kind, tuple(_caches(kind, at, own, shape))))
    return found


def _missing(text: Document, shape: Shape) -> str | None:
    """Why the memory of a model cannot be computed; None if it can."""
    for name, family in UNKNOWN.items():
        if shape.model_type.removesuffix("_text") == name or text.has(family.get("key", "")):
            return family["missing"]
    if shape.heads == 0:
        return "it has no attention heads"
    selects = text.has("index_topk") and shape.model_type not in SPARSE and not is_compressed(text)
    if selects or (text.has("sparse_attention_config") and not shape.model_type.startswith(INDEXED)):
        return UNKNOWN["dots3_note"]["missing"]
    return None


def is_compressed(text: Document) -> bool:
    """Whether it has DeepSeek V4's compressed layers."""
    return text.has("compress_ratios")


def _caches(kind: str, at: int, text: Document, shape: Shape) -> list[Cache]:  # noqa: PLR0911 - one kind after another
    if kind in SILENT_WORDS:
        return []
    if kind in STATE_WORDS:
        return [_state(kind, text, shape)]
    if kind == BOTH:
        return [_mamba2(text, shape), _attention(text, shape)]
    if kind == LATENT_WORD:
        return [_latent(at, text, shape)] * (2 if shape.model_type == "longcat_flash" else 1)
    if kind == COMPRESSED_WORD:
        return [_compressed(at, text, shape)]
    if kind in ATTENTION_WORDS:
        return [_attention(text, shape, index_dim=_index_dim(at, text, shape))]
    if kind == "sliding_attention":
        return [_attention(text, shape, window=text.number("sliding_window", "window_size"))]
    if kind == "chunked_attention":
        return [_attention(text, shape, chunk=text.number("attention_chunk_size"))]
    raise text.refused("layer_types", f"lists an unknown kind of layer: {kind[:40]}")


def _index_dim(at: int, text: Document, shape: Shape) -> int:
    """Width of the key by which a layer of MiniMax M3 selects tokens; 0 if it does not."""
    sparse = text.below("sparse_attention_config") if shape.model_type.startswith(INDEXED) else None
    if sparse is None:
        return 0
    often = sparse.numbers("sparse_attention_freq", shape.layers)
    if not often:
        raise sparse.refused("sparse_attention_freq", "is missing")
    return sparse.number("sparse_index_dim", most=1 << 14) if often[at] else 0


def _latent(at: int, text: Document, shape: Shape) -> Latent:
    rank, rope = text.number("kv_lora_rank", most=1 << 16), text.number("qk_rope_head_dim", most=1 << 14)
    if shape.model_type not in SPARSE:
        return Latent(rank, rope)
    index = text.number("index_head_dim", most=1 << 14)
    every = text.number("index_topk_freq", default=1, most=1024)
    first = text.number("index_skip_topk_offset", default=2, least=0, most=1024)
    pattern = text.text("index_topk_pattern")
    # Layers in between reuse the selection of the last layer that made one.
    shares = pattern[at : at + 1] == "S" if pattern else max(at - first + 1, 0) % every != 0
    return Latent(rank, rope, sparse=True, index_dim=0 if shares else index)


def _compressed(at: int, text: Document, shape: Shape) -> Compressed:
    ratios = text.numbers("compress_ratios")  # ratios of draft layers come last
    if len(ratios) < shape.layers:
        raise text.refused("compress_ratios", f"names {len(ratios)} layers, but the model has {shape.layers}")
    ratio = ratios[at]
    if ratio not in {0, 1, 4, 128}:
        raise text.refused("compress_ratios", f"has a ratio that is not supported: {ratio}")
    rope, index = text.number("qk_rope_head_dim", most=1 << 14), text.number("index_head_dim", most=1 << 14)
    window = text.number("sliding_window")
    return Compressed(shape.head_dim, rope, window, 0 if ratio == 1 else ratio, index if ratio == 4 else 0)


def _kinds(text: Document, shape: Shape) -> Sequence[str]:  # noqa: PLR0911 - one way of writing it after another
    """The kind of each layer."""
    layers = shape.layers
    alike = _alike(text, shape)
    if alike is not None:
        return [alike] * layers
    pattern = text.text("hybrid_override_pattern") or text.text("hybrid_layer_pattern")
    if pattern and shape.model_type.startswith("nemotron"):
        pattern = pattern.replace("|", "")
        if len(pattern) != layers:
            raise text.refused("hybrid_override_pattern", f"names {len(pattern)} layers, but the model has {layers}")
        return pattern
    words = text.words("layer_types", layers) or text.words("layers_block_type", layers)
    if words:
        return words
    for key, other in (("attn_layer_indices", "mamba"), ("full_attn_idxs", "conv")):  # bamba, lfm2
        if text.has(key):
            full = set(text.numbers(key))
            return ["full_attention" if at in full else other for at in range(layers)]
    if text.has("attn_layer_period"):  # jamba
        period = text.number("attn_layer_period", most=1024)
        return _every(period, "mamba", layers, text.number("attn_layer_offset", default=0, least=0, most=1024))
    if text.has("linear_num_value_heads"):  # qwen3-next, qwen3.5, qwen3.6
        return _every(text.number("full_attention_interval", default=4, most=1024), "linear_attention", layers)
    return _windows(text, shape)


def _alike(text: Document, shape: Shape) -> str | None:
    """The kind of all layers, for families in which all layers are alike."""
    if shape.model_type == "falcon_h1":
        return BOTH
    if shape.model_type in LATENT and text.has("kv_lora_rank"):
        return LATENT_WORD
    return COMPRESSED_WORD if is_compressed(text) else None


def _every(period: int, other: str, layers: int, offset: int | None = None) -> list[str]:
    """Full attention in the last layer of each ``period`` (or the layer at ``offset``), ``other`` in the rest."""
    full = period - 1 if offset is None else offset
    return ["full_attention" if at % period == full else other for at in range(layers)]


def _windows(text: Document, shape: Shape) -> list[str]:
    """Defaults of transformers for families that may omit layer_types."""
    layers, family = shape.layers, shape.model_type
    slides = text.number("sliding_window", default=0, least=0) > 0
    if family in {"gemma2", "gpt_oss"} and slides:
        return _every(2, "sliding_attention", layers)
    if family.startswith(("gemma3", "cohere2")) and slides:
        usual = 4 if family.startswith("cohere2") else 6
        every = text.number("sliding_window_pattern", "_sliding_window_pattern", default=usual, most=1024)
        return _every(every, "sliding_attention", layers)
    if family.startswith("llama4") and text.has("attention_chunk_size"):
        if text.values.get("no_rope_layers"):  # transformers treats an empty list as absent
            chunked = text.numbers("no_rope_layers", layers)
            return ["chunked_attention" if each else "full_attention" for each in chunked]
        return _every(text.number("no_rope_layer_interval", default=4, most=1024), "chunked_attention", layers)
    if family.startswith(("qwen2", "qwen3")):
        first = text.number("max_window_layers", default=layers, least=0, most=1 << 16)
        slides = slides and text.flag("use_sliding_window", default=False)
        return ["sliding_attention" if slides and at >= first else "full_attention" for at in range(layers)]
    if family == "mistral" and "sliding_window" not in text.values:
        raise text.refused("sliding_window", "is missing, for which transformers uses 4096: write it, or null")
    slides = slides and text.flag("use_sliding_window", default=True)
    return ["sliding_attention" if slides else "full_attention"] * layers


def _attention(
    text: Document, shape: Shape, *, window: int | None = None, chunk: int | None = None, index_dim: int = 0
) -> Attention:
    heads = text.number("num_key_value_heads", "num_kv_heads", "n_head_kv", default=shape.heads, most=4096)
    head_dim = text.number("head_dim", default=0, least=0, most=1 << 14) or shape.head_dim
    if shape.model_type.startswith("gemma4") and window is None:
        # Gemma 4's full attention has a separate size and number of heads.
        head_dim = text.number("global_head_dim", default=head_dim, most=1 << 14)
        if text.flag("attention_k_eq_v", default=False):
            heads = text.number("num_global_key_value_heads", default=heads, most=4096)
    if head_dim < 1:
        raise text.refused("head_dim", "is missing, and hidden_size is smaller than num_attention_heads")
    value = text.number("v_head_dim", default=head_dim, most=1 << 14) if shape.model_type == "mimo_v2" else head_dim
    return Attention(heads, head_dim, value, window, chunk, index_dim)


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
    return _mamba1(text, shape) if shape.model_type == "jamba" else _mamba2(text, shape)


def _mamba1(text: Document, shape: Shape) -> State:
    expand = text.number("mamba_expand", "expand", default=2, most=1024)
    return State(
        "mamba1",
        expand * shape.hidden,
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
    """Caches of the checkpoint's multi-token-prediction layers, which are like those of full attention."""
    count = text.number(
        "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", default=0, least=0, most=64
    )
    if count == 0 and shape.model_type == "qwen3_next":
        count = 1  # it has one layer, which config.json omits
    window = next((cache for cache in caches if isinstance(cache, Compressed)), None)
    if window is not None:  # regardless of compress_ratios
        return [dataclasses.replace(window, ratio=0, index_dim=0)] * count
    like = next((cache for cache in caches if isinstance(cache, Latent)), None) or next(
        (cache for cache in caches if isinstance(cache, Attention) and cache.window is None and cache.chunk is None),
        None,
    )
    return [like] * count if like is not None else []


def state_dtype(text: Document, model_type: str) -> str | None:
    """Default dtype of recurrent states; None for the model's dtype."""
    if model_type.startswith("nemotron"):
        return text.text("mamba_ssm_cache_dtype", "float32")
    if model_type.startswith("qwen3_5"):
        return text.text("mamba_ssm_dtype") or None
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: experts per layer, width of an expert, and total width of shared experts."""

    count: int
    width: int
    shared_width: int


def experts(text: Document) -> Experts | None:
    """The mixture of experts; None for a dense model."""
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


def widths(text: Document, shape: Shape) -> list[int]:
    """Feed-forward width of each layer without experts."""
    if not isinstance(text.values.get("intermediate_size"), list):
        keys = ("dense_intermediate_size", "intermediate_size", "ffn_hidden_size", "n_inner")
        return [text.number(*keys, default=4 * shape.hidden, least=0, most=1 << 24)] * shape.layers
    found = text.numbers("intermediate_size", shape.layers)
    if not all(0 <= width <= 1 << 24 for width in found):
        raise text.refused("intermediate_size", "must contain numbers up to 16777216")
    return found


def is_mixed(text: Document, shape: Shape, layer: int, kind: str) -> bool:
    """Whether this layer of a model with experts has experts."""
    if shape.model_type.startswith("nemotron"):
        return kind in {"E", "O", "moe"}
    words = text.words("mlp_layer_types")
    if words:
        return layer >= len(words) or words[layer] != "dense"
    if isinstance(text.values.get("moe_layer_freq"), list):
        often = text.numbers("moe_layer_freq")
        return layer >= len(often) or often[layer] != 0
    if layer in text.numbers("mlp_only_layers"):
        return False
    step = text.number("decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period", default=1, most=1024)
    offset = text.number("expert_layer_offset", default=step - 1, least=0, most=1024)
    dense = text.number("first_k_dense_replace", "num_dense_layers", default=0, least=0, most=shape.layers)
    return layer >= dense and layer % step == offset % step
