"""``stage weights --from DIR``: files of this machine are sent to one node, and copied from there to the others."""

from __future__ import annotations

import hashlib
import io
import os
import re

import pytest

from sparkcluster.errors import StageError
from sparkcluster.node import models
from sparkcluster.staging import outside
from sparkcluster.staging.copy import Failure
from tests.unit.staging.conftest import RecordingReport, tree, write_model
from tests.unit.staging.test_parts import ROOT
from tests.unit.staging.world import REVISION

QWEN = "Qwen/Qwen3-8B"

pytestmark = pytest.mark.usefixtures("really")


@pytest.fixture
def here(tmp_path):
    """A Hugging Face cache on this machine with the model, and a file in it that the playbook does not serve."""
    write_model(tmp_path / "here")
    snapshot = tmp_path / "here" / ROOT / "snapshots" / REVISION
    (snapshot / "onnx").mkdir()
    (snapshot / "onnx/model.onnx").write_bytes(b"o" * 1000)
    return tmp_path / "here"


def roots(world):
    return [tree(host.hf_home / ROOT) for host in world.nodes.values()]


@pytest.mark.parametrize("inside", [".", f"{ROOT}/snapshots/{REVISION}"])
def test_a_cache_on_this_machine_is_sent_to_one_node_and_copied_to_all(world, here, inside):
    shown = RecordingReport()
    report = world.stage(what=["weights"], given=here / inside, report=shown)
    found = roots(world)
    expected = {name: content for name, content in tree(here / ROOT).items() if "onnx" not in name}
    if inside.endswith(REVISION):  # a snapshot alone does not name the requested revision; the playbook does
        assert expected["refs/main"] == REVISION.encode()
    assert found == [expected] * 3
    moved = {(each.node, each.source): each.bytes for each in report.copied}
    assert moved["a", "controller"] == 3_000_005
    assert sum(moved.values()) == 3 * 3_000_005
    assert {each.source for each in shown.transfers if each.node == "a"} >= {"controller"}


def test_a_local_directory_counts_as_the_commit_of_the_playbook(world, here, tmp_path):
    """Each blob is named by its SHA-256, with the links of a cache."""
    plain = tmp_path / "plain"
    (plain / "sub").mkdir(parents=True)
    for name, content in {"config.json": b"{}", "sub/x.txt": b"x", "model.safetensors": b"w" * 2_000_000}.items():
        (plain / name).write_bytes(content)
    with pytest.raises(StageError, match="cannot tell which commit"):
        world.stage(what=["weights"], given=plain)
    world.playbook = {"model": {"id": QWEN, "revision": REVISION}}
    world.served = {"config.json", "sub/x.txt", "model.safetensors"}
    world.stage(what=["weights"], given=plain)
    found = roots(world)
    assert found[0] == found[1] == found[2]
    assert found[0][f"snapshots/{REVISION}/sub/x.txt"] == f"../../../blobs/{hashlib.sha256(b'x').hexdigest()}"
    for host in world.nodes.values():
        there = host.hf_home / ROOT / "snapshots" / REVISION / "sub/x.txt"
        assert there.stat().st_mtime_ns == (plain / "sub/x.txt").stat().st_mtime_ns


def test_files_sent_from_this_machine_are_recorded_as_staged_on_every_node_and_can_be_pruned(world, here):
    world.stage(what=["weights"], given=here)
    request = {"state_dir": world.lease.state_dir, "cluster": "atlas"}
    for host in world.nodes.values():
        root = str(host.hf_home / ROOT)
        (model,) = models.main({**request, "hf_home": str(host.hf_home)}, io.BytesIO())["models"][:1]
        assert (model["path"], model["clusters"], model["staged_bytes"]) == (root, ["atlas"], 3_000_005)
        assert models.remove(request, {"roots": [root]}) == {"freed": {root: 3_000_005}}
        assert not (host.hf_home / ROOT).exists()


def test_a_blob_whose_content_differs_from_its_name_reaches_no_node(world, here):
    blob = max((here / ROOT / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(b"X" * 3_000_000)
    with pytest.raises(StageError, match="a wrong SHA-256"):
        world.stage(what=["weights"], given=here)
    assert not (world.nodes["a"].hf_home / ROOT / "blobs" / blob.name).exists()


def test_a_link_that_leads_outside_the_directory_is_refused(world, here, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key")
    link = here / ROOT / "snapshots" / REVISION / "tokenizer.json"
    link.unlink()
    link.symlink_to(secret)
    with pytest.raises(StageError, match="is a link out of the model's cache"):
        world.stage(what=["weights"], given=here)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text("{}")
    (plain / "tokenizer.json").symlink_to(secret)
    world.playbook = {"model": {"id": QWEN, "revision": REVISION}}
    with pytest.raises(StageError, match=f"tokenizer.json is a link out of the directory, to {re.escape(str(secret))}"):
        world.stage(what=["weights"], given=plain)
    assert [tree(host.hf_home) for host in world.nodes.values()] == [{}, {}, {}]


@pytest.fixture
def cut_off(world, hub, tmp_path, monkeypatch):
    """No node reaches the hub; this machine does, and has ``hf``."""
    monkeypatch.setattr(
        outside, "run_job", lambda _step, host, *_: Failure(host.name, "no hub", "hub.lan cannot be reached")
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    hub.files = {"config.json": 2, "tokenizer.json": 2, "model.safetensors": 5_000_000, "metal/model.bin": 20_000_000}
    world.served = {"config.json", "tokenizer.json", "model.safetensors"}
    return hub


def test_if_no_node_reaches_the_hub_this_machine_downloads_and_sends_it(world, cut_off, tmp_path):
    shown = RecordingReport()
    report = world.stage(what=["weights"], report=shown)
    assert [name for name, _ in cut_off.requests] == [QWEN]
    assert shown.notes == [
        f"no node can reach the hub: downloading {QWEN} (5.0 MB) on this machine to {tmp_path / 'no-login'}"
    ]
    assert next((each.node, each.source) for each in report.copied) == ("a", "controller")
    found = [set(tree(host.hf_home / ROOT)) for host in world.nodes.values()]
    assert found[0] == found[1] == found[2] == {f"snapshots/{REVISION}/{name}" for name in world.served} | {"refs/main"}
