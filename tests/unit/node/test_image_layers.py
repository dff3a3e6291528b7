"""What a node says of the layers of its images, and what it keeps in its record of files."""

from __future__ import annotations

import json

import pytest

from sparkcluster.node import image_layers, image_record
from sparkcluster.node.machine import Machine

OWN = {"version": "26.1.5", "containerd_store": False}
CONTAINERD = {"version": "28.5.2+dfsg4", "containerd_store": True}
A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


class Engine(Machine):
    """An engine that answers with these documents."""

    def __init__(self, documents):
        super().__init__()
        self.documents = documents

    def docker(self, path):
        found = self.documents.get(path)
        return (404, {"message": "no such image"}) if found is None else (200, found)


def described(*layers):
    return {"RootFS": {"Layers": list(layers)}}


@pytest.fixture
def request_of(tmp_path):
    return lambda *layers: {
        "state_dir": str(tmp_path), "cluster": "atlas", "reference": "vllm:v1", "layers": list(layers)
    }  # fmt: skip


def test_of_every_image_the_chain_is_said_once_and_none_of_one_that_is_a_name_alone(tmp_path):
    engine = Engine({
        "/images/json": [{"Id": "1", "Created": 1}, {"Id": "2", "Created": 2}, {"Id": "3"}, {"Id": "4"}, {"Id": "5"}],
        "/images/1/json": described(A, B),
        "/images/2/json": described(A, C),
        "/images/3/json": described(A, B),
        "/images/4/json": {"Id": "4"},
    })  # fmt: skip
    assert image_layers.layers(engine, str(tmp_path), OWN, None) == {"chains": [[A, C], [A, B]], "blobs": []}
    assert image_layers.prefix([[A, C], [A, B], []], [A, B, C]) == 2
    assert image_layers.prefix([[B, A]], [A, B]) == 0
    assert image_layers.prefix([[A, B, C]], [A]) == 1
    assert image_layers.prefix([], [A]) == 0


@pytest.mark.parametrize(
    ("history", "sizes"),
    [
        ([30, 20, 10], [10, 20, 30]),
        ([0, 30, 0, 20, 10, 0], [10, 20, 30]),
        ([30, 0, 10], [0, 10, 30]),
        (None, [0, 0, 0]),
    ],
)
def test_the_files_of_an_image_have_at_least_the_bytes_that_are_said(tmp_path, history, sizes):
    """A layer without bytes is not told from a step that made none, and counts as the lowest."""
    documents = {} if history is None else {"/images/x/history": [{"Size": size} for size in history]}
    found = image_layers.layers(Engine(documents), str(tmp_path), OWN, {"id": "x", "layers": [A, B, C]})
    assert found == {
        "files": [{"digest": letter * 64, "bytes": size} for letter, size in zip("abc", sizes, strict=True)]
    }


@pytest.mark.parametrize("version", ["24.0.7", "20.10.24+dfsg1", "", "dev"])
def test_files_of_older_engines_are_not_named(tmp_path, version):
    engine = {"version": version, "containerd_store": False}
    assert image_layers.layers(Engine({}), str(tmp_path), engine, {"id": "x", "layers": [A]}) == {"files": []}


def test_of_containerds_store_it_is_said_what_was_recorded_of_images_that_are_there_and_whole(request_of, tmp_path):
    request = request_of(A, B)
    image_record.record(request, "sha256:1", [["1" * 64, 10], ["2" * 64, 20]])
    image_record.record(request_of(C), "sha256:2", [["3" * 64, 30]])
    image_record.record(request_of(A), "sha256:3", [["4" * 64, 40]])
    engine = Engine({"/images/sha256:1/json": described(A, B), "/images/sha256:3/json": {"Id": "sha256:3"}})
    blobs = [{"layer": A, "digest": "1" * 64, "bytes": 10}, {"layer": B, "digest": "2" * 64, "bytes": 20}]
    found = image_layers.layers(engine, str(tmp_path), CONTAINERD, {"id": "x", "layers": [C, B, "sha256:" + "e" * 64]})
    assert (found["chains"], found["blobs"]) == ([], blobs)
    assert found["files"] == [
        {"digest": "3" * 64, "bytes": 30}, {"digest": "2" * 64, "bytes": 20}, {"digest": None, "bytes": 0}
    ]  # fmt: skip
    untried = {"version": "29.1.3", "containerd_store": True}
    assert image_layers.layers(engine, str(tmp_path), untried, None)["blobs"] == []


@pytest.mark.parametrize(
    ("manifests", "there"),
    [
        ({}, True),
        ({"Manifests": None}, True),
        ({"Manifests": [{"Kind": "image", "Available": False}, {"Kind": "image", "Available": True}]}, True),
        ({"Manifests": [{"Kind": "image", "Available": False}, {"Kind": "attestation", "Available": True}]}, False),
        ({"Manifests": []}, False),
    ],
)
def test_an_image_of_which_containerds_store_lacks_files_lends_none(request_of, tmp_path, manifests, there):
    image_record.record(request_of(A), "x", [["1" * 64, 5]])
    listed = {"/images/json?manifests=1": [{"Id": "y"}, {"Id": "x", **manifests}], "/images/x/json": described(A)}
    assert bool(image_layers.held(Engine(listed), str(tmp_path), CONTAINERD)[1]) is there


def test_an_image_that_has_changed_under_its_id_is_not_what_was_recorded(request_of, tmp_path):
    image_record.record(request_of(A, B), "sha256:1", [["1" * 64, 10], ["2" * 64, 20]])
    assert image_layers.held(Engine({"/images/sha256:1/json": described(A, C)}), str(tmp_path), CONTAINERD) == ([], [])


@pytest.mark.parametrize(
    "layers",
    [
        [["x", "1" * 64, -1]],
        [["x", "1" * 64, 1 << 60]],
        [["x", "1" * 64, "1"]],
        [["x", "../" * 20, 1]],
        [["x", 7, 1]],
        [["x", "1" * 64]],
        [7],
        7,
        None,
    ],
)
def test_a_record_that_no_honest_node_caused_is_none(tmp_path, layers):
    """Sizes and digests are those of the other node's manifest."""
    path = tmp_path / "images" / "layers.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"sha256:1": {"layers": layers}}))
    engine = Engine({"/images/sha256:1/json": described("x")})
    assert image_layers.held(engine, str(tmp_path), CONTAINERD) == ([], [])
    assert image_layers.files(str(tmp_path), CONTAINERD, ["x"]) == [(None, 0)]


@pytest.mark.parametrize("text", ["", "[]", "7", "{"])
def test_a_damaged_record_is_written_anew(request_of, tmp_path, text):
    path = tmp_path / "images" / "layers.json"
    path.parent.mkdir()
    path.write_text(text)
    image_record.record(request_of(A), "sha256:1", [["1" * 64, 1]])
    assert list(json.loads(path.read_text())) == ["sha256:1"]


def test_the_record_keeps_the_newest_images_and_none_of_which_not_every_file_is_known(request_of, tmp_path):
    for number in range(70):
        image_record.record(request_of(A), f"sha256:{number}", [["1" * 64, 1]])
    image_record.record(request_of(A), "sha256:10", [["2" * 64, 1]])
    image_record.record(request_of(A, B), "sha256:71", [["2" * 64, 1]])
    kept = json.loads((tmp_path / "images" / "layers.json").read_text())
    assert len(kept) == 64
    assert list(kept)[-2:] == ["sha256:69", "sha256:10"]
    assert kept["sha256:10"] == {"reference": "vllm:v1", "cluster": "atlas", "layers": [[A, "2" * 64, 1]]}
