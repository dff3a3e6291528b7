"""An image that passes through workers' stores: from one engine to the next, and on from there while it is loaded."""

from __future__ import annotations

import os

import pytest

from sparkcluster.staging.order import key
from tests.unit.staging.archives import ImageMade
from tests.unit.staging.workers import chain, eventually

OLD = ImageMade([b"base" * 200_000, b"top" * 1000])
NEW = ImageMade([OLD.layers[0], os.urandom(1 << 20) * 3])

MB = 1_000_000
LARGE = ImageMade([OLD.layers[0], *(os.urandom(8 * MB) for _ in range(3))])
SENT = sum(len(layer) for layer in LARGE.layers[1:])


@pytest.fixture
def engines(node, workers):
    """Workers a to d, of which a has an image, and the others its lowest layer; and their nodes."""
    made = workers(*"abcd")
    nodes = [node(name) for name in "abcd"]
    nodes[0].add_image(LARGE, "vllm:v1")
    for each in nodes[1:]:
        each.add_image(OLD, "vllm:v0")
    request = LARGE.request(size=30 * MB, bytes=SENT, have=["", None, None, None], images_dir=str(nodes[0].home))
    for number, (each, engine) in enumerate(zip(made, nodes, strict=True)):
        own = dict(word.split("=", 1) for word in engine._before[1:] if "=" in word)
        each.env = {**os.environ, **own}
        each.key = key("image", "vllm:v1")
        each.begin(**request, **({} if number else {"limit_bytes_s": 10 * MB}))
    assert [each.wait("lacks")["files"] for each in made] == [0, 1, 1, 1]
    chain(made)
    return made, nodes


def arrived(worker, node):
    done = worker.wait("done")
    assert SENT < done["bytes"] < SENT + 50_000
    assert done["peak_bytes"] < 64 << 20
    assert node.images() == {"vllm:v0": OLD.id, "vllm:v1": LARGE.id}


def test_one_docker_save_reaches_all_nodes(engines):
    made, nodes = engines
    for worker, node in zip(made[1:], nodes[1:], strict=True):
        arrived(worker, node)
    assert nodes[0].docker_calls().count(["save", LARGE.id]) == 1
    assert ["save", LARGE.id] not in [call for node in nodes[1:] for call in node.docker_calls()]
    assert made[0].said["served"].keys() == {"b"}


def test_the_next_node_goes_on_in_the_same_stream_without_the_one_before_it(engines):
    made, nodes = engines
    eventually(lambda: made[3].said.get("bytes", 0) > SENT / 4)
    made[1].kill()
    for place in (2, 3):
        arrived(made[place], nodes[place])
    assert [each["node"] for each in made[2].said["left"]] == ["b"]
    assert made[3].said["left"] == []
    assert nodes[1].images() == {"vllm:v0": OLD.id}
    assert nodes[0].docker_calls().count(["save", LARGE.id]) == 1


def test_a_node_that_cannot_save_its_image_says_why(node, workers):
    """Its worker ends, so that the others go on with another one."""
    a, b = workers("a", "b")
    nodes = [node(each.name) for each in (a, b)]
    nodes[0].add_image(LARGE, "vllm:v1")
    (nodes[0].docker / "broken").touch()
    for each, engine in zip((a, b), nodes, strict=True):
        each.env = {**os.environ, **dict(word.split("=", 1) for word in engine._before[1:] if "=" in word)}
        each.begin(**LARGE.request(images_dir=str(engine.home)))
    chain((a, b))
    a.wait("failed")
    assert a.said["kind"] == "docker"
    assert a.said["failed"].startswith("docker save: ")
    assert nodes[1].image_ids() == set()
