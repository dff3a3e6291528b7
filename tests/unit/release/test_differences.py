"""Differences between a running group and the plan: their class and cost."""

from __future__ import annotations

import pytest

from sparkcluster.facts.collect import Collected
from sparkcluster.inspect.cluster import assess
from sparkcluster.release.states import State, differences, group_states

OTHER_IMAGE = "sha256:" + "ff" * 32
REVISION = "cd" * 20


def view_of(world):
    return assess(world.spec, Collected(world.facts, {}), world.facts)


def found(world):
    """Class and cost of all differences of the only group, and its lines by class."""
    view = view_of(world)
    (group,) = group_states(view).values()
    differing = differences(view, group)
    return {each.kind: each.cost for each in differing}, {each.kind: each.lines for each in differing}


@pytest.fixture
def serving(world):
    """``serving(names, **changes)``: a cluster whose release 3 runs, with the weights on every node."""

    def make(names="alpha beta", **changes):
        cluster = world(names, **changes).staged()
        plan = cluster.plan(3)
        return cluster.run(plan).record(plan, 3)

    return make


@pytest.fixture
def written(world):
    """``written(cluster, names, **changes)``: another inventory and playbook for the same nodes."""

    def make(cluster, names="alpha beta", **changes):
        other = world(names, **changes)
        other.facts = {name: cluster.facts.get(name, facts) for name, facts in other.facts.items()}
        return other

    return make


def with_image(cluster, *nodes, **image):
    for name in nodes:
        cluster.change(name, image=cluster.facts[name].image.model_dump() | image)
    return cluster


def test_another_image_costs_a_restart_if_all_nodes_have_it(serving, written):
    newer = written(serving(), playbook={"image": "vllm/vllm-openai:v0.19.0"})
    costs, lines = found(with_image(newer, "alpha", "beta", id=OTHER_IMAGE))
    assert costs == {"image": "restart"}
    assert lines["image"][:2] == (
        "image: vllm/vllm-openai:v0.18.0 → vllm/vllm-openai:v0.19.0",
        "every node: image: 5a5a5a5a5a5a → ffffffffffff",
    )


def test_another_image_costs_a_download_if_a_node_lacks_it(serving, written):
    newer = written(serving(), playbook={"image": "vllm/vllm-openai:v0.19.0"})
    with_image(newer, "alpha", "beta", id=OTHER_IMAGE)
    newer.change("alpha", image=None)
    assert found(newer)[0]["image"] == "download"


def test_a_tag_rebuilt_on_the_head_is_another_image_for_every_node(serving):
    costs, lines = found(with_image(serving(), "alpha", id=OTHER_IMAGE, layers=["sha256:" + "ef" * 32]))
    assert (costs, lines["image"][0]) == ({"image": "download"}, "every node: image: 5a5a5a5a5a5a → ffffffffffff")


def test_other_weights_cost_a_download_until_every_node_has_them(serving, written):
    other = written(serving(), playbook={"model": {"id": "Qwen/Qwen3-8B", "revision": REVISION}})
    empty = other.facts["alpha"].weights.model_dump() | {"path": None, "files": []}
    other.change("beta", weights=empty)
    costs, lines = found(other)
    assert costs == {"weights": "download"}
    assert any(REVISION in line for line in lines["weights"])
    assert found(other.staged())[0] == {"weights": "restart"}


@pytest.mark.parametrize(
    ("playbook", "line"),
    [
        ({"args": {"max-num-seqs": 4}}, "alpha: engine + --max-num-seqs 4"),
        ({"env": {"A": "1"}}, "every node: env A: unset → 1"),
        ({"mounts": [{"source": "/data/a", "target": "/a"}]}, "every node: mount /a: none → /data/a, read-only"),
    ],
)
def test_arguments_cost_a_restart(serving, written, playbook, line):
    costs, lines = found(written(serving(), playbook=playbook))
    assert costs == {"arguments": "restart"}
    assert line in lines["arguments"]


def test_a_drafter_that_a_node_lacks_is_a_download(serving, written):
    speculative = {"method": "eagle3", "model": "a/drafter", "num_speculative_tokens": 3}
    edited = written(serving(), playbook={"args": {"speculative-config": speculative}})
    assert found(edited)[0] == {"weights": "download", "arguments": "restart"}
    for name in edited.facts:
        edited.change(name, companions={"a/drafter": edited.facts[name].weights.model_dump()})
    assert found(edited)[0] == {"weights": "restart", "arguments": "restart"}


def test_descriptions_cost_nothing_and_do_not_change_the_plan(serving, written):
    edited = written(serving(), playbook={"verify": {"expect": "204"}, "description": "x", "request": {"top_k": 3}})
    costs, lines = found(edited)
    assert costs == {"text": "nothing"}
    assert [line.split()[0] for line in lines["text"]] == ["verify", "description", "request"]
    (group,) = group_states(view_of(edited)).values()
    assert group.state is State.SERVING
