"""A model small enough to generate: two Llama layers, 0.4 million random parameters.

It is written directly (JSON and safetensors are simple formats), so that neither torch nor transformers is needed, and
from a fixed seed, so that every machine generates the same bytes: a greedy answer is then the same everywhere, as
end-to-end tests require. It has four attention heads, for tensor parallel 2 and 4.

It reads any text byte by byte and answers in words: the output layer is zero except for a list of words, so the demo
prints nonsense, but readable words.
"""

from __future__ import annotations

import json
import os
import random
import struct
from array import array
from pathlib import Path

HIDDEN = 128
LAYERS = 2
HEADS = 4
FEED_FORWARD = 256
CONTEXT = 2048
SEED = 7

SPECIALS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
WORDS = """
a the of and to in is on by with from over under one two four each every many few bright quiet small warm cold
fast slow red blue green spark cable rail rank node port link token tensor layer head model answer light fire
river stone garden window letter morning evening winter summer bird horse ship bridge runs holds finds gives
takes makes keeps turns waits sings
""".split()  # noqa: SIM905 - a list literal would be 80 lines
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(directory: Path) -> Path:
    """Write the model into ``directory`` (created if missing) and return it.

    Files with the correct content are not rewritten, so a second call changes nothing. Each file appears complete or
    not at all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in tiny_model_files().items():
        path = directory / name
        if path.is_file() and path.read_bytes() == content:
            continue
        temporary = path.with_name(f".{name}.{os.getpid()}")
        temporary.write_bytes(content)
        temporary.replace(path)
    return directory


def tiny_model_files() -> dict[str, bytes]:
    """The model's files by name, in Hugging Face's layout."""
    vocabulary = tokens()
    return {
        "config.json": _json(_config(len(vocabulary))),
        "generation_config.json": _json({"eos_token_id": vocabulary["<|end|>"], "do_sample": False}),
        "tokenizer.json": _json(_tokenizer(vocabulary)),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": CONTEXT,
                "clean_up_tokenization_spaces": False,
                "eos_token": "<|end|>",
                "pad_token": "<|pad|>",
                "chat_template": CHAT_TEMPLATE,
            }
        ),
        "model.safetensors": _safetensors(tensors_of(vocabulary)),
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _config(vocabulary_size: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": SPECIALS.index("<|end|>"),
        "pad_token_id": SPECIALS.index("<|pad|>"),
        "vocab_size": vocabulary_size,
        "torch_dtype": "bfloat16",
    }


def _byte_characters() -> list[str]:
    """The printable character that byte-level BPE uses for each byte value (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


def tokens() -> dict[str, int]:
    """Special tokens, then one token per byte, then the words of the answer."""
    characters = _byte_characters()
    words = [characters[0x20] + word for word in WORDS]
    return {token: number for number, token in enumerate([*SPECIALS, *characters, *words])}


def _tokenizer(vocabulary: dict[str, int]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in SPECIALS
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        # Without merges, text is never read as words: words are only used for answers.
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def tensors_of(vocabulary: dict[str, int]) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Shape and bfloat16 bytes of every tensor, generated in a fixed order from one generator."""
    generator = random.Random(SEED)
    size = len(vocabulary)

    def matrix(rows: int, columns: int, gain: float) -> tuple[tuple[int, ...], bytes]:
        # Uniform, not normal: needs no function of the C library, whose last bit differs between machines.
        bound = gain * (3.0 / columns) ** 0.5
        values = array("f", ((2.0 * generator.random() - 1.0) * bound for _ in range(rows * columns)))
        return (rows, columns), _bfloat16(values)

    def ones() -> tuple[tuple[int, ...], bytes]:
        return (HIDDEN,), _bfloat16(array("f", [1.0] * HIDDEN))

    tensors = {"model.embed_tokens.weight": matrix(size, HIDDEN, HIDDEN**0.5)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, gain in (("q_proj", 1.5), ("k_proj", 1.5), ("v_proj", 2.0), ("o_proj", 2.0)):
            tensors[f"{prefix}.self_attn.{name}.weight"] = matrix(HIDDEN, HIDDEN, gain)
        tensors[f"{prefix}.mlp.gate_proj.weight"] = matrix(FEED_FORWARD, HIDDEN, 1.5)
        tensors[f"{prefix}.mlp.up_proj.weight"] = matrix(FEED_FORWARD, HIDDEN, 1.5)
        tensors[f"{prefix}.mlp.down_proj.weight"] = matrix(HIDDEN, FEED_FORWARD, 1.5)
        tensors[f"{prefix}.input_layernorm.weight"] = ones()
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ones()
    tensors["model.norm.weight"] = ones()
    shape, words = matrix(len(WORDS), HIDDEN, 4.0)
    silent = size - len(WORDS)
    tensors["lm_head.weight"] = ((size, shape[1]), bytes(2 * silent * HIDDEN) + words)
    return tensors


def _bfloat16(values: array[float]) -> bytes:
    """The upper halves of 32-bit floats: bfloat16 by truncation, little-endian."""
    raw = struct.pack(f"<{len(values)}f", *values)
    halves = bytearray(2 * len(values))
    halves[0::2] = raw[2::4]
    halves[1::2] = raw[3::4]
    return bytes(halves)


def _safetensors(tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file: length of the header, header as JSON padded to eight bytes, raw data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())


if __name__ == "__main__":
    import sys

    sys.stdout.write(f"{write_tiny_model(Path(sys.argv[1]).expanduser())}\n")
