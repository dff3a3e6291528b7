"""Bringing Ray to nodes: once from here, then from node to node, and whole or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from sparkcluster.errors import StageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.plan.image import BROUGHT_RAY, ray_name
from sparkcluster.runtime import Changer
from sparkcluster.staging import ray, ray_archive
from sparkcluster.staging.ray_archive import Archive
from sparkcluster.topology.build import build
from tests.unit.staging.world import on_this_machine

INSIDE = {"python": "/usr/bin/python3", "python_version": "3.12.3", "platform": "manylinux_2_39_aarch64",
          "version": "0.18.0"}  # fmt: skip
IMAGE = {"reference": "vllm/vllm-openai:v0.18.0", "id": "sha256:1", "layers": ["sha256:layer"], "inside": INSIDE}


def archive(place: Path, **files: bytes) -> Archive:
    with tarfile.open(place, "w:gz") as packed:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size, entry.mode = len(content), 0o755
            packed.addfile(entry, io.BytesIO(content))
    return Archive(place, hashlib.sha256(place.read_bytes()).hexdigest())


class World:
    """Nodes a, b, c on this machine, each with a state directory of its own and one lease for all."""

    def __init__(self, nodes, spark, cluster, lease) -> None:
        self.nodes = {host.name: host for host in nodes}
        self.lease, self._spark = lease, spark
        self.spec = cluster(dict(zip(self.nodes, self.nodes, strict=True)), state_dir=lease.state_dir)
        self.rays: dict[str, tuple[str, ...]] = dict.fromkeys(self.nodes, ())
        self.reports: list[tuple[str, str]] = []
        self.fetches = 0
        self.changer = Changer(
            Fleet(self.nodes), cluster="atlas", state_dir=lease.state_dir, epochs=dict.fromkeys(self.nodes, 7)
        )

    def facts(self):
        return {
            name: on_this_machine(self._spark(
                {"enp1s0f0np0": f"127.1.0.{place}/24"}, image=IMAGE, rays=self.rays[name],
                state_dir=str(host.home / "state"),
            ))
            for place, (name, host) in enumerate(self.nodes.items(), 11)
        }  # fmt: skip

    def ray_of(self, name) -> Path:
        engine = self.facts()[name].image.inside
        return self.nodes[name].home / "state" / "ray" / ray_name(engine)

    def bring(self, parcel, changer=None):
        facts = self.facts()
        topology = build(self.spec, facts)
        staging = ray.find_missing(self.spec, facts, topology)

        def obtain(engine, tell):
            self.fetches += 1
            tell("fetching")
            return parcel

        return ray.stage(
            changer or self.changer,
            facts,
            topology,
            staging,
            progress=lambda *report: self.reports.append(report),
            get_archive=obtain,
        )


@pytest.fixture
def world(node, spark, cluster, lease, monkeypatch, tmp_path):
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "no cache"))
    return World([node(name) for name in "abc"], spark, cluster, lease)


def test_the_first_node_gets_ray_from_the_controller_and_the_others_from_that_node(world, tmp_path):
    copied = world.bring(archive(tmp_path / "ray.tar.gz", ray__start=b"x", bin__ray=b"#!"))
    assert [(transfer.node, transfer.source) for transfer in copied] == [("a", "controller"), ("b", "a"), ("c", "b")]
    assert world.fetches == 1
    for name in "abc":
        assert (world.ray_of(name) / "ray" / "start").read_bytes() == b"x"
        assert (world.ray_of(name) / "bin" / "ray").stat().st_mode & 0o777 == 0o755
        assert (name, f"Ray {BROUGHT_RAY} complete") in world.reports
        assert not list(world.ray_of(name).parent.glob(".partial*"))
    assert ("a", "fetching") in world.reports


def test_a_node_that_has_it_is_the_source_and_nothing_is_sent(world, tmp_path):
    parcel = archive(tmp_path / "ray.tar.gz", ray=b"x")
    world.bring(parcel)
    world.rays["b"] = (world.ray_of("b").name,)
    copied = world.bring(parcel)
    assert copied == []  # the archives were there already


def test_a_node_that_offers_another_archive_than_the_one_packed_here_is_not_the_source(world, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "cache" / "ray" / world.ray_of("b").name
    place.mkdir(parents=True)
    parcel = archive(place / ray_archive.FILE, ray=b"good")
    (place / ray_archive.RECORD).write_text(ray_archive.record(parcel.sha256))
    world.rays["b"] = (world.ray_of("b").name,)
    offered = world.ray_of("b").parent / "archives" / world.ray_of("b").name
    offered.mkdir(parents=True)
    archive(offered / ray_archive.FILE, ray=b"evil")
    copied = world.bring(parcel)
    assert [(transfer.node, transfer.source) for transfer in copied] == [("a", "controller"), ("c", "a")]
    assert [(world.ray_of(name) / "ray").read_bytes() for name in "ac"] == [b"good", b"good"]


def test_a_corrupt_archive_is_refused_and_replaced_by_the_next_run(world, tmp_path):
    parcel = archive(tmp_path / "ray.tar.gz", ray=b"x")
    with pytest.raises(
        StageError, match="arrived with another SHA-256 than it has on the operator's machine"
    ) as caught:
        world.bring(Archive(parcel.path, "0" * 64))
    assert caught.value.node == "a"
    assert not world.ray_of("a").exists()
    world.bring(parcel)
    assert (world.ray_of("a") / "ray").exists()


@pytest.mark.parametrize("name", ["..__..__evil", "____etc__evil"])
def test_nothing_is_written_outside(world, tmp_path, name):
    with pytest.raises(StageError, match="outside of the archive's directory"):
        world.bring(archive(tmp_path / "ray.tar.gz", **{name: b"x"}))
    assert not list(tmp_path.rglob("evil"))
