"""``stage image --from FILE``: an archive of this machine is sent to one node, loaded there, and copied to the others."""

from __future__ import annotations

import json

import pytest

from sparkcluster.errors import StageError
from sparkcluster.facts.collect import Collected
from sparkcluster.staging import transfers
from sparkcluster.staging.local_image import read
from tests.unit.staging.archives import ImageMade, sha256, tar
from tests.unit.staging.world import REFERENCE

IMAGE = ImageMade([b"layer" * 500_000, b"top"])
OTHER = ImageMade([b"other"])


@pytest.fixture
def world(world, monkeypatch):
    """Nodes that report the image when Docker has it."""

    def collected(fleet, spec, names):
        for name in names:
            if REFERENCE in world.nodes[name].images():
                world.has_image(name, IMAGE)
        return Collected({name: world.facts()[name] for name in names}, {})

    monkeypatch.setattr(transfers, "collect_facts", collected)
    return world


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "vllm.tar"
    path.write_bytes(tar(IMAGE.oci([REFERENCE])))
    return path


@pytest.mark.parametrize("form", ["oci", "legacy"])
def test_an_archive_reaches_all_nodes_and_is_then_removed(world, archive, form):
    archive.write_bytes(tar(getattr(IMAGE, form)([REFERENCE])))
    report = world.stage(what=["image"], given=archive)
    assert {host.images()[REFERENCE] for host in world.nodes.values()} == {IMAGE.id}
    assert next((each.node, each.source) for each in report.copied) == ("a", "controller")
    assert {each.node for each in report.copied} == {"a", "b", "c"}
    assert sum(map(len, IMAGE.layers)) < report.copied[0].bytes <= archive.stat().st_size
    assert not list(archive.parent.glob("state/*/clusters/atlas/images"))


def test_another_image_is_refused_before_a_byte_is_sent(world, archive):
    archive.write_bytes(tar(OTHER.oci(["other:v1"])))
    for dry_run in (True, False):
        with pytest.raises(StageError, match=f"does not contain {REFERENCE}, only other:v1"):
            world.stage(what=["image"], given=archive, dry_run=dry_run)
    assert not list(archive.parent.glob("state/*/clusters/atlas/images"))


def test_a_falsified_archive_leaves_no_image(world, archive):
    """Its manifest matches the request, but one layer is different."""
    entries = [
        (name, b"evil" if isinstance(name, str) and name.endswith(sha256(b"top")) else data)
        for name, data in IMAGE.oci([REFERENCE])
    ]
    archive.write_bytes(tar(entries))
    with pytest.raises(StageError, match="arrived with a wrong SHA-256"):
        world.stage(what=["image"], given=archive)
    assert [host.image_ids() for host in world.nodes.values()] == [set(), set(), set()]


@pytest.mark.parametrize(
    ("tag", "reference", "same"),
    [
        ("vllm/vllm-openai:v1", "docker.io/vllm/vllm-openai:v1", True),
        ("nginx:latest", "docker.io/library/nginx", True),
        ("evil/vllm-openai:v1", "vllm/vllm-openai:v1", False),
    ],
)
def test_names_are_compared_as_docker_parses_them(archive, tag, reference, same):
    archive.write_bytes(tar([*OTHER.oci(["x:y"])[:-2], *IMAGE.oci([tag])[2:]]))
    if same:
        assert read(archive, reference).image.id == IMAGE.id
    else:
        with pytest.raises(StageError, match="does not contain"):
            read(archive, reference)


def test_a_digest_matches_a_manifest_or_an_index_with_it(archive):
    manifest = IMAGE.manifest(IMAGE.layers)
    index = json.dumps({"manifests": [{"digest": "sha256:" + "0" * 64}, {"digest": "sha256:" + sha256(manifest)}]})
    entries = [*IMAGE.oci(), (f"blobs/sha256/{sha256(index.encode())}", index.encode())]
    lying = ("blobs/sha256/" + "5" * 64, manifest)
    archive.write_bytes(tar([*entries, lying]))
    for digest in (sha256(manifest), sha256(index.encode())):
        assert read(archive, f"vllm@sha256:{digest}").image.id == IMAGE.id
    for digest in ("4" * 64, "5" * 64):
        with pytest.raises(StageError, match="does not contain"):
            read(archive, f"vllm@sha256:{digest}")


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b compressed",
        tar([("manifest.json", b"[{}]")]),
        tar([("manifest.json", json.dumps([{"RepoTags": [REFERENCE], "Config": "c", "Layers": ["l"]}]).encode())]),
    ],
)
def test_an_invalid_archive_is_an_error(archive, content):
    archive.write_bytes(content)
    with pytest.raises(StageError) as caught:
        read(archive, REFERENCE)
    assert "docker save" in caught.value.hint
