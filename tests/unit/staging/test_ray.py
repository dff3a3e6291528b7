"""Copying Ray to nodes: once from this machine, then from node to node, completely or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from unittest import mock

import pytest

from sparkcluster.errors import StageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.plan.image import ray_name
from sparkcluster.runtime import Changer
from sparkcluster.staging import ray, ray_archive
from sparkcluster.staging.ray_archive import Archive
from sparkcluster.staging.transfers import Transfers
from sparkcluster.topology.build import build
from tests.unit.staging.world import on_this_machine

INSIDE = {"python": "/usr/bin/python3", "python_version": "3.12.3", "platform": "manylinux_2_39_aarch64",
          "version": "0.18.0"}  # fmt: skip
IMAGE = {"reference": "vllm/vllm-openai:v0.18.0", "id": "sha256:1", "layers": ["sha256:layer"], "inside": INSIDE}


def archive(place: Path, content: bytes) -> Archive:
    with tarfile.open(place, "w:gz") as packed:
        entry = tarfile.TarInfo("ray/start")
        entry.size = len(content)
        packed.addfile(entry, io.BytesIO(content))
    return Archive(place, hashlib.sha256(place.read_bytes()).hexdigest())


class World:
    """Nodes a, b, c on this machine, each with a separate state directory, and one lease for all."""

    def __init__(self, nodes, spark, cluster, lease) -> None:
        self.nodes = {host.name: host for host in nodes}
        self.spec = cluster(dict(zip(self.nodes, self.nodes, strict=True)), state_dir=lease.state_dir)
        self.rays: dict[str, tuple[str, ...]] = dict.fromkeys(self.nodes, ())
        self.reports: list[tuple[str, str]] = []
        epochs = dict.fromkeys(self.nodes, 7)
        self.changer = Changer(Fleet(self.nodes), cluster="atlas", state_dir=lease.state_dir, epochs=epochs)
        self._spark = spark

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

    def bring(self, made: Archive):
        facts, changer = self.facts(), self.changer
        topology = build(self.spec, facts)
        run = Transfers(changer.fleet, facts, topology, changer.lease, lambda *report: self.reports.append(report))

        def get(_engine, tell):
            tell("fetching")
            return made

        with mock.patch.object(ray_archive, "get_archive", get):
            ray.stage(changer, run, ray.find_missing(self.spec, facts, topology))
        return sorted((copied.node, copied.source) for copied in run.copied if copied.bytes)


@pytest.fixture
def world(node, spark, cluster, lease):
    return World([node(name) for name in "abc"], spark, cluster, lease)


def test_the_first_node_gets_ray_from_the_controller_and_the_others_from_that_node(world, tmp_path):
    made = archive(tmp_path / "ray.tar.gz", b"x")
    assert world.bring(made) == [("a", "controller"), ("b", "a"), ("c", "b")]
    assert world.reports.count(("a", "fetching")) == 1
    for name in "abc":
        assert (world.ray_of(name) / "ray" / "start").read_bytes() == b"x"
        assert sorted(path.name for path in world.ray_of(name).parent.glob("*/*")) == ["ray"]
    world.rays["a"] = world.rays["b"] = (world.ray_of("a").name,)
    assert world.bring(made) == [("c", "controller")]


def test_a_corrupt_archive_is_refused_and_replaced_by_the_next_run(world, tmp_path):
    made = archive(tmp_path / "ray.tar.gz", b"x")
    with pytest.raises(StageError, match="arrived with a wrong SHA-256") as caught:
        world.bring(Archive(made.path, "0" * 64))
    assert caught.value.node == "a"
    assert not world.ray_of("a").exists()
    world.bring(made)
    assert (world.ray_of("a") / "ray").exists()
