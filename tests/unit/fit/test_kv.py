"""vLLM's bookkeeping of the KV cache, compared with figures that vLLM logged on Sparks."""

from __future__ import annotations

import functools

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.fit import defaults
from sparkcluster.fit.config import parse
from sparkcluster.fit.kv import layout

settings = functools.partial(defaults.EngineSettings, version=defaults.NEWEST)

GIB = 1 << 30

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
QWEN = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "vision_config": {},
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 40,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "num_experts": 256,
        "moe_intermediate_size": 512,
        "vocab_size": 248320,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
    },
}
DRAFTING = settings(
    65536, version=(0, 23), kv_dtype="fp8", prefix_caching=True, drafted=3, mtp_drafts=True, sequences=4
)


def test_predicted_tokens_of_a_hybrid_model_with_drafts_match_vllms_log():
    """4,843,965 tokens and 73.91x of 65,536 from 76.49 GiB: https://vlaicu.io/posts/dgx-vllm-playbook/."""
    made = layout(parse(QWEN, "qwen"), DRAFTING)
    assert made.tokens(int(76.49 * GIB)) == 4_843_965
    assert round(made.concurrency(int(76.49 * GIB)), 2) == 73.91


def test_ranks_share_kv_heads_and_replicate_the_last():
    config = parse(LLAMA, "llama")
    one_rank, two_ranks, four_ranks = (layout(config, settings(1024, ranks=ranks)).block_bytes for ranks in (1, 2, 4))
    assert (one_rank, four_ranks) == (2 * two_ranks, two_ranks)


def test_a_number_of_ranks_that_does_not_divide_the_heads_is_refused():
    with pytest.raises(UsageError, match="8 attention heads"):
        layout(parse(LLAMA, "llama"), settings(1024, ranks=3))


def test_sliding_windows_need_blocks_for_the_window_and_for_tokens_in_flight():
    """11 full and 22 sliding layers: three groups; each sliding one has (511 + 2 x 1024) tokens and a block."""
    gemma = {**LLAMA, "num_hidden_layers": 33, "sliding_window": 512}
    gemma["layer_types"] = (["sliding_attention"] * 2 + ["full_attention"]) * 11
    made = layout(parse(gemma, "gemma"), settings(8192, batched_tokens=1024))
    assert [(page.kind, count) for page, count in made.groups] == [("sliding", 11), ("sliding", 11), ("full", 11)]
    assert made.request_blocks == 512 + 2 * (-(-(511 + 2048) // 16) + 1)
    old = layout(parse(gemma, "gemma"), settings(8192, batched_tokens=1024, version=(0, 23)))
    assert old.request_blocks == 512 + 2 * (-(-(511 + 1024) // 16) + 1)


def test_a_checkpoint_may_specify_an_fp8_cache():
    quantized = {**LLAMA, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
    assert (
        layout(parse(quantized, "l"), settings(1024)).block_bytes * 2
        == layout(parse(LLAMA, "l"), settings(1024)).block_bytes
    )
