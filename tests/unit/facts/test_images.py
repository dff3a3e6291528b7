"""Contents of an image, as reported by each node and cached on this machine."""

from __future__ import annotations

import json

import pytest

from sparkcluster.facts.base import Unread
from sparkcluster.facts.collect import inspect_images
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet

INSIDE = {"python": "/usr/bin/python3", "python_version": "3.12.11", "platform": "linux_aarch64", "version": "0.18.0"}


@pytest.fixture
def inspected(world, tmp_path):
    """``inspected({node: answer})``: versions of the engine by node; ``inspected.asked`` are the queried nodes."""
    site = world()
    for name, facts in site.facts.items():
        image = facts.image.model_copy(update={"inside": None})
        site.facts[name] = facts.model_copy(update={"image": image})

    def run(answers):
        hosts = {name: FakeHost(name).program("image", answer) for name, answer in answers.items()}
        facts = inspect_images(Fleet(hosts), site.spec, site.facts, kept=tmp_path / "images")
        run.asked = [name for name, host in hosts.items() if host.requests]
        return {name: each.image.inside for name, each in facts.items()}

    return run


def test_an_image_reported_by_one_node_is_cached_for_that_node_only(inspected):
    """Both have an image with the same ID: a hostile alpha could otherwise determine beta's checks and plan."""
    lies = {**INSIDE, "version": "0.1.0", "python": "/tmp/mine"}
    for _ in range(2):
        found = inspected({"alpha": lies, "beta": INSIDE})
        assert (found["alpha"].version, found["beta"].version) == ("0.1.0", "0.18.0")
    assert inspected.asked == []


@pytest.mark.parametrize(
    ("change", "image_id"),
    [({"cluster": "borea"}, "a"), ({"nodes": {"alpha": {"host": "192.168.86.99"}}}, "a"), ({}, "b")],
)
def test_an_image_is_cached_per_cluster_host_and_id(world, tmp_path, change, image_id):
    def ask(site, image_id):
        host = FakeHost("alpha").program("image", INSIDE)
        image = site.facts["alpha"].image.model_copy(update={"inside": None, "id": f"sha256:{image_id * 64}"})
        facts = {"alpha": site.facts["alpha"].model_copy(update={"image": image})}
        inspect_images(Fleet({"alpha": host}), site.spec, facts, kept=tmp_path)
        return len(host.requests)

    assert [ask(world("alpha"), "a"), ask(world("alpha"), "a"), ask(world("alpha", **change), image_id)] == [1, 0, 1]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {**INSIDE, "python": "-c"},
        {**INSIDE, "flags": "host"},
        {**INSIDE, "ray_version": "9" * 5000},
        {"unread": {}},
    ],
)
def test_an_invalid_answer_is_unread_and_not_cached(answer, inspected, tmp_path):
    found = inspected({"alpha": answer, "beta": INSIDE})
    assert isinstance(found["alpha"], Unread)
    assert len(list((tmp_path / "images").iterdir())) == 1
    assert inspected({"alpha": INSIDE, "beta": INSIDE})["alpha"].version == "0.18.0"
    assert inspected.asked == ["alpha"]


def test_a_damaged_cache_file_is_replaced(inspected, tmp_path):
    inspected({"alpha": INSIDE, "beta": INSIDE})
    for file, content in zip((tmp_path / "images").iterdir(), (json.dumps([INSIDE]), "[" * 100_000), strict=True):
        file.write_text(content)
    assert inspected({"alpha": INSIDE, "beta": INSIDE})["beta"].version == "0.18.0"
