"""The layers of a node's images, and its record of layer files."""

from __future__ import annotations

import pytest

from sparkcluster.node import image_layers, storage
from sparkcluster.node.machine import Machine

OWN = {"version": "26.1.5", "containerd_store": False}
CONTAINERD = {"version": "28.5.2+dfsg4", "containerd_store": True}
A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


class Engine(Machine):
    """An engine that answers with these documents."""

    def __init__(self, documents):
        super().__init__()
        self.documents = documents

    def docker_document(self, path, kind=dict):
        return self.documents.get(path)


def described(*layers):
    return {"RootFS": {"Layers": list(layers)}}


@pytest.fixture
def request_of(tmp_path):
    return lambda *layers: {"state_dir": str(tmp_path), "engine": CONTAINERD, "image": {"layers": layers}}


def test_the_layer_chain_of_every_image_is_reported_once(tmp_path):
    engine = Engine({
        "/images/json": [{"Id": "1", "Created": 1}, {"Id": "2", "Created": 2}, {"Id": "3"}, {"Id": "4"}, {"Id": "5"}],
        "/images/1/json": described(A, B),
        "/images/2/json": described(A, C),
        "/images/3/json": described(A, B),
        "/images/4/json": {"Id": "4"},
    })  # fmt: skip
    assert image_layers.layers(engine, str(tmp_path), OWN, None) == {"chains": [[A, C], [A, B]], "blobs": []}


def test_for_containerds_store_recorded_layers_of_complete_images_are_listed(request_of, tmp_path):
    request = request_of(A, B)
    image_layers.record(request, "sha256:1", [("1" * 64, 10), ("2" * 64, 20)])
    image_layers.record(request_of(C), "sha256:2", [("3" * 64, 30)])
    image_layers.record(request_of(A), "sha256:3", [("4" * 64, 40)])
    image_layers.record({**request_of(A), "engine": OWN}, "sha256:4", [("5" * 64, 50)])
    image_layers.record(request_of(A), "sha256:5", [("6" * 64, 0)])
    engine = Engine({"/images/sha256:1/json": described(A, B), "/images/sha256:3/json": {"Id": "sha256:3"}})
    blobs = [{"layer": A, "digest": "1" * 64, "bytes": 10}, {"layer": B, "digest": "2" * 64, "bytes": 20}]
    found = image_layers.layers(engine, str(tmp_path), CONTAINERD, {"id": "x", "layers": [C, B, "sha256:" + "e" * 64]})
    assert (found["chains"], found["blobs"]) == ([], blobs)
    assert found["files"] == [
        {"digest": "3" * 64, "bytes": 30}, {"digest": "2" * 64, "bytes": 20}, {"digest": None, "bytes": 0}
    ]  # fmt: skip
    untried = {"version": "29.1.3", "containerd_store": True}
    assert image_layers.layers(engine, str(tmp_path), untried, None)["blobs"] == []


def test_leftovers_of_an_interrupted_copy_count_as_free_space_only_for_images_on_their_disk(tmp_path):
    """Copies of weights do not remove it."""

    class Empty(Machine):
        def space(self, path):
            return 100, 10

    folder = tmp_path / "clusters/atlas/images/blobs/sha256"
    folder.mkdir(parents=True)
    (folder / ("1" * 64)).write_bytes(b"x" * 7)
    (folder / ".partial").write_bytes(b"x" * 2)
    for images_dir, free in ((str(tmp_path / "docker"), 19), ("/proc", 10)):
        found = storage.disks(Empty(), str(tmp_path), "atlas", str(tmp_path / "hub"), {"images_dir": images_dir})
        assert [disk["purpose"] for disk in found] == ["state", "hf_home", "docker"]
        assert [disk["free_bytes"] for disk in found] == [19, 10, free]
    assert storage.disks(Empty(), str(tmp_path), "other", "/", {"unread": "no"})[0]["free_bytes"] == 10
