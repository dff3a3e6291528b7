"""Copies between real workers on this machine, as the controller runs them: real processes, sockets and files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from functools import partial
from pathlib import Path

import pytest

from sparkcluster.errors import LeaseLost, StageError
from sparkcluster.hosts import program
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.staging.copy import Step, list_files
from sparkcluster.staging.copy_request import Files, Settings
from sparkcluster.staging.job import Job
from sparkcluster.topology.build import build
from tests.unit.staging.conftest import RecordingReport
from tests.unit.staging.workers import eventually
from tests.unit.staging.world import on_this_machine


class World:
    """Nodes on this machine: their rails are 127.1.0.*, their management network is 127.2.0.*."""

    def __init__(self, node, spark, cluster, lease, names) -> None:
        self.nodes = {name: node(name) for name in names}
        self.lease, self.cluster, self._spark = lease, cluster, spark
        self.rails = {name: f"127.1.0.{place}/24" for place, name in enumerate(names, 11)}
        self.shown = RecordingReport()
        self.step = Step("stage weights", lambda _: lease.document(), lambda: False)
        self.job: Job | None = None

    def facts(self):
        return {
            name: on_this_machine(
                self._spark({"enp1s0f0np0": self.rails[name]}, management=f"127.2.0.{place}/24")
            )
            for place, name in enumerate(self.nodes, 11)
        }  # fmt: skip

    def listed(self, request):
        return list_files(self.step, self.nodes["a"], request, lambda _done, _total: None).files

    def move(self, requests, files=None, **settings):
        """Copy as in ``requests`` by node; a's request is the source's."""
        spec, facts = self.cluster({name: name for name in self.nodes}), self.facts()
        what = Files("weights", requests, files or self.listed(requests["a"]))
        self.job = Job(
            self.step, Fleet(self.nodes), facts, build(spec, facts), what,
            report=self.shown, settings=Settings(**settings),
        )  # fmt: skip
        return self.job.run()

    def pid(self, request):
        """Process ID of the worker."""
        name = hashlib.sha256(request["root"].encode()).hexdigest()[:16]
        state = Path(self.lease.state_dir) / "clusters" / "atlas" / "staging" / name / "state.json"
        return int(json.loads(state.read_text())["pid"])


@pytest.fixture
def world(node, spark, cluster, lease):
    made = []

    def make(names="ab"):
        made.append(World(node, spark, cluster, lease, names))
        return made[-1]

    return make


def snapshots(world, **more):
    return {name: {"root": f"{host.hf_home}/hub/models--Qwen--Qwen3-8B", **more} for name, host in world.nodes.items()}


def directories(tmp_path, names="ab"):
    return {name: {"root": str(tmp_path / f"of-{name}")} for name in names}


def test_a_snapshot_is_copied_with_its_links_and_ref_and_a_second_run_copies_nothing(world, model):
    world = world("abc")
    write, tree, revision = model
    sizes = write(world.nodes["a"].hf_home)
    requests = snapshots(world, revision=revision, ref="main")
    (world.nodes["a"].hf_home / "hub/models--Qwen--Qwen3-8B/blobs/other").write_bytes(b"of another revision")
    arrived = world.move(requests)
    assert {name: (each.source, each.bytes) for name, each in arrived.items()} == {
        "b": ("a", sum(sizes.values())),
        "c": ("b", sum(sizes.values())),
    }
    want = tree(world.nodes["a"].hf_home)
    del want["hub/models--Qwen--Qwen3-8B/blobs/other"]
    assert tree(world.nodes["b"].hf_home) == tree(world.nodes["c"].hf_home) == want
    assert world.move(requests) == {}
    assert world.shown.notes == []
    assert {each.medium for each in world.shown.transfers} == {"rail"}


def test_a_directory_is_copied_with_its_times_and_later_only_changes(world, tmp_path):
    world, requests = world(), directories(tmp_path)
    source, target = tmp_path / "of-a", tmp_path / "of-b"
    (source / "sub").mkdir(parents=True)
    (source / "one.bin").write_bytes(b"1" * 100_000)
    (source / "sub" / "two.bin").write_bytes(b"2" * 100)
    os.utime(source / "one.bin", ns=(5, 7_000_000_000))
    assert world.move(requests)["b"].bytes == 100_100
    assert (target / "one.bin").stat().st_mtime_ns == 7_000_000_000
    (source / "sub" / "two.bin").write_bytes(b"3" * 101)
    assert world.move(requests)["b"].bytes == 101
    assert (target / "sub" / "two.bin").read_bytes() == b"3" * 101


def test_a_large_file_without_a_known_hash_arrives(world, tmp_path):
    world, requests = world("abc"), directories(tmp_path, "abc")
    (tmp_path / "of-a").mkdir()
    (tmp_path / "of-a" / "one.bin").write_bytes(os.urandom(1 << 20) * 40)
    files = world.listed(requests["a"])
    assert files[0]["sha256"] is None
    assert set(world.move(requests, files)) == {"b", "c"}
    content = (tmp_path / "of-a" / "one.bin").read_bytes()
    assert (tmp_path / "of-b" / "one.bin").read_bytes() == (tmp_path / "of-c" / "one.bin").read_bytes() == content


def test_nodes_without_a_common_rail_copy_with_tls(world, tmp_path):
    world, requests = world("abc"), directories(tmp_path, "abc")
    world.rails |= {"c": "127.3.0.13/24"}
    (tmp_path / "of-a").mkdir()
    (tmp_path / "of-a" / "one.bin").write_bytes(os.urandom(300_000))
    assert set(world.move(requests)) == {"b", "c"}
    assert (tmp_path / "of-c" / "one.bin").read_bytes() == (tmp_path / "of-a" / "one.bin").read_bytes()
    assert len(world.job.warnings) == 1
    last = {each.node: (each.source, each.medium, each.encrypted) for each in world.shown.transfers}
    assert last["c"] == ("a", "wire", True)


def test_everything_is_encrypted_on_request(world, tmp_path):
    world, requests = world(), directories(tmp_path)
    (tmp_path / "of-a").mkdir()
    (tmp_path / "of-a" / "one.bin").write_bytes(os.urandom(300_000))
    world.move(requests, encrypt=True)
    assert (tmp_path / "of-b" / "one.bin").read_bytes() == (tmp_path / "of-a" / "one.bin").read_bytes()
    assert {each.encrypted for each in world.shown.transfers} == {True}


def test_a_missing_source_is_reported(world, model):
    world = world()
    with pytest.raises(StageError, match=r"stage weights on a: .* does not exist") as caught:
        world.move(snapshots(world, revision="abc"))
    assert caught.value.node == "a"


def plant(cache, revision, what, secret):
    """Plant links that an image could leave in its cache, to be followed by the node's programs."""
    snapshot = cache / "snapshots" / revision
    if what == "file":
        (snapshot / "tokenizer.json").unlink()
        (snapshot / "tokenizer.json").symlink_to(secret)
    else:
        folder = {"blobs": cache / "blobs", "snapshot": snapshot}[what]
        folder.rename(secret.parent / folder.name)
        folder.symlink_to(secret.parent / folder.name)


