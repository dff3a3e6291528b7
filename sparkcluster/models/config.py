"""A model's config.json as typed data: which layers it has, what each remembers, and how its weights are stored."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from sparkcluster.errors import UsageError
from sparkcluster.models import family_layers
from sparkcluster.models.layers import Attention, Cache, Latent, State
from sparkcluster.models.read import Document

QuantizationKind = Literal[
    "none",
    "modelopt-nvfp4",
    "modelopt-fp8",
    "modelopt-mixed",
    "compressed-tensors",
    "mxfp4",
    "fp8",
    "gptq",
    "awq",
    "other",
]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """How the checkpoint's weights are stored.

    Attributes:
        method: quant_method as the file has it.
        bits_per_weight: of a quantized weight with its scales, None where the file does not tell.
        kv_dtype: dtype that the checkpoint asks the KV cache to have; None for none.
    """

    kind: QuantizationKind = "none"
    method: str = ""
    bits_per_weight: float | None = None
    kv_dtype: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: how many there are, and the width of one."""

    count: int
    width: int
    shared_width: int
    layers: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """What ``fit`` needs to know of a model.

    Attributes:
        name: path or repository it was read from.
        caches: what each layer that remembers something remembers, in the model's order.
        drafts: the same of its multi-token-prediction layers, which only speculative decoding loads.
        layers: layers of the decoder, those without memory included.
        dtype: of weights that are not quantized.
        state_dtype: of recurrent states where the model asks for one; None: the model's own.
        tied: whether input and output embedding are one.
        multimodal: whether a vision or audio tower comes along.
    """

    name: str
    architecture: str
    model_type: str
    caches: tuple[Cache, ...]
    drafts: tuple[Cache, ...]
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    head_dim: int
    vocabulary: int
    context: int
    dtype: str
    state_dtype: str | None
    tied: bool
    multimodal: bool
    experts: Experts | None
    quantization: Quantization

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a state and others keys and values."""
        return any(isinstance(cache, State) for cache in self.caches) and not self.attention_free

    @property
    def attention_free(self) -> bool:
        """Whether no layer keeps keys and values."""
        return all(isinstance(cache, State) for cache in self.caches)

    @property
    def kv_heads(self) -> int | None:
        """KV heads of the first attention layer; None for latent attention, or none at all."""
        return next((cache.kv_heads for cache in self.caches if isinstance(cache, Attention)), None)

    @property
    def latent(self) -> bool:
        """Whether its attention is latent (MLA)."""
        return any(isinstance(cache, Latent) for cache in self.caches)


def parse(document: object, name: str) -> ModelConfig:
    """The model that a config.json describes; ``name`` is its path or repository.

    Raises:
        UsageError: numbers that are missing or absurd, or layers that are not known.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{name} is not a config.json: it is not a mapping", hint="give a model's config.json")
    top = Document(document, name)
    text, multimodal = _text(top)
    model_type = text.text("model_type", top.text("model_type"))
    if top.flag("is_encoder_decoder", default=False):
        raise UsageError(
            f"{name}: encoder-decoder models are not supported", hint="give a decoder model, which generates text"
        )
    # transformers 5 leaves the number out where it names each layer.
    named = len(text.words("layers_block_type") or text.words("layer_types") or text.text("hybrid_override_pattern"))
    layers = text.number("num_hidden_layers", "n_layer", "num_layers", default=named or None, most=1024)
    heads = text.number("num_attention_heads", "n_head", "n_heads", default=0, least=0, most=4096)
    hidden = text.number("hidden_size", "n_embd", "d_model", most=1 << 20)
    head_dim = text.number("head_dim", default=0, least=0, most=1 << 14) or (hidden // heads if heads else 0)
    shape = family_layers.Shape(model_type, layers, heads, hidden, head_dim)
    caches = family_layers.caches(text, shape)
    if not caches:
        raise text.refused("layer_types", "lists no layer with attention or a state")
    architectures = top.words("architectures") or [""]
    return ModelConfig(
        name=name,
        architecture=architectures[0] if architectures else "",
        model_type=model_type,
        caches=tuple(caches),
        drafts=tuple(family_layers.drafts(text, shape, caches)),
        layers=layers,
        hidden=hidden,
        feed_forward=_feed_forward(text, hidden),
        heads=heads,
        head_dim=head_dim,
        vocabulary=text.number("vocab_size", most=1 << 24),
        context=text.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=2048),
        dtype=_dtype(top, text),
        state_dtype=family_layers.state_dtype(text, model_type),
        tied=text.flag("tie_word_embeddings", default=top.flag("tie_word_embeddings", default=False)),
        multimodal=multimodal,
        experts=_experts(text, layers),
        quantization=_quantization(top, text),
    )


