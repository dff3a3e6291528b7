"""vLLM's bookkeeping of the KV cache, against figures that vLLM itself logged on Sparks."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from sparkcluster.engines.vllm import defaults, kv_pages
from sparkcluster.engines.vllm.kv import layout
from sparkcluster.errors import UsageError
from sparkcluster.models.config import parse

Engine = functools.partial(kv_pages.Engine, version=defaults.NEWEST)

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
NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "num_hidden_layers": 52,
    "hidden_size": 2688,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "intermediate_size": 1856,
    "vocab_size": 131072,
}
DRAFTING = Engine(65536, version=(0, 23), kv_dtype="fp8", prefix_caching=True, drafted=3, mtp_drafts=True, sequences=4)


def test_a_hybrid_model_with_drafts_has_the_tokens_that_vllm_logged():
    """4,843,965 tokens and 73.91x of 65,536 from 76.49 GiB: https://vlaicu.io/posts/dgx-vllm-playbook/."""
    made = layout(parse(QWEN, "qwen"), DRAFTING)
    assert made.tokens(int(76.49 * GIB)) == 4_843_965
    assert round(made.concurrency(int(76.49 * GIB)), 2) == 73.91


@pytest.mark.parametrize(("gib", "expected"), [(4.2, 292), (15.9, 1111), (89.4, 6247)])
def test_an_older_vllm_counted_blocks_over_groups(gib, expected):
    """292K, 1.1M and 6.2M tokens, and 1,247 requests of 8,192: github.com/Sggin1/DGX-SPARK, nvfp4-guide."""
    made = layout(parse(NEMOTRON, "nemotron"), Engine(8192, version=(0, 18), sequences=1, kv_dtype="fp8"))
    assert round(made.tokens(int(gib * GIB)) / 1000) == expected
    if gib == 89.4:
        assert made.concurrency(int(gib * GIB)) == 1247


@pytest.mark.parametrize(
    "changed",
    [
        {"num_key_value_heads": 4},
        {"head_dim": 128},
        {"linear_num_value_heads": 16},
        {"mamba_ssm_dtype": "bfloat16"},
        {"full_attention_interval": 5},
    ],
)
def test_the_prediction_follows_the_config(changed):
    before = layout(parse(QWEN, "qwen"), DRAFTING).tokens(76 * GIB)
    after = layout(parse({**QWEN, "text_config": {**QWEN["text_config"], **changed}}, "q"), DRAFTING).tokens(76 * GIB)
    assert abs(after - before) / before > 0.02


def test_the_prediction_follows_the_block_size():
    """Blocks are handed out whole: with 1,100 tokens of context, larger ones hold fewer requests."""
    config, engine = parse(LLAMA, "llama"), Engine(1100)
    small, large = (layout(config, dataclasses.replace(engine, block_size=size)).tokens(GIB) for size in (16, 512))
    assert (small - large) / small > 0.02


def test_twice_the_heads_take_twice_the_memory():
    half = layout(parse(LLAMA, "l"), Engine(1024)).tokens(GIB)
    whole = layout(parse({**LLAMA, "num_key_value_heads": 4}, "l"), Engine(1024)).tokens(GIB)
    assert half == pytest.approx(2 * whole, rel=0.001)


def test_ranks_share_heads_and_replicate_the_last_one():
    config = parse(LLAMA, "llama")
    one_rank, two_ranks, four_ranks = (layout(config, Engine(1024, ranks=ranks)).block_bytes for ranks in (1, 2, 4))
    assert (one_rank, four_ranks) == (2 * two_ranks, two_ranks)


def test_ranks_that_do_not_divide_the_heads_are_refused():
    with pytest.raises(UsageError, match="8 attention heads"):
        layout(parse(LLAMA, "llama"), Engine(1024, ranks=3))


def test_windows_need_blocks_for_the_window_and_what_is_in_flight():
    """11 full and 22 sliding layers: three groups; each sliding one holds (511 + 2 x 1024) tokens and a block."""
    gemma = {**LLAMA, "num_hidden_layers": 33, "sliding_window": 512}
    gemma["layer_types"] = (["sliding_attention"] * 2 + ["full_attention"]) * 11
    made = layout(parse(gemma, "gemma"), Engine(8192, batched_tokens=1024))
    assert [(page.kind, count) for page, count in made.groups] == [("sliding", 11), ("sliding", 11), ("full", 11)]
    assert made.request_blocks == 512 + 2 * (-(-(511 + 2048) // 16) + 1)
    old = layout(parse(gemma, "gemma"), Engine(8192, batched_tokens=1024, version=(0, 23)))
    assert old.request_blocks == 512 + 2 * (-(-(511 + 1024) // 16) + 1)


def test_latent_attention_is_whole_on_every_rank():
    deepseek = {**LLAMA, "model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    one_rank, two_ranks = (layout(parse(deepseek, "d"), Engine(4096, ranks=ranks)) for ranks in (1, 2))
    assert one_rank.block_bytes == two_ranks.block_bytes == 4 * 64 * (512 + 64) * 2


def test_an_fp8_cache_holds_twice_as_much():
    config = parse(LLAMA, "llama")
    plain, small = (layout(config, Engine(1024, kv_dtype=dtype)).tokens(GIB) for dtype in ("auto", "fp8"))
    assert small == 2 * plain


def test_a_checkpoint_may_ask_for_fp8():
    quantized = {**LLAMA, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
    assert (
        layout(parse(quantized, "l"), Engine(1024)).block_bytes * 2
        == layout(parse(LLAMA, "l"), Engine(1024)).block_bytes
    )


def test_one_block_is_held_back():
    made = layout(parse(LLAMA, "llama"), Engine(1024))
    assert made.bytes_for(1) == made.request_bytes + made.block_bytes
    assert layout(parse(LLAMA, "llama"), Engine(1024, version=(0, 23))).bytes_for(1) == made.request_bytes


@pytest.mark.parametrize("dtype", ["turboquant_4bit_nc", "int3"])
def test_a_dtype_that_is_not_known_is_refused(dtype):
    with pytest.raises(UsageError, match=dtype):
        layout(parse(LLAMA, "llama"), Engine(1024, kv_dtype=dtype))
