"""A model's config.json as typed data: its layers, their caches, and how weights are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sparkcluster.errors import UsageError
from sparkcluster.fit import family_layers, quantization
from sparkcluster.fit.family_layers import Experts, Layer, Shape
from sparkcluster.fit.layers import Attention, Cache
from sparkcluster.fit.quantization import Quantization
from sparkcluster.fit.read import Document

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
TOWERS = ("vision_config", "audio_config", "vision_tower_config", "sound_config")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """Data that ``fit`` needs about a model.

    Attributes:
        name: its path or repository.
        layers: in the model's order.
        caches: caches of the layers, in the same order, without layers that share another layer's cache.
        drafts: caches of multi-token-prediction layers, which are loaded only for speculative decoding.
        widths: feed-forward width of each layer without experts.
        dtype: dtype of unquantized weights.
        state_dtype: dtype of recurrent states; None for ``dtype``.
        tied: whether input and output embeddings are shared.
        multimodal: whether it has a vision or audio tower.
        streams: copies of the residual stream that a layer mixes (hyper-connections); 1 without them.
        top, text, shape: config.json, its language model section, and sizes common to all layers.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    caches: tuple[Cache, ...]
    drafts: tuple[Cache, ...]
    widths: tuple[int, ...]
    vocabulary: int
    context: int
    dtype: str
    state_dtype: str | None
    tied: bool
    multimodal: bool
    streams: int
    experts: Experts | None
    quantization: Quantization
    top: Document = dataclasses.field(repr=False, compare=False)
    text: Document = dataclasses.field(repr=False, compare=False)
    shape: Shape = dataclasses.field(repr=False, compare=False)

    @property
    def kv_heads(self) -> int | None:
        """KV heads of the first attention layer; None for latent attention or without attention."""
        return next((cache.kv_heads for cache in self.caches if isinstance(cache, Attention)), None)


def parse(document: object, name: str) -> ModelConfig:
    """Parse a config.json; ``name`` is its path or repository.

    Raises:
        UsageError: missing or absurd numbers, or unknown layers.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{name} is not a config.json: it is not a mapping", hint="give a model's config.json")
    if "general.architecture" in document:
        raise UsageError(f"{name} is a GGUF", hint="serve it with engine: llama.cpp, or give the model in safetensors")
    top = Document(document, name)
    text = _text(top)
    model_type = text.text("model_type", top.text("model_type"))
    if top.flag("is_encoder_decoder", default=False):
        raise UsageError(
            f"{name}: encoder-decoder models are not supported", hint="use a decoder model, which generates text"
        )
    # transformers 5 omits the number if it names each layer.
    named = len(text.words("layers_block_type") or text.words("layer_types") or text.text("hybrid_override_pattern"))
    count = text.number("num_hidden_layers", "n_layer", "num_layers", default=named or None, most=1024)
    heads = text.number("num_attention_heads", "n_head", "n_heads", default=0, least=0, most=4096)
    hidden = text.number("hidden_size", "n_embd", "d_model", most=1 << 20)
    head_dim = text.number("head_dim", default=0, least=0, most=1 << 14) or (hidden // heads if heads else 0)
    shape = Shape(model_type, count, heads, hidden, head_dim)
    layers = family_layers.layers(text, shape)
    shared = text.number("num_kv_shared_layers", default=0, least=0, most=count)
    caches = tuple(cache for layer in layers[: count - shared] for cache in layer.caches)
    if not caches:
        raise text.refused("layer_types", "has no layer with attention or a state")
    return ModelConfig(
        name=name,
        architecture=next(iter(top.words("architectures")), ""),
        layers=tuple(layers),
        caches=caches,
        drafts=tuple(family_layers.drafts(text, shape, caches)),
        widths=tuple(family_layers.widths(text, shape)),
        vocabulary=text.number("vocab_size", most=1 << 24),
        context=text.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=2048),
        dtype=_dtype(top, text),
        state_dtype=family_layers.state_dtype(text, model_type),
        tied=text.flag("tie_word_embeddings", default=top.flag("tie_word_embeddings", default=False)),
        multimodal=any(isinstance(top.values.get(key), Mapping) for key in TOWERS),
        streams=text.number("hc_mult", default=1, most=64),
        experts=family_layers.experts(text),
        quantization=quantization.read(top, text),
        top=top,
        text=text,
        shape=shape,
    )


def _text(top: Document) -> Document:
    """The section of the language model."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        below = top.below(key)
        if below is not None and (below.has("hidden_size") or below.has("text_config")):
            return _text(below)
    return top


def _dtype(top: Document, text: Document) -> str:
    named = text.text("dtype") or text.text("torch_dtype") or top.text("dtype") or top.text("torch_dtype")
    named = named.removeprefix("torch.") or "bfloat16"
    if named not in DTYPE_BYTES:
        raise top.refused("dtype", f"is not supported: {named[:40]}")
    return named
