"""Whether it fits: the measured tables, the two directions of the question, and what is advised."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest
from docgen import fit_page, fit_ranges, fit_weights

from sparkcluster.engines.vllm import arguments, defaults, kv
from sparkcluster.engines.vllm.fit import fit, graphs, largest_context
from sparkcluster.engines.vllm.kv import layout
from sparkcluster.engines.vllm.reported import of_engine
from sparkcluster.engines.vllm.versions import of_text
from sparkcluster.engines.vllm.weights import Weights, of_config, of_tensors
from sparkcluster.models.config import parse
from sparkcluster.models.safetensors import Tensor
from sparkcluster.models.source import GIB, spark
from sparkcluster.spec.load import load_playbook
from sparkcluster.spec.playbook import Playbook
from tests.unit.models.llama import LLAMA_70B

Engine = functools.partial(kv.Engine, version=defaults.NEWEST)
CONFIG = parse(LLAMA_70B, "llama")
SMALL = Weights(10 * GIB, 10 * GIB, counted=True)

CELLS = [*fit_page.qwen_cells(), *fit_page.nemotron_cells()]
JUDGED = [cell for cell in CELLS if not cell.about]


@pytest.mark.parametrize("cell", JUDGED, ids=lambda cell: f"{cell.where}: {cell.what}")
def test_a_measured_cell_is_within_a_tenth(cell):
    assert abs(cell.error) <= fit_page.WITHIN


def test_most_cells_are_judged_and_few_set_a_constant():
    assert len(JUDGED) >= 25
    assert sum(cell.set_by for cell in JUDGED) <= 5


@pytest.mark.parametrize("each", fit_weights.published(), ids=lambda each: each.model)
def test_weights_from_the_config_alone_are_within_a_twentieth_of_what_was_published(each):
    assert abs(each.error) <= fit_weights.WITHIN


def test_it_starts_where_it_started():
    assert all(says == ("fits" if started else "does not fit") for _, started, says in fit_page.starts())


@pytest.mark.parametrize("pool", fit_ranges.pools(), ids=lambda pool: f"{pool.what} {pool.unit}")
def test_a_published_cache_is_inside_the_range_and_no_verdict_contradicts_it(pool):
    assert pool.inside


@pytest.mark.parametrize("group", [32, 128])
def test_a_start_that_failed_by_a_hair_is_too_close_to_say(group):
    """Which groups the checkpoint has was not published: the verdict holds with both."""
    failed, started = fit_ranges.minimax(0.80, group), fit_ranges.minimax(0.85, group)
    assert failed.verdict == "too close to say"
    assert started.verdict != "does not fit"
    assert failed.least_bytes <= 22.5 * GIB <= failed.most_bytes
    assert started.least_bytes <= 28.74 * GIB <= started.most_bytes
    assert failed.advice[0].startswith(("set gpu-memory-utilization", "set max-model-len"))


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 102),
        ({"sequences": 4}, 7),
        ({"sequences": 4, "drafted": 3}, 12),
        ({"largest_graph": 8}, 8),
        ({"eager": True}, 0),
        ({"profiles_graphs": False}, 0),
        ({"version": (0, 19)}, 0),
    ],
)
def test_graphs_are_counted_as_vllm_profiles_them(changed, count):
    """51 sizes up to 512, as its logs have them, and as many again for decoding alone."""
    assert graphs(dataclasses.replace(Engine(8192), **changed)) == count


def test_a_loader_that_keeps_memory_is_counted():
    def pool(loader):
        return fit(CONFIG, Engine(8192, loader=loader), SMALL, spark(), utilization=0.85).pool_bytes

    assert pool("auto") - pool("instanttensor") == pytest.approx(4.43 * GIB, rel=0.02)


@pytest.mark.parametrize("requests", [1, 7])
@pytest.mark.parametrize("context", [4096, 131072])
def test_the_smallest_utilization_is_the_smallest(requests, context):
    def at(utilization):
        return fit(CONFIG, Engine(context), SMALL, spark(), utilization=utilization, requests=requests)

    smallest, safe = at(0.85).smallest, at(0.85).safe
    needed = at(0.85).layout.bytes_for(requests)
    assert at(smallest).pool_bytes >= needed > at(smallest - 0.01).pool_bytes
    if safe > 0.9:
        return  # the system would starve, whatever a step takes
    assert at(smallest).verdict == "too close to say"
    assert (at(safe).verdict, at(safe - 0.01).verdict) == ("fits", "too close to say")
    assert at(None).utilization == safe


def test_the_longest_context_is_the_longest():
    engine = Engine(131072)
    longest = largest_context(CONFIG, engine, 20 * GIB, 2)
    assert 0 < longest < 131072

    def needs(context):
        return layout(CONFIG, dataclasses.replace(engine, context=context)).bytes_for(2)

    assert needs(longest) <= 20 * GIB < needs(longest + 1)


def test_a_model_too_large_for_one_spark_is_sent_to_two():
    whole = of_config(CONFIG)
    assert whole.total_bytes == pytest.approx(140e9, rel=0.05)
    found = fit(CONFIG, Engine(8192), whole, spark(), utilization=0.85)
    assert found.verdict == "does not fit"
    assert "more than the" in found.problems[0]
    assert "serve it on 2 Sparks: tensor_parallel 2" in found.advice
    shared = fit(CONFIG, Engine(8192, ranks=2), of_config(CONFIG, ranks=2), spark(), utilization=0.85)
    assert shared.verdict == "fits"


def test_a_context_too_long_is_told_with_one_that_fits():
    weights = Weights(95 * GIB, 95 * GIB, counted=True)
    found = fit(CONFIG, Engine(131072, sequences=4), weights, spark(), utilization=0.85)
    advised = next(line for line in found.advice if line.startswith("set max-model-len to"))
    length = int(advised.split()[3].rstrip(","))
    again = fit(CONFIG, Engine(length, sequences=4), weights, spark(), utilization=float(advised.rsplit(" ", 1)[1]))
    assert again.verdict == "fits"


def test_a_utilization_that_starves_the_system_is_refused_and_one_near_it_warned_of():
    starved = fit(CONFIG, Engine(8192), SMALL, spark(), utilization=0.97)
    assert "would be left for the system" in starved.problems[0]
    assert starved.advice[0].startswith("set gpu-memory-utilization to 0.9")
    near = fit(CONFIG, Engine(8192), SMALL, spark(), utilization=0.92)
    assert near.verdict == "fits"
    assert "above 0.90" in near.advice[0]
    assert fit(CONFIG, Engine(8192), SMALL, spark(), utilization=0.85).advice == ()


def test_the_parts_of_a_spark_add_up():
    found = fit(CONFIG, Engine(8192), SMALL, spark(), utilization=0.5)
    assert found.weights.rank_bytes + found.runtime_bytes + found.pool_bytes == found.budget_bytes
    assert found.machine.visible_bytes == pytest.approx(130.6e9, rel=0.001)


BUNDLED = sorted((Path(__file__).parents[4] / "playbooks").glob("*.yaml"))


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_the_arguments_of_every_bundled_playbook_are_understood(path):
    written = load_playbook(path)
    made = arguments.engine(written, CONFIG, version=defaults.NEWEST)
    assert made.context == written.args.get("max-model-len", CONFIG.context)
    assert 0 < arguments.utilization(written, made.version) <= 1
    assert made.drafted >= 0


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.20.0", (0, 20, 0)),
        ("vllm/vllm-openai:0.23.1-aarch64", (0, 23, 1)),
        ("vllm/vllm-openai:nightly", None),
        ("vllm/vllm-openai:cu130-nightly", None),
        ("nvcr.io/nvidia/vllm:25.12.post1-py3", (0, 11, 1)),
        ("nvcr.io/nvidia/vllm:26.04-py3", (0, 19, 0)),
        ("localhost:5000/mine@sha256:00", None),
        (None, None),
    ],
)
def test_the_version_of_an_image_is_its_tags_or_unknown(image, version):
    assert of_engine(image).exact == version


@pytest.mark.parametrize(
    ("text", "version"), [("0.18.1rc1", (0, 18, 1)), ("v0.32.0+cpu", (0, 32, 0)), ("dev", None), ("1.2", (1, 2, 0))]
)
def test_a_version_is_read(text, version):
    assert of_text(text).exact == version


def tensors(**shapes):
    size = 2
    return [
        Tensor(name.replace("__", "."), "BF16", shape, size * (shape[0] * shape[1] if len(shape) == 2 else shape[0]))
        for name, shape in shapes.items()
    ]


def test_ranks_share_matrices_and_each_has_its_norms():
    config = dataclasses.replace(CONFIG, vocabulary=100, layers=1)
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


def test_key_value_heads_are_replicated_where_there_are_too_few():
    checkpoint = tensors(model__layers__0__self_attn__k_proj__weight=(1024, 64))
    sixteen = of_tensors(checkpoint, CONFIG, ranks=16).rank_bytes
    assert sixteen == 1024 * 64 * 2 / 8


def test_drafts_and_a_tied_output_are_counted_only_where_they_are_loaded():
    checkpoint = tensors(mtp__layers__0__weight=(64, 64), model__layers__99__weight=(64, 64), lm_head__weight=(100, 64))
    tied = dataclasses.replace(CONFIG, tied=True)
    assert of_tensors(checkpoint, tied).rank_bytes == 0
    assert of_tensors(checkpoint, tied, drafts=True).rank_bytes == 2 * 64 * 64 * 2


@pytest.mark.parametrize(
    ("image", "args", "env", "falls_back"),
    [
        ("vllm/vllm-openai:v0.18.1", {}, {}, True),
        ("vllm/vllm-openai:v0.19.0", {}, {}, False),
        ("vllm/vllm-openai:v0.18.1", {"moe-backend": "marlin"}, {}, False),
        ("vllm/vllm-openai:v0.18.1", {}, {"VLLM_NVFP4_GEMM_BACKEND": "marlin"}, False),
        ("vllm/vllm-openai:v0.18.1", {}, {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}, False),
    ],
)
def test_flashinfer_s_detour_is_counted_where_it_is_taken(image, args, env, falls_back):
    playbook = Playbook.model_validate({"name": "x", "model": {"id": "a/b"}, "image": image, "args": args, "env": env})
    config = parse(fit_page.NEMOTRON, "nemotron")
    engine = arguments.engine(playbook, config, version=of_engine(image).exact)
    assert engine.falls_back is falls_back
    plain = fit(config, dataclasses.replace(engine, falls_back=False), SMALL, spark(), utilization=0.3)
    found = fit(config, engine, SMALL, spark(), utilization=0.3)
    assert (found.left_bytes == plain.left_bytes) is not falls_back
    assert any("marlin" in line for line in found.advice) is falls_back
