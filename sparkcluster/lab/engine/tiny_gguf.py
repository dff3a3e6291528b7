"""The tiny model of ``tiny_llama`` as a GGUF, written with the standard library; llama.cpp gives the same answers.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; names: gguf-py/gguf/constants.py of llama.cpp.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from sparkcluster.lab.engine import tiny_llama as tiny

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def tiny_gguf(context: int = tiny.CONTEXT) -> bytes:
    """The file: header, metadata, offsets of tensors, 32-bit tensors; ``context`` is its declared context length."""
    vocabulary, infos, data = tiny.tokens(), list[bytes](), b""
    known = _metadata(vocabulary, context)
    entries = [_text(key) + struct.pack("<I", kind) + _value(kind, value) for key, (kind, value) in known.items()]
    for name, (shape, halves) in tiny.tensors_of(vocabulary).items():
        plain = name.removesuffix(".weight")
        layer, _, part = plain.removeprefix("model.layers.").partition(".")
        ours = _NAMES[plain] if plain in _NAMES else f"blk.{layer}.{_NAMES[part]}"
        # Dimensions in reverse order, as in ggml; type 0 is 32 bits, with the bfloat16 value in the upper half.
        dimensions = struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(data))
        infos.append(_text(f"{ours}.weight") + dimensions)
        data += _padded(array("I", (half << 16 for half in array("H", halves))).tobytes())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(known))
    return _padded(b"".join([head, *entries, *infos])) + data


def _metadata(vocabulary: dict[str, int], context: int) -> dict[str, tuple[int, object]]:
    llama = {
        "context_length": context, "embedding_length": tiny.HIDDEN, "block_count": tiny.LAYERS,
        "feed_forward_length": tiny.FEED_FORWARD, "attention.head_count": tiny.HEADS,
        "attention.head_count_kv": tiny.HEADS, "rope.dimension_count": tiny.HIDDEN // tiny.HEADS,
    }  # fmt: skip
    kinds = [3 if token in tiny.SPECIALS else 1 for token in vocabulary]
    return {
        "general.architecture": (_STRING, "llama"),
        **{f"llama.{key}": (_U32, value) for key, value in llama.items()},
        "llama.attention.layer_norm_rms_epsilon": (_F32, 1e-5),
        "tokenizer.ggml.model": (_STRING, "gpt2"),
        "tokenizer.ggml.pre": (_STRING, "gpt-2"),
        "tokenizer.ggml.tokens": (_ARRAY, (_STRING, list(vocabulary))),
        "tokenizer.ggml.token_type": (_ARRAY, (_I32, kinds)),
        # llama.cpp requires merges; these two bytes occur in no text.
        "tokenizer.ggml.merges": (_ARRAY, (_STRING, ["\u0100 \u0101"])),
        "tokenizer.ggml.eos_token_id": (_U32, vocabulary["<|end|>"]),
        "tokenizer.ggml.add_bos_token": (_BOOL, False),
        "tokenizer.chat_template": (_STRING, tiny.CHAT_TEMPLATE),
    }


def _value(kind: int, value: object) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence):
        inner, listed = value
        return struct.pack("<IQ", inner, len(listed)) + b"".join(_value(inner, each) for each in listed)
    return struct.pack({_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}[kind], value)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)
