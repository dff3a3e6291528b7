"""gpu-memory-utilization: auto."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster import topology
from sparkcluster.engines.vllm.arguments import beside_others
from sparkcluster.errors import PlanError
from sparkcluster.facts.weights import WeightFile, Weights
from sparkcluster.plan.build import build
from tests.unit.fit.llama import LLAMA_8B

GIB = 1 << 30


@pytest.fixture
def plan(spark, cluster):
    """``plan(args, gib=…)``: the resulting args, with weights of that size on the nodes; None for none."""

    def do(args, *, gib: int | None = 16, names=("alpha",), config=LLAMA_8B, memory=None, siblings=(), chosen=()):
        files = (WeightFile(name="model.safetensors", size_bytes=(gib or 0) * GIB),)
        weights = None if gib is None else Weights(path="/models/llama", config=config, files=files)
        facts = {}
        for number, name in enumerate(names, 11):
            rails = {"enp1s0f0np0": f"192.168.177.{number}/24", "enP2p1s0f0np0": f"192.168.178.{number}/24"}
            node = spark(rails=rails, management=f"192.168.86.{number}/24")
            changed = node.memory.model_copy(update=memory or {})
            facts[name] = node.model_copy(update={"weights": weights, "memory": changed})
        hosts = {name: f"192.168.86.{number}" for number, name in enumerate(names, 11)}
        spec = dataclasses.replace(cluster(hosts, playbook={"args": args}), siblings=siblings)
        if siblings:
            spec = dataclasses.replace(spec, playbook=beside_others(spec.playbook, chosen))
        return build(spec, facts, topology.build(spec, facts), release=1)

    return do


def engine(made):
    """The engine's command line."""
    return next(iter(made.nodes.values())).containers[0].launcher["engine"]


def utilization(made):
    words = engine(made)
    return float(words[words.index("--gpu-memory-utilization") + 1])


AUTO = {"gpu-memory-utilization": "auto", "max-model-len": 32768, "max-num-seqs": 4}


def test_auto_is_a_number_that_fits_the_configured_sequences(plan):
    """16 GiB of weights, 4 x 32,768 tokens of 128 KiB (16 GiB), and the memory of a step, of 121 GiB."""
    assert 0.27 < utilization(plan(AUTO)) < 0.33


@pytest.mark.parametrize(
    ("changed", "more"),
    [({"max-num-seqs": 8}, True), ({"max-model-len": 8192}, False), ({"kv-cache-dtype": "fp8"}, False)],
)
def test_the_estimate_depends_on_context_sequences_and_dtype(plan, changed, more):
    assert (utilization(plan({**AUTO, **changed})) > utilization(plan(AUTO))) is more


def test_the_estimate_does_not_depend_on_free_memory(plan):
    busy = plan(AUTO, memory={"free_bytes": GIB, "available_bytes": GIB, "cached_bytes": 90 * GIB})
    assert busy.hash == plan(AUTO).hash


def test_a_kernel_update_does_not_change_the_plan(plan):
    totals = [127_535_084 * 1024, 127_622_144 * 1024]
    assert len({plan(AUTO, memory={"total_bytes": total}).hash for total in totals}) == 1


def test_an_explicit_number_is_unchanged(plan):
    assert utilization(plan({**AUTO, "gpu-memory-utilization": 0.42})) == 0.42
    assert utilization(plan({"gpu_memory_utilization": "auto"})) > 0


def test_without_the_model_it_is_refused_with_the_command_to_type(plan):
    with pytest.raises(PlanError, match=r"auto of playbook qwen needs the model's config\.json") as caught:
        plan(AUTO, gib=None)
    assert "sparkcluster stage INVENTORY weights" in caught.value.hint
    assert "gpu-memory-utilization: 0.82" in caught.value.hint


def test_a_model_that_does_not_fit_is_refused_with_advice(plan):
    with pytest.raises(PlanError, match="does not fit with 64 concurrent requests"):
        plan({**AUTO, "max-num-seqs": 64, "max-model-len": 131072})


BESIDE = ("embed",)


def test_with_several_models_the_engine_gets_its_cache_in_bytes_and_a_share_that_passes_its_first_check(plan):
    """vLLM checks whether total x utilization is free even if the bytes are set (vllm/v1/worker/utils.py)."""
    for args in (AUTO, {key: value for key, value in AUTO.items() if key != "gpu-memory-utilization"}):
        made = plan(args, siblings=BESIDE)
        words = engine(made)
        cache = int(words[words.index("--kv-cache-memory-bytes") + 1])
        assert cache == 4 * 32768 * 128 * 1024, "auto for a single model: max-num-seqs requests of full context"
        total = 121 * GIB
        assert total * utilization(made) > 16 * GIB + cache
        assert utilization(made) == utilization(plan(AUTO))
        assert plan(args, siblings=("embed", "rerank")).hash == made.hash, "it does not depend on other models"


def test_a_memory_setting_of_the_inventory_is_kept_with_other_models(plan):
    share = {**AUTO, "gpu-memory-utilization": 0.42}
    assert plan(share, siblings=BESIDE, chosen=["args.gpu_memory_utilization"]).hash == plan(share).hash
    assert plan(share, siblings=BESIDE).hash == plan(AUTO, siblings=BESIDE).hash, "the value for a single model"
    words = engine(plan({"max-model-len": 32768, "kv-cache-memory-bytes": "4800M"}, siblings=BESIDE))
    assert words[words.index("--kv-cache-memory-bytes") + 1] == "4800M"
    share = words[words.index("--gpu-memory-utilization") + 1]
    assert float(share) == round(float(share), 2) > (16 * GIB + 4800 * 2**20) / (121 * GIB)


def test_a_single_model_keeps_its_plan(plan):
    assert "--kv-cache-memory-bytes" not in engine(plan(AUTO))
    assert "--gpu-memory-utilization" not in engine(plan({"max-model-len": 32768}))