@pytest.mark.parametrize("what", ["file", "blobs", "snapshot"])
def test_a_link_out_of_the_models_cache_is_not_copied(world, model, what):
    world = world()
    write, _, revision = model
    source = world.nodes["a"]
    write(source.hf_home)
    secret = source.hf_home / ".ssh" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("of the node's user")
    plant(source.hf_home / "hub/models--Qwen--Qwen3-8B", revision, what, secret)
    with pytest.raises(StageError, match=r"is a link out of the model's cache, to .*; check: ls -l /") as caught:
        world.move(snapshots(world, revision=revision, ref="main"))
    assert caught.value.node == "a"
    assert not list(world.nodes["b"].home.rglob("tokenizer.json"))


def test_a_file_replaced_by_a_link_after_the_listing_is_not_sent(world, model, set_source):
    real = program.source.__wrapped__
    set_source(lambda *each: real(*each).replace("_PATIENCE_S, _HASHING_S = 60.0", "_PATIENCE_S, _HASHING_S = 2.0"))
    world = world()
    write, _, revision = model
    write(world.nodes["a"].hf_home)
    requests = snapshots(world, revision=revision, ref="main")
    files = world.listed(requests["a"])
    blob = world.nodes["a"].hf_home / "hub/models--Qwen--Qwen3-8B" / files[0]["path"]
    secret = world.nodes["a"].home / "id_ed25519"
    secret.write_bytes(b"s" * blob.stat().st_size)
    blob.unlink()
    blob.symlink_to(secret)
    with pytest.raises(StageError, match="is a link out of the model's cache"):
        world.move(requests, files)
    assert not [each for each in world.nodes["b"].home.rglob("*") if each.is_file() and b"sss" in each.read_bytes()]


def test_a_cache_on_another_disk_is_copied(world, model, tmp_path):
    world = world()
    write, _, revision = model
    sizes = write(world.nodes["a"].hf_home)
    root = world.nodes["a"].hf_home / "hub/models--Qwen--Qwen3-8B"
    root.rename(tmp_path / "disk2")
    root.symlink_to(tmp_path / "disk2")
    assert world.move(snapshots(world, revision=revision, ref="main"))["b"].bytes == sum(sizes.values())


def test_an_unwritable_target_is_reported_and_the_others_get_the_files(world, model):
    world = world("abc")
    write, tree, revision = model
    write(world.nodes["a"].hf_home)
    requests = snapshots(world, revision=revision, ref="main")
    requests["b"]["root"] = "/proc/nothing"
    with pytest.raises(StageError, match="stage weights on b: ") as caught:
        world.move(requests)
    assert caught.value.node == "b"
    assert tree(world.nodes["c"].hf_home) == tree(world.nodes["a"].hf_home)


def test_an_outdated_epoch_is_refused(world, lease, model):
    world = world()
    write, tree, revision = model
    write(world.nodes["a"].hf_home)
    requests = snapshots(world, revision=revision, ref="main")
    files = world.listed(requests["a"])
    world.step = dataclasses.replace(world.step, lease=lambda _: lease.document(6))
    for attempt in (partial(world.move, requests), partial(world.move, requests, files)):
        with pytest.raises(LeaseLost, match=r"[ab] refused the change: epoch"):
            attempt()
    assert tree(world.nodes["b"].home) == {}


def test_ctrl_c_ends_the_workers(world, tmp_path):
    class Pressed(RecordingReport):
        def transfer(self, transfer):
            if transfer.bytes:
                raise KeyboardInterrupt

    world, requests = world(), directories(tmp_path)
    (tmp_path / "of-a").mkdir()
    (tmp_path / "of-a" / "one.bin").write_bytes(os.urandom(1 << 20) * 30)
    world.shown = Pressed()
    with pytest.raises(KeyboardInterrupt):
        world.move(requests, limit_bytes_s=1_000_000)
    for name in "ab":
        eventually(lambda name=name: not Path(f"/proc/{world.pid(requests[name])}").exists())
