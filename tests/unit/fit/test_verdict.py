"""The verdict of fit: measured tables, both directions of the question, and advice."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from docgen import fit_page, fit_ranges, fit_weights

from sparkcluster.fit import defaults, kv
from sparkcluster.fit.config import parse
from sparkcluster.fit.kv import layout
from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import GIB, spark
from sparkcluster.fit.verdict import fit, graphs, largest_context
from sparkcluster.fit.weights import Weights, of_tensors
from tests.unit.fit.llama import LLAMA_70B

settings = functools.partial(kv.EngineSettings, version=defaults.NEWEST)
CONFIG = parse(LLAMA_70B, "llama")
SMALL = Weights(10 * GIB, 10 * GIB, counted=True)

CELLS = [*fit_page.qwen_cells(), *fit_page.nemotron_cells()]
JUDGED = [cell for cell in CELLS if not cell.about]


@pytest.mark.parametrize("cell", JUDGED, ids=lambda cell: f"{cell.where}: {cell.what}")
def test_predictions_are_within_a_tenth_of_measurements(cell):
    assert abs(cell.error) <= fit_page.WITHIN


@pytest.mark.parametrize("each", fit_weights.published(), ids=lambda each: each.model)
def test_weights_estimated_from_the_config_are_within_a_twentieth_of_published_sizes(each):
    assert abs(each.error) <= fit_weights.WITHIN


def test_fit_predicts_the_utilizations_at_which_vllm_started():
    assert all(says == ("fits" if started else "does not fit") for _, started, says in fit_page.starts())


@pytest.mark.parametrize("pool", fit_ranges.pools(), ids=lambda pool: f"{pool.what} {pool.unit}")
def test_published_caches_are_inside_the_range_and_agree_with_the_verdict(pool):
    assert pool.inside


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 102),
        ({"sequences": 4, "drafted": 3}, 12),
        ({"largest_graph": 8}, 8),
        ({"eager": True}, 0),
    ],
)
def test_graphs_are_counted_as_vllm_profiles_them(changed, count):
    """51 sizes up to 512, as in its logs, and as many again for decoding alone."""
    assert graphs(dataclasses.replace(settings(8192), **changed)) == count


@pytest.mark.parametrize(("requests", "context"), [(1, 4096), (7, 131072)])
def test_below_the_smallest_utilization_the_model_does_not_fit(requests, context):
    def at(utilization):
        return fit(CONFIG, settings(context), SMALL, spark(), utilization=utilization, requests=requests)

    smallest, safe = at(0.85).smallest, at(0.85).safe
    needed = at(0.85).layout.bytes_for(requests)
    assert at(smallest).pool_bytes >= needed > at(smallest - 0.01).pool_bytes
    if safe > 0.9:
        return  # too little memory for the system, with any size of a step
    assert at(smallest).verdict == "too close to call"
    assert (at(safe).verdict, at(safe - 0.01).verdict) == ("fits", "too close to call")
    assert at(None).utilization == safe


def test_above_the_longest_context_the_model_does_not_fit():
    engine = settings(131072)
    longest = largest_context(CONFIG, engine, 20 * GIB, 2)
    assert 0 < longest < 131072

    def needs(context):
        return layout(CONFIG, dataclasses.replace(engine, context=context)).bytes_for(2)

    assert needs(longest) <= 20 * GIB < needs(longest + 1)


def test_a_utilization_that_starves_the_system_is_refused_and_one_near_it_is_a_warning():
    starved = fit(CONFIG, settings(8192), SMALL, spark(), utilization=0.97)
    assert "would be left for the system" in starved.problems[0]
    assert starved.advice[0].startswith("set gpu-memory-utilization to 0.9")
    near = fit(CONFIG, settings(8192), SMALL, spark(), utilization=0.92)
    assert near.verdict == "fits"
    assert "above 0.90" in near.advice[0]
    assert fit(CONFIG, settings(8192), SMALL, spark(), utilization=0.85).advice == ()


def tensors(**shapes):
    size = 2
    return [
        Tensor(name.replace("__", "."), "BF16", shape, size * (shape[0] * shape[1] if len(shape) == 2 else shape[0]))
        for name, shape in shapes.items()
    ]


def test_ranks_share_matrices_and_each_has_its_norms():
    config = dataclasses.replace(CONFIG, vocabulary=100, shape=dataclasses.replace(CONFIG.shape, layers=1))
    checkpoint = tensors(
        model__embed_tokens__weight=(100, 64),
        lm_head__weight=(100, 64),
        model__layers__0__self_attn__q_proj__weight=(64, 64),
        model__layers__0__self_attn__k_proj__weight=(16, 64),
        model__layers__0__mlp__gate_proj__weight=(128, 64),
        model__layers__0__mlp__gate__weight=(8, 64),
        model__layers__0__input_layernorm__weight=(64,),
    )
    whole = of_tensors(checkpoint, config).rank_bytes
    assert whole == sum(tensor.size_bytes for tensor in checkpoint)
    half = of_tensors(checkpoint, config, ranks=2).rank_bytes
    padded = 2 * (128 * 64 * 2) / 2
    assert half == padded + (64 * 64 + 16 * 64 + 128 * 64) * 2 / 2 + (8 * 64 + 64) * 2
