"""Families with caches of their own, against what others logged of them and what vLLM's source says."""

from __future__ import annotations

import pytest
from docgen import fit_families
from docgen.fit_weights import config

from sparkcluster.engines.vllm import defaults
from sparkcluster.engines.vllm.kv import layout
from sparkcluster.engines.vllm.kv_pages import Engine
from sparkcluster.engines.vllm.weights import of_config, of_tensors
from sparkcluster.errors import UsageError
from sparkcluster.models.config import parse
from sparkcluster.models.safetensors import Tensor

GLM, FLASH, M3 = "nvidia/GLM-5.2-NVFP4", "deepseek-ai/DeepSeek-V4-Flash", "MiniMaxAI/MiniMax-M3"


def of(repository, **changes):
    return parse({**config(repository), **changes}, repository)


def engine(context=131_072, **changes):
    return Engine(context, **{"version": defaults.NEWEST, **changes})


@pytest.mark.parametrize("each", fit_families.logged(), ids=lambda each: each.what)
def test_a_logged_figure_is_within_half_a_percent(each):
    assert abs(each.error) <= fit_families.WITHIN


def test_glm_selects_tokens_in_the_layers_that_its_config_counts_and_shares_them_in_the_others():
    found = [at for at, cache in enumerate(of(GLM).caches) if cache.index_dim]
    assert found == [0, 1, 2, *range(6, 78, 4)]
    pattern = "F" + "S" * 77
    assert [at for at, cache in enumerate(of(GLM, index_topk_pattern=pattern).caches) if cache.index_dim] == [0]
    plain = of("deepseek-ai/DeepSeek-V3.2")
    assert layout(plain, engine()).block_bytes == 64 * 61 * (656 + 132)


@pytest.mark.parametrize("dtype", ["auto", "fp8", "fp8_e4m3", "fp8_ds_mla"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("repository", [GLM, FLASH])
def test_sparse_attention_takes_the_same_on_each_rank_whatever_the_dtype(repository, ranks, dtype):
    one = layout(of(repository), engine())
    found = layout(of(repository), engine(ranks=ranks, kv_dtype=dtype))
    assert (found.block_bytes, found.request_blocks) == (one.block_bytes, one.request_blocks)


@pytest.mark.parametrize("repository", [GLM, FLASH])
@pytest.mark.parametrize("dtype", ["nvfp4", "float16", "int4"])
def test_a_dtype_that_sparse_attention_does_not_have_is_refused(repository, dtype):
    with pytest.raises(UsageError, match=f"unsupported KV cache dtype {dtype} of sparse attention"):
        layout(of(repository), engine(kv_dtype=dtype))


def test_a_request_of_deepseek_v4_holds_its_windows_for_every_token_in_flight():
    """0.32, context 131,072: 512 blocks, and of 16,384 tokens 2 x 259 windows, 4,099 and 2,065 states."""
    assert layout(of(FLASH), engine()).request_blocks == 512 + 2 * 259 + 4_099 + 2_065
    few = layout(of(FLASH), engine(batched_tokens=2048))
    assert few.request_blocks == 512 + 2 * 67 + 1_027 + 529
    stages = layout(of(FLASH), engine(stages=2))
    assert stages.block_bytes < layout(of(FLASH), engine()).block_bytes * 0.53


def test_minimax_m3_keeps_a_key_of_each_token_where_it_selects():
    sixteen, eight = (layout(of(M3), engine(kv_dtype=dtype)) for dtype in ("auto", "fp8"))
    keys, selected = 60 * 2 * 4 * 128, 57 * 128 * 2
    assert sixteen.block_bytes == 128 * (2 * keys + selected)
    assert eight.block_bytes == 128 * (keys + selected)
    assert layout(of(M3), engine(ranks=4)).block_bytes == 128 * (2 * keys // 4 + selected)


@pytest.mark.parametrize(
    ("repository", "changes", "message"),
    [
        (FLASH, {"compress_ratios": [4] * 12}, "names 12 layers"),
        (FLASH, {"compress_ratios": [0, 8] * 22}, "ratio that is not supported: 8"),
        (FLASH, {"head_dim": 256}, "unsupported head_dim 256"),
        (FLASH, {"model_type": "deepseek_v41"}, "Engram"),
        (M3, {"sparse_attention_config": {"sparse_index_dim": 128, "sparse_attention_freq": [1]}}, "names 1 layers"),
        (M3, {"model_type": "somebody_s"}, "the keys that its sparse attention selects by"),
        ("moonshotai/Kimi-K2-Instruct", {"index_topk": 2048}, "the keys that its sparse attention selects by"),
    ],
)
def test_what_is_not_known_is_refused_and_not_computed_as_something_else(repository, changes, message):
    with pytest.raises(UsageError, match=message):
        layout(of(repository, **changes), engine())


def test_experts_of_deepseek_v4_have_the_bits_that_are_named_beside_its_quantization():
    four, nvfp4, eight = (
        of_config(found).total_bytes
        for found in (of(FLASH), of("nvidia/DeepSeek-V4-Flash-NVFP4"), of(FLASH, expert_dtype="fp8"))
    )
    experts = 43 * 256 * 3 * 2048 * 4096
    drafted = 256 * 3 * 2048 * 4096
    assert nvfp4 - four == pytest.approx((experts + drafted) * 0.25 / 8, rel=0.001)
    assert eight - four == pytest.approx((experts + drafted) * 3.75 / 8, rel=0.001)


def test_what_every_rank_holds_whole_of_sparse_attention_is_not_shared():
    names = ("indexer.wq_b", "indexer.compressor.wkv", "compressor.wgate", "wq_a", "wkv", "wq_b", "wo_a")
    tensors = [Tensor(f"layers.2.attn.{name}.weight", "BF16", (64, 64), 8192) for name in names]
    assert of_tensors(tensors, of(FLASH), ranks=2).rank_bytes == 5 * 8192 + 2 * 4096


def test_glm_4_5_has_the_weights_and_keys_that_its_makers_say():
    """GLM-4.5-Air: 106 billion parameters; its config.json as modelscope/ms-swift's users printed it."""
    air = {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": 46, "hidden_size": 4096,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1, "vocab_size": 151552, "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }  # fmt: skip
    found = parse(air, "GLM-4.5-Air")
    assert of_config(found).rank_bytes / 2 == pytest.approx(106e9, rel=0.01)
    assert layout(found, engine()).token_bytes == pytest.approx(46 * 2 * 8 * 128 * 2, rel=0.001)
