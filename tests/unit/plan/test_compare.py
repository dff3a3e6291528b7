"""Differences between two recorded releases: plan, image, versions, verification and speed."""

from __future__ import annotations

import dataclasses

from sparkcluster.facts.model import ReleaseFact
from sparkcluster.plan.compare import compare

INSIDE = {"python": "/usr/bin/python3", "python_version": "3.12.3", "platform": "linux-aarch64"}


def engine(vllm, **more):
    return {**INSIDE, "version": vllm, "ray_version": "2.51.0", **more}


def image(layers, vllm, **more):
    return {"reference": "i", "id": "sha256:" + layers[-1] * 8, "layers": layers, "inside": engine(vllm), **more}


def released(world, number, **facts):
    """The record of release ``number`` where every node also has ``facts``."""
    for name in world.facts:
        world.change(name, **facts)
    plan = world.plan(number)
    return ReleaseFact(number=number, plan_hash=plan.hash, record=world.document(plan, number))


def test_a_release_records_image_versions_and_speed_of_each_group(world):
    one = world()
    fact = released(one, 1, image=image(["a", "b"], "0.18.0"), driver="580.95.05")
    group = fact.record["groups"]["default"]
    ids, build = dict.fromkeys(("alpha", "beta"), "sha256:" + "b" * 8), one.facts["alpha"].image.build
    assert group["image"] == {"ids": ids, "build": build, "layers": ("a", "b")}
    versions = {"vllm": "0.18.0", "ray": "2.51.0", "driver": "580.95.05"}
    assert group["versions"] == {"alpha": versions, "beta": versions}
    assert group["measured"] == {"ttft_s": 0.5, "tokens_per_s": 20.0, "start_s": None}


def test_versions_changed_on_all_nodes_are_one_line_and_other_lines_name_the_node(world):
    one = world()
    old = released(one, 1, image=image(["a", "b"], "0.18.0"), driver="580.95.05")
    one.change("beta", driver="580.105.08")
    new = released(one, 2, image=image(["a", "c"], "0.19.0"))
    lines = compare(old, new)
    assert "vllm 0.18.0 → 0.19.0" in lines
    assert "driver 580.95.05 → 580.105.08 on beta" in lines
    assert "image: 1 of 2 layers are new" in lines
    assert not [line for line in lines if "ray" in line]
    assert "vllm 0.19.0 → 0.18.0" in compare(new, old)


def test_changes_of_the_playbook_are_listed(world):
    one = world()
    old = released(one, 1)
    one.spec = dataclasses.replace(
        one.spec,
        playbook=one.spec.playbook.model_copy(
            update={
                "args": {"max-model-len": 8192},
                "verify": one.spec.playbook.verify.model_copy(update={"expect": "x"}),
            }
        ),
    )
    lines = compare(old, released(one, 2))
    assert any("--max-model-len" in line for line in lines)
    assert "verify was edited" in lines


def test_the_speed_is_measured_during_the_switch_and_not_from_two_short_answers(world):
    one = world()
    old, new = released(one, 1), released(one, 2)
    measured = new.record["groups"]["default"]["measured"]
    measured |= {"tokens_per_s": 10.0}
    assert compare(old, new) == []
    measured |= {"switch": {"source": 1, "before": 407.1, "after": 366.6}}
    assert compare(old, new) == ["speed: 407.1 → 366.6 tokens/s, 10 % slower"]
    measured["switch"]["source"] = 3
    assert compare(old, new) == []
