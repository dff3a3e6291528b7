"""Reading config.json: what families say in their different ways, and what nobody should be able to say."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.engines.vllm.defaults import NEWEST
from sparkcluster.engines.vllm.kv import layout
from sparkcluster.engines.vllm.kv_pages import Engine
from sparkcluster.engines.vllm.weights import of_config
from sparkcluster.errors import UsageError
from sparkcluster.models.config import parse
from sparkcluster.models.layers import Attention, Latent, State

BASE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}


def kinds(**changed):
    """One word for each cache of a config."""
    words = []
    for cache in parse({**BASE, **changed}, "x").caches:
        if isinstance(cache, Attention):
            words.append("chunked" if cache.chunk else "sliding" if cache.window else "full")
        else:
            words.append("latent" if isinstance(cache, Latent) else cache.kind)
    return words


def test_what_is_left_out_has_the_usual_default():
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
        ({"model_type": "gpt_oss", "sliding_window": 64}, ["sliding", "full"] * 2),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 2}, ["sliding", "full"] * 2),
        ({"model_type": "mistral", "sliding_window": 64}, ["sliding"] * 4),
        ({"model_type": "mistral", "sliding_window": None}, ["full"] * 4),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, ["full"] * 4),
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
                "model_type": "jamba",
                "attn_layer_period": 2,
                "attn_layer_offset": 1,
                "mamba_d_conv": 4,
                "mamba_d_state": 16,
            },
            ["mamba1", "full"] * 2,
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
        (
            {
                "model_type": "qwen3_next",
                "linear_num_value_heads": 8,
                "linear_num_key_heads": 4,
                "linear_key_head_dim": 32,
                "linear_value_head_dim": 32,
                "linear_conv_kernel_dim": 4,
            },
            ["delta"] * 3 + ["full"],
        ),
    ],
)
def test_each_family_says_in_its_own_way_what_its_layers_are(changed, expected):
    assert kinds(**changed) == expected


def test_full_attention_of_gemma_4_has_heads_of_its_own():
    changed = {
        "model_type": "gemma4_text",
        "head_dim": 256,
        "global_head_dim": 512,
        "num_key_value_heads": 8,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 64,
    }
    caches = parse({**BASE, **changed}, "x").caches
    assert caches[:2] == (Attention(8, 256, 256, window=64), Attention(2, 512, 512))


def test_what_differs_by_layer_is_read_where_transformers_5_writes_it():
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


def test_the_language_part_of_a_model_that_sees_is_what_counts():
    config = parse({"model_type": "both", "vision_config": {"depth": 2}, "text_config": BASE}, "x")
    assert (config.multimodal, config.hidden) == (True, 256)


@pytest.mark.parametrize(
    ("written", "kind", "bits", "kv_dtype"),
    [
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            "modelopt-nvfp4",
            4.5,
            "fp8",
        ),
        ({"quant_method": "modelopt_fp4"}, "modelopt-nvfp4", 4.5, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt-fp8", 8.0, None),
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
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8.0, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq", 4.15625, None),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, "awq", 4.0, None),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "auto-round", 4.15625, None),
        ({"quant_method": "something_new"}, "other", None, None),
    ],
)
def test_how_the_weights_are_stored(written, kind, bits, kv_dtype):
    found = parse({**BASE, "quantization_config": written}, "x").quantization
    assert (found.kind, found.bits_per_weight, found.kv_dtype) == (kind, bits, kv_dtype)


@pytest.mark.parametrize("model_type", ["deepseek_v41", "kimi_linear", "qwen4_exp", "zamba2"])
def test_a_memory_that_is_not_known_is_not_made_up(model_type):
    with pytest.raises(UsageError, match=f"how much memory {model_type} needs is unknown"):
        parse({**BASE, "model_type": model_type}, "x")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_hidden_layers": 10**30}, "num_hidden_layers must be from 1 to 1024"),
        ({"num_hidden_layers": 10**400}, "a number of more than 77 digits"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be from 1"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"hidden_size": "large"}, "hidden_size must be a whole number"),
        ({"hidden_size": float("nan")}, "hidden_size must be a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is missing"),
        ({"vocab_size": 0}, "vocab_size must be from 1"),
        ({"layer_types": ["full_attention"]}, "names 1 layers, the model has 4"),
        ({"layer_types": ["made_up"] * 4}, "made_up"),
        ({"layer_types": "full_attention"}, "must be a list of strings"),
        ({"quantization_config": [1]}, "quantization_config must be a mapping"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"architectures": [1]}, "architectures must be a list of strings"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "mistral"}, "sliding_window is missing"),
        ({"layer_types": ["moe"] * 4}, "no layer"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(changed, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse({**BASE, **changed}, "some/model")
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("document", [[], "text", 3, None])
def test_what_is_no_mapping_is_no_config(document):
    with pytest.raises(UsageError, match=r"x is not a config\.json"):
        parse(document, "x")


def test_absurd_numbers_take_little_memory():
    tracemalloc.start()
    try:
        with pytest.raises(UsageError):
            parse({**BASE, "num_hidden_layers": 2**62, "layer_types": ["full_attention"]}, "x")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


KEYS = sorted(
    {
        *BASE,
        "num_key_value_heads",
        "head_dim",
        "layer_types",
        "sliding_window",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "hybrid_override_pattern",
        "mamba_num_heads",
        "mamba_head_dim",
        "ssm_state_size",
        "linear_num_value_heads",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "moe_intermediate_size",
        "quantization_config",
        "text_config",
        "mtp_num_hidden_layers",
        "num_kv_shared_layers",
        "intermediate_size",
        "full_attention_interval",
        "attn_layer_period",
        "mamba_d_conv",
        "mamba_d_state",
        "attention_chunk_size",
        "per_layer_config",
        "0",
        "1",
    }
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(0, 64)
    | st.floats()
    | st.sampled_from(["llama", "nemotron_h", "qwen3_next", "jamba", "deepseek_v3", "gemma4", "M*E", "fp8", "modelopt"])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8), st.sampled_from([1, 2, 4]))
def test_whatever_is_written_the_answer_is_a_config_or_one_error(changed, ranks):
    try:
        config = parse(json.loads(json.dumps({**BASE, **changed})), "x")
        made = layout(config, Engine(1024, NEWEST, ranks=ranks))
        assert of_config(config, ranks=ranks).total_bytes > 0
    except UsageError:
        return
    assert made.block_bytes > 0
    assert made.tokens(1 << 40) >= 0


def test_states_are_shared_by_ranks():
    state = State("mamba2", 4096, 4, heads=64, head_dim=64, state_size=128, groups=8)
    assert state.recurrent_numbers(2) * 2 == state.recurrent_numbers(1) == 64 * 64 * 128
    assert state.convolution_numbers(1, 0) == (4096 + 2 * 8 * 128) * 3
    one_group = State("mamba2", 4096, 4, heads=64, head_dim=64, state_size=128, groups=1)
    assert one_group.convolution_numbers(2, 0) == (4096 + 2 * 2 * 128) // 2 * 3
