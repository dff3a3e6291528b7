"""Families with special caches, compared with public logs and vLLM's source."""

from __future__ import annotations

import pytest
from docgen import fit_families
from docgen.fit_weights import config

from sparkcluster.errors import UsageError
from sparkcluster.fit import defaults
from sparkcluster.fit.config import parse
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.kv import layout

GLM, FLASH, M3 = "nvidia/GLM-5.2-NVFP4", "deepseek-ai/DeepSeek-V4-Flash", "MiniMaxAI/MiniMax-M3"


def of(repository, **changes):
    return parse({**config(repository), **changes}, repository)


def engine(context=131_072, **changes):
    return EngineSettings(context, **{"version": defaults.NEWEST, **changes})


@pytest.mark.parametrize("each", fit_families.logged(), ids=lambda each: each.what)
def test_predictions_are_within_half_a_percent_of_logged_figures(each):
    assert abs(each.error) <= fit_families.WITHIN


def test_glm_selects_tokens_in_the_configured_layers_and_shares_them_with_the_others():
    found = [at for at, cache in enumerate(of(GLM).caches) if cache.index_dim]
    assert found == [0, 1, 2, *range(6, 78, 4)]
    pattern = "F" + "S" * 77
    assert [at for at, cache in enumerate(of(GLM, index_topk_pattern=pattern).caches) if cache.index_dim] == [0]
    plain = of("deepseek-ai/DeepSeek-V3.2")
    assert layout(plain, engine()).block_bytes == 64 * 61 * (656 + 132)


@pytest.mark.parametrize(("ranks", "dtype"), [(1, "fp8"), (4, "auto")])
@pytest.mark.parametrize("repository", [GLM, FLASH])
def test_sparse_attention_takes_the_same_on_each_rank_with_any_dtype(repository, ranks, dtype):
    one = layout(of(repository), engine())
    found = layout(of(repository), engine(ranks=ranks, kv_dtype=dtype))
    assert (found.block_bytes, found.request_blocks) == (one.block_bytes, one.request_blocks)


@pytest.mark.parametrize("repository", [GLM, FLASH])
def test_an_unsupported_dtype_of_sparse_attention_is_refused(repository):
    with pytest.raises(UsageError, match="unsupported KV cache dtype of sparse attention: nvfp4"):
        layout(of(repository), engine(kv_dtype="nvfp4"))


def test_a_request_of_deepseek_v4_needs_its_windows_for_every_token_in_flight():
    """0.32, context 131,072: 512 blocks, and of 16,384 tokens 2 x 259 windows, 4,099 and 2,065 states."""
    assert layout(of(FLASH), engine()).request_blocks == 512 + 2 * 259 + 4_099 + 2_065
    few = layout(of(FLASH), engine(batched_tokens=2048))
    assert few.request_blocks == 512 + 2 * 67 + 1_027 + 529
    stages = layout(of(FLASH), engine(stages=2))
    assert stages.block_bytes < layout(of(FLASH), engine()).block_bytes * 0.53


@pytest.mark.parametrize(
    ("repository", "changes", "message"),
    [
        (FLASH, {"compress_ratios": [4] * 12}, "names 12 layers"),
        (FLASH, {"model_type": "deepseek_v41"}, "Engram"),
        (M3, {"model_type": "somebody_s"}, "the keys that its sparse attention selects by"),
        ("moonshotai/Kimi-K2-Instruct", {"index_topk": 2048}, "the keys that its sparse attention selects by"),
    ],
)
def test_an_unknown_family_is_refused_and_not_computed_as_another(repository, changes, message):
    with pytest.raises(UsageError, match=message):
        layout(of(repository, **changes), engine())
