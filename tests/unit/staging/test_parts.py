"""Weights that no node has completely and several have in part: only missing files are downloaded."""

from __future__ import annotations

import pytest

from sparkcluster.errors import StageError
from sparkcluster.facts.weights import Weights
from sparkcluster.staging.manifest import ListedFile
from sparkcluster.staging.outside import Download
from sparkcluster.staging.trust import union
from tests.unit.staging.conftest import tree, write_model
from tests.unit.staging.world import REVISION

QWEN = "Qwen/Qwen3-8B"
ROOT = "hub/models--Qwen--Qwen3-8B"


def part(world, name, *gone, truncated=()):
    """A node has the model without some files; ``truncated`` ones are incomplete, as its facts say."""
    host = world.nodes[name]
    sizes = write_model(host.hf_home)
    snapshot = host.hf_home / ROOT / "snapshots" / REVISION
    for file in gone:
        (snapshot / file).resolve().unlink()
        (snapshot / file).unlink()
        sizes.pop(file)
    for file in truncated:
        with (snapshot / file).open("r+b") as opened:
            opened.truncate(1000)
        sizes[file] = 1000
    world.has_weights(name, sizes, REVISION)
    world.changes[name]["weights"] |= {"path": str(snapshot), "missing": list(gone), "truncated": list(truncated)}


def test_files_that_two_nodes_have_in_part_reach_all_without_a_download(world, really, hub):
    part(world, "b", "model.safetensors")
    part(world, "c", "config.json", "sub/empty.txt")
    report = world.stage(what=["weights"])
    whole = tree(world.nodes["b"].hf_home / ROOT)
    assert len(whole) == 9  # four blobs, four links, and the ref
    assert {name: tree(host.hf_home / ROOT) == whole for name, host in world.nodes.items()} == dict.fromkeys(
        "abc", True
    )
    assert {each.node: each.bytes for each in report.copied} == {"a": 3_000_005, "b": 3_000_000, "c": 2}
    assert hub.requests == []


def test_only_files_that_no_node_has_are_downloaded_by_a_node_with_the_rest(world, really, monkeypatch):
    part(world, "b", "model.safetensors", "config.json")
    part(world, "c", "config.json", "sub/empty.txt")
    downloads = []

    def fetch(self, node):
        snapshot = world.nodes[node].hf_home / ROOT / "snapshots" / REVISION
        downloads.append((node, sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*.*"))))
        (snapshot / "config.json").write_bytes(b"{}")
        return 2

    monkeypatch.setattr(Download, "on", fetch)
    report = world.stage(what=["weights"])
    assert downloads == [("b", ["model.safetensors", "sub/empty.txt", "tokenizer.json"])]
    moved = [(each.node, each.source, each.bytes) for each in report.copied]
    assert ("b", "download", 2) in moved
    assert sum(size for node, _, size in moved if node == "c") == 2
    assert sum(size for node, _, size in moved if node == "a") == 3_000_005
    files = [set(tree(host.hf_home / ROOT)) for host in world.nodes.values()]
    assert files[0] == files[1] == files[2]


def test_a_truncated_copy_does_not_count(world, really, hub):
    """It has another node's complete file in its place."""
    part(world, "a", truncated=["model.safetensors"])
    part(world, "b", "config.json")
    world.stage(what=["weights"])
    snapshots = [host.hf_home / ROOT / "snapshots" / REVISION for host in world.nodes.values()]
    assert [(path / "model.safetensors").stat().st_size for path in snapshots] == [3_000_000] * 3
    assert hub.requests == []


def listed(name, content, **more):
    return ListedFile(name=name, size=3, mtime=1, sha256=content * 32, **more)


FACTS = {"a": Weights(path="/w"), "b": Weights(path="/b w", truncated=("y",))}


def test_different_files_in_a_plain_directory_are_an_error():
    """For a user's directory no hash says which file is correct."""
    lists = {"a": {"x": listed("x", "0a")}, "b": {"x": listed("x", "0b"), "z": listed("z", "0c")}}
    with pytest.raises(StageError, match="no copy of x is known to be correct: ") as caught:
        union(lists, "m", FACTS)
    assert caught.value.hint == "rm /w/x   on a or rm '/b w/x'   on b, whichever is wrong, then retry"
    lists["b"]["x"] = listed("x", "0a")
    assert [file.name for file in union(lists, "m", FACTS)] == ["x", "z"]


@pytest.mark.parametrize(
    "copy",
    [
        listed("y", "0a"),  # truncated, according to the node's facts
        listed("x", "0a", blob="0b" * 32),  # its content does not match its name
        listed("x", "0a", blob="0b" * 20, git="0c" * 20),
        ListedFile(name="x", size=3, mtime=1, blob="0b" * 20),  # too large to be read for its hash
    ],
)
def test_a_copy_counts_only_if_it_is_complete_and_matches_the_hash_in_its_name(copy):
    assert union({"a": {}, "b": {copy.name: copy}}, "m", FACTS) == []
