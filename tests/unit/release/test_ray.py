"""Whether Ray is copied to nodes: the same decision at every check, whatever a package index does in between."""

from __future__ import annotations

import pytest

from sparkcluster.facts.collect import Collected
from sparkcluster.inspect.cluster import assess, changed
from sparkcluster.plan.image import ray_name

TWO = {"alpha": "192.168.86.11", "beta": "192.168.86.12"}
INSIDE = {"python": "/usr/bin/python3", "python_version": "3.12.3", "platform": "manylinux_2_39_aarch64",
          "version": "0.18.0"}  # fmt: skip
IMAGE = {"reference": "vllm/vllm-openai:v0.18.0", "id": "sha256:1", "architecture": "arm64", "inside": INSIDE}


@pytest.fixture
def view(spark, cluster):
    """The view of two Sparks whose image has no Ray; ``changes`` are facts by node."""

    def make(*, executor="auto", bring_ray=None, **changes):
        facts = {
            name: spark({"enp1s0f0np0": f"10.1.0.{place}/24"}, image=IMAGE, **changes.get(name, {}))
            for place, name in enumerate(TWO, 11)
        }
        spec = cluster(TWO, playbook={"executor": executor})
        return changed(assess(spec, Collected(facts, {}), facts), facts, bring_ray=bring_ray)

    return make


def running(view, *, record=True):
    """Facts of both nodes while the plan of ``view`` runs."""
    document = view.plan.as_json()
    return {
        name: {
            "ranks": [{"name": rank.name, "state": "running", "labels": rank.labels} for rank in node.containers],
            "release": {"number": 1, "plan_hash": view.plan.hash, "record": {"plan": document}} if record else None,
        }
        for name, node in view.plan.nodes.items()
    }


def staged(view):
    return ray_name(next(iter(view.facts.values())).image.inside)


def test_a_release_running_without_ray_stays_so_although_ray_is_now_available(view):
    fallen_back = view(bring_ray=False)
    assert fallen_back.plan.groups[0].executor == "native"
    for record in (True, False):
        again = view(**running(fallen_back, record=record))
        assert again.plan.hash == fallen_back.plan.hash
    # another cluster of the same user has copied it here since then
    changes = running(fallen_back)
    changes["alpha"]["rays"] = (staged(fallen_back),)
    assert view(**changes).plan.hash == fallen_back.plan.hash


def test_a_release_running_with_ray_has_the_same_plan_at_the_next_check(view):
    first = view()
    for rays in ((staged(first),), ()):
        changes = running(first)
        for change in changes.values():
            change["rays"] = rays
        assert view(**changes).plan.hash == first.plan.hash
