"""Fit, checks, rules and the plan use the same table, for every version and every tag."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import Context
from sparkcluster.engines.vllm import arguments, memory, planned, reported, versions
from sparkcluster.engines.vllm.rules.served import Served
from sparkcluster.errors import PlanError
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import WeightFile, Weights
from sparkcluster.fit import defaults
from sparkcluster.fit.source import GIB, Machine, Source
from sparkcluster.fit.verdict import VERDICTS
from sparkcluster.plan.build import build
from tests.unit.fit.llama import LLAMA_8B

NODE = Machine(121 * GIB, 121 * GIB)
RELEASES = ["0.11.1", "0.18.1", "0.28.0"]
IMAGES = [
    *(f"nvcr.io/nvidia/vllm:{tag}-py3" for tag in ("25.09", "25.12.post1", "26.04", "26.07", "27.02")),
    *(f"vllm/vllm-openai:{tag}" for tag in ("nightly", *(f"v{release}" for release in RELEASES))),
    "registry.example/engine:7",
]


@pytest.fixture(params=IMAGES)
def spec(request, cluster):
    """A playbook without gpu-memory-utilization, on different images."""
    written = {"image": request.param, "args": {"max-model-len": 8192}, "model": {"path": "/models/llama"}}
    return cluster({"alpha": "192.168.86.11"}, playbook=written)


def computed(spec, facts=()):
    return memory.of_playbook(spec.playbook, Source("llama", LLAMA_8B, None), NODE, facts=facts)


def test_the_default_utilization_is_the_same_everywhere(spec):
    planned = computed(spec)
    assert planned.versions == reported.of_engine(spec.playbook.image)
    possible = planned.versions.utilizations
    assert {planned.fit.utilization, planned.best.utilization} <= set(possible)
    assert arguments.claimed(spec.playbook) == possible[-1]
    warned = any(finding.code == "SM121-060" for finding in checks.check_written(spec))
    assert warned == (planned.versions.since(*defaults.SINCE["utilization is 0.92"]) is True)
    playbook = arguments.beside_others(spec.playbook)
    beside = checks.check_written(dataclasses.replace(spec, playbook=playbook))
    assert "SM121-060" not in {finding.code for finding in beside}, "it takes what its model needs"


def test_an_unknown_version_is_reported_and_never_assumed_to_be_the_newest(spec):
    planned = computed(spec)
    notes = [line for line in planned.left_out if str(planned.versions) in line]
    if planned.versions.exact is not None:
        assert not notes
        assert planned.fit == planned.best
        return
    assert "computed for" in notes[0]
    by_version = {version: computed(spec, [reporting(version)]).fit for version in planned.versions.candidates}
    assert planned.fit.smallest == max(fit.smallest for fit in by_version.values())
    assert planned.fit.verdict == min((fit.verdict for fit in by_version.values()), key=VERDICTS.index)


def reporting(version):
    """Facts of a node whose engine reports ``version``."""
    return Facts.model_construct(engine=EngineFacts.model_construct(version=versions.dotted(version)), image=None)


@pytest.mark.parametrize("version", [*RELEASES, "0.27.1+nv"])
def test_a_nodes_reported_version_precedes_the_tag_everywhere(spec, spark, version):
    image = spark().image
    inside = image.inside.model_copy(update={"version": version})
    weights = Weights(
        path="/models/llama", config=LLAMA_8B, files=(WeightFile(name="model.safetensors", size_bytes=16 * GIB),)
    )
    node = spark().model_copy(update={"image": image.model_copy(update={"inside": inside}), "weights": weights})
    facts = {"alpha": node}
    exact = versions.numbers(version)
    args = {**spec.playbook.args, "gpu-memory-utilization": "auto"}
    auto = spec.__class__(
        spec.inventory, spec.playbook.model_copy(update={"args": args}), spec.inventory_path, spec.playbook_path
    )
    made = build(auto, facts, topology.build(auto, facts), release=1)
    words = next(iter(made.nodes.values())).containers[0].launcher["engine"]

    planned = memory.of_playbook(
        auto.playbook,
        Source("llama", LLAMA_8B, size_bytes=16 * GIB),
        Machine(node.memory.total_bytes // GIB * GIB, node.memory.total_bytes // GIB * GIB),
        facts=[node],
        requests=arguments.concurrent(auto.playbook),
    )
    assert planned.fit.engine.version == exact
    assert float(words[words.index("--gpu-memory-utilization") + 1]) == planned.fit.safe
    assert Served(Context(spec, facts, topology.build(spec, facts))).versions.exact == exact
    assert arguments.claimed(spec.playbook, node) == defaults.utilization(exact)


def test_auto_requires_the_drafter_and_counts_it(cluster, spark):
    """So the number is the same before and after the drafter is staged."""
    draft = {"method": "eagle3", "model": "a/drafter", "num_speculative_tokens": 3}
    args = {"gpu-memory-utilization": "auto", "speculative-config": draft}
    spec = cluster({"solo": "h"}, playbook={"args": args})

    def weights(config, gib):
        return Weights(path="/m", config=config, files=(WeightFile(name="model.safetensors", size_bytes=gib * GIB),))

    def taken(companions):
        node = spark().model_copy(update={"weights": weights(LLAMA_8B, 16), "companions": companions})
        facts = {"solo": node}
        found = planned.planned(spec, facts, topology.build(spec, facts))
        return found.playbook.args["gpu-memory-utilization"]

    for absent in ({}, {"a/drafter": Weights(path=None)}):
        with pytest.raises(PlanError, match="needs the weights of the draft model a/drafter, which are not on any"):
            taken(absent)
    small, large = (taken({"a/drafter": weights(None, gib)}) for gib in (1, 13))
    assert round(large - small, 2) == 0.10