def _text(top: Document) -> tuple[Document, bool]:
    """The part that describes the language model, and whether another part sees or hears."""
    towers = ("vision_config", "audio_config", "vision_tower_config", "sound_config")
    multimodal = any(isinstance(top.values.get(key), Mapping) for key in towers)
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        below = top.below(key)
        if below is not None and (below.has("hidden_size") or below.has("text_config")):
            inner, _ = _text(below) if below.has("text_config") else (below, False)
            return inner, multimodal
    return top, multimodal


def _feed_forward(text: Document, hidden: int) -> int:
    value = text.values.get("intermediate_size")
    if isinstance(value, list):  # one per layer; the largest bounds what a step needs
        numbers = text.numbers("intermediate_size")
        if not numbers or not 0 < max(numbers) <= 1 << 24:
            raise text.refused("intermediate_size", "must contain numbers from 1 to 16777216")
        return max(numbers)
    return text.number("intermediate_size", "ffn_hidden_size", "n_inner", default=4 * hidden, least=0, most=1 << 24)


def _experts(text: Document, layers: int) -> Experts | None:
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
    return Experts(count, width, shared, family_layers.expert_layers(text, layers))


def _dtype(top: Document, text: Document) -> str:
    for part in (text, top):
        for key in ("dtype", "torch_dtype"):
            value = part.text(key).removeprefix("torch.")
            if value:
                if value not in DTYPE_BYTES:
                    raise part.refused(key, f"is not a supported dtype: {value[:40]}")
                return value
    return "bfloat16"


def _quantization(top: Document, text: Document) -> Quantization:
    found = top.below("quantization_config") or text.below("quantization_config") or top.below("compression_config")
    if found is None:
        return Quantization()
    method = found.text("quant_method").lower()
    inner = found.below("quantization") or found
    algorithm = (found.text("quant_algo") or inner.text("quant_algo")).lower()
    kind, bits = _stored(found, method, algorithm)
    return Quantization(kind, method, bits, _kv_dtype(found, inner, method))


def _stored(found: Document, method: str, algorithm: str) -> tuple[QuantizationKind, float | None]:
    """Kind of a quantized checkpoint, and bits of a weight with its scales."""
    if method.startswith("modelopt") or (not method and algorithm):
        both = method + algorithm
        if "mixed" in both:
            return "modelopt-mixed", None
        return ("modelopt-nvfp4", 4.5) if "fp4" in both else ("modelopt-fp8", 8.0)
    if "gptq" in method or "awq" in method:
        bits = found.number("bits", "w_bit", default=4, least=1, most=16)
        group = found.number("group_size", "q_group_size", default=128, least=-1, most=1 << 20)
        return "awq" if "awq" in method else "gptq", bits + (20 / group if group > 0 else 0.0)
    if method == "compressed-tensors":
        return "compressed-tensors", _compressed_bits(found)
    if "mxfp4" in method:
        return "mxfp4", 4.25
    return ("fp8", 8.0) if "fp8" in method else ("other", None)


def _compressed_bits(found: Document) -> float | None:
    """Bits of a weight with its scale: the first group's, as almost all of a checkpoint is in it."""
    groups = found.below("config_groups")
    for key in groups.values if groups is not None else ():
        group = groups.below(key) if groups is not None else None
        weights = group.below("weights") if group is not None else None
        if weights is not None:
            bits = weights.number("num_bits", default=8, least=1, most=32)
            size = weights.number("group_size", default=0, least=-1, most=1 << 20)
            return bits + ((8.0 if bits == 4 and weights.text("type") == "float" else 16.0) / size if size > 0 else 0)
    return None


def _kv_dtype(found: Document, inner: Document, method: str) -> str | None:
    """The KV cache dtype that a checkpoint asks for; only those of ModelOpt do."""
    if not method.startswith("modelopt"):
        return None
    for part in (inner, found):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            value = part.values.get(key)
            if isinstance(value, Mapping):
                bits = value.get("num_bits")
                named = "fp8" if bits == 8 else "nvfp4" if bits == 4 else None
                return named if value.get("type") == "float" else None
            if isinstance(value, str) and re.fullmatch(r"(?i)fp8|fp8_e4m3|nvfp4", value):
                return value.lower()
    return None
