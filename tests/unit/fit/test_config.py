"""Reading config.json: the keys of different families, and invalid values."""

from __future__ import annotations

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.fit.config import parse
from sparkcluster.fit.layers import Attention, Latent

BASE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}


def kinds(**changed):
    """One word per cache of a config."""
    words = []
    for cache in parse({**BASE, **changed}, "x").caches:
        if isinstance(cache, Attention):
            words.append("chunked" if cache.chunk else "sliding" if cache.window else "full")
        else:
            words.append("latent" if isinstance(cache, Latent) else cache.kind)
    return words


def test_missing_keys_have_the_usual_default():
    config = parse(BASE, "x")
    assert config.caches[0] == Attention(8, 32, 32)
    assert (config.dtype, config.tied, config.multimodal, config.quantization.kind) == (
        "bfloat16",
        False,
        False,
        "none",
    )


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 64}, ["full", "sliding"] * 2),
        ({"model_type": "gemma2", "sliding_window": 64}, ["sliding", "full"] * 2),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 2}, ["sliding", "full"] * 2),
        ({"model_type": "mistral", "sliding_window": None}, ["full"] * 4),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            ["full"] * 3 + ["sliding"],
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": 64}, ["chunked"] * 3 + ["full"]),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}, ["latent"] * 4),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 2}, ["full"] * 2),
        (
            {"model_type": "lfm2", "full_attn_idxs": [1], "conv_L_cache": 3},
            ["convolution", "full"] + ["convolution"] * 2,
        ),
        (
            {
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M*E-",
                "mamba_num_heads": 8,
                "mamba_head_dim": 64,
                "ssm_state_size": 128,
            },
            ["mamba2", "full"],
        ),
    ],
)
def test_each_family_describes_its_layers_with_its_own_keys(changed, expected):
    assert kinds(**changed) == expected


def test_keys_that_differ_by_layer_are_read_in_the_format_of_transformers_5():
    changed = {
        "model_type": "gemma4_text",
        "num_key_value_heads": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 64,
        "per_layer_config": {"1": {"head_dim": 64, "num_key_value_heads": 1}, "3": {"num_key_value_heads": 4}},
    }
    caches = parse({**BASE, **changed}, "x").caches
    assert caches[0] == caches[2] == Attention(2, 32, 32, window=64)
    assert (caches[1], caches[3]) == (Attention(1, 64, 64), Attention(4, 32, 32))


def test_only_the_language_part_of_a_vision_model_counts():
    config = parse({"model_type": "both", "vision_config": {"depth": 2}, "text_config": BASE}, "x")
    assert (config.multimodal, config.shape.hidden) == (True, 256)


@pytest.mark.parametrize(
    ("written", "kind", "bits", "kv_dtype"),
    [
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            "modelopt-nvfp4",
            4.5,
            "fp8",
        ),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "MIXED_PRECISION"}}, "modelopt-mixed", None, None),
        (
            {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}},
            "modelopt-fp8",
            8.0,
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            "compressed-tensors",
            4.5,
            None,
        ),
        ({"quant_method": "mxfp4"}, "mxfp4", 4.25, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq", 4.15625, None),
        ({"quant_method": "something_new"}, "other", None, None),
    ],
)
def test_storage_of_the_weights(written, kind, bits, kv_dtype):
    found = parse({**BASE, "quantization_config": written}, "x").quantization
    assert (found.kind, found.bits_per_weight, found.kv_dtype) == (kind, bits, kv_dtype)


def test_an_unknown_kind_of_cache_is_not_guessed():
    with pytest.raises(UsageError, match="how much memory kimi_linear needs is unknown"):
        parse({**BASE, "model_type": "kimi_linear"}, "x")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_hidden_layers": 10**30}, "num_hidden_layers must be from 1 to 1024"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers must be from 1 to 1024, is 10000"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"hidden_size": float("nan")}, "hidden_size must be a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number"),
        ({"layer_types": ["full_attention"]}, "names 1 layers, but the model has 4"),
        ({"layer_types": []}, "names 0 layers, but the model has 4"),
        ({"layer_types": "full_attention"}, "must be a list of strings"),
        ({"intermediate_size": []}, "names 0 layers, but the model has 4"),
        ({"quantization_config": [1]}, "quantization_config must be a mapping"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "mistral"}, "sliding_window is missing"),
    ],
)
def test_an_invalid_config_is_a_single_clear_error(changed, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse({**BASE, **changed}, "some/model")
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 200
