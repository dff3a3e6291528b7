"""Files that a playbook mounts from its directory reach every node, and count when complete."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster.errors import StageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node import storage
from sparkcluster.node.machine import Machine
from sparkcluster.spec.playbook_files import read
from sparkcluster.staging import small_files
from sparkcluster.staging.transfers import Transfers


@pytest.fixture
def world(node, spark, cluster, lease, tmp_path):
    """Two nodes with separate state below the lease's, and a spec with a plugin next to its playbook."""
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin/a.py").write_text("a")
    (tmp_path / "plugin/b.py").write_text("b" * 100_000)
    nodes = {name: node(name) for name in "ab"}
    facts = {name: spark({}, state_dir=lease.state_dir) for name in nodes}
    spec = dataclasses.replace(
        cluster(dict.fromkeys(nodes, "h"), state_dir=lease.state_dir),
        files={"./plugin": read("./plugin", tmp_path / "playbook.yaml")},
    )
    return Transfers(Fleet(nodes), facts, None, lambda _: lease.document(), lambda *_: None), facts, spec


def stage(world, lease):
    run, facts, spec = world
    (staging,) = small_files.find_missing(spec, facts)
    for node, _ in staging.missing:
        run.send("files", node, staging.files(lease.state_dir), staging.size_bytes)
    return spec.files[staging.name], run.copied


def test_playbook_files_reach_every_node_and_are_not_resent(world, lease, tmp_path):
    found, copied = stage(world, lease)
    place = tmp_path / "state/files" / found.mark / "plugin"
    assert {path.name: path.read_text() for path in place.iterdir()} == {"a.py": "a", "b.py": "b" * 100_000}
    assert [(each.what, each.node, each.source, each.bytes) for each in copied] == [
        ("files", "a", "controller", 100_001),
        ("files", "b", "controller", 0),  # the test's nodes share a directory
    ]
    assert storage.files(Machine(), lease.state_dir) == [found.mark]
    _, facts, spec = world
    facts = {name: each.model_copy(update={"files": (found.mark,)}) for name, each in facts.items()}
    assert list(small_files.find_missing(spec, facts)) == []


def test_an_incomplete_transfer_is_not_recorded(world, lease, tmp_path):
    (tmp_path / "plugin/b.py").unlink()
    with pytest.raises(StageError, match=r"b\.py cannot be read"):
        stage(world, lease)
    assert storage.files(Machine(), lease.state_dir) == []
