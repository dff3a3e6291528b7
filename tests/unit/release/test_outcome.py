"""What a release remembers of its start."""

from __future__ import annotations

from sparkcluster.plan.records import recorded_release
from sparkcluster.release.outcome import last_start_s


def test_the_last_start_counts_where_model_and_image_are_the_same(world):
    one = world()
    plan = one.plan(3)
    one.run(plan).record(plan, 3)
    newest = recorded_release(one.spec.inventory, one.facts)
    assert newest is not None
    newest.record["groups"]["default"]["measured"] = {"start_s": 66.4}
    assert last_start_s(newest, plan, "default") == 66.4
    assert last_start_s(None, plan, "default") is None
    other = world(playbook={"image": "vllm/vllm-openai:v0.32.0"}).plan(4)
    assert other.image != plan.image
    assert last_start_s(newest, other, "default") is None
