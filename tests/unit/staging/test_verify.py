"""``stage --verify``: which copy is correct, and the repair of the others."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from sparkcluster.cli.stage_view import copied
from sparkcluster.errors import StageError
from sparkcluster.facts.weights import Weights
from sparkcluster.staging import run
from sparkcluster.staging.manifest import ListedFile
from sparkcluster.staging.trust import compare, right
from tests.unit.staging.conftest import RecordingReport, tree, write_model
from tests.unit.staging.world import REVISION

GOOD, BAD, WORSE = "5a" * 32, "e0" * 32, "0e" * 32
FILES = {"config.json": b"{}", "sub/model.safetensors": b"w" * 300_000}


def flip(path: Path, at: int = 1) -> None:
    """Flip one bit of a file, invisible in a listing."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


two = pytest.mark.parametrize("names", ["ab"])


@pytest.fixture
def directory(world, monkeypatch):
    """A model in a separate directory on each node of ``world``; returns the folders by node."""
    places = {name: host.home / "model" for name, host in world.nodes.items()}
    real = run.weights_request

    def request(transfers, staging, node):
        found = real(transfers, staging, node)
        return {key: found[key] for key in ("verify", "choice", "keep")} | {"root": str(places[node])}

    monkeypatch.setattr(run, "weights_request", request)
    for name, place in places.items():
        for file, content in FILES.items():
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_bytes(content)
        has_directory(world, name, place)
    return places


def has_directory(world, name, place):
    files = [{"name": file, "size_bytes": len(content)} for file, content in FILES.items()]
    world.changes[name]["weights"] = {"path": str(place), "revision": None, "files": files}
    world.changes[name]["weights"]["revision"] = "x"


def whole(world):
    for name, host in world.nodes.items():
        world.has_weights(name, write_model(host.hf_home), REVISION)
        world.changes[name]["weights"]["path"] = str(snapshot(host))


def snapshot(host):
    return host.hf_home / "hub/models--Qwen--Qwen3-8B/snapshots" / REVISION


def verify(world, **more):
    return world.stage(what=["weights"], verify=True, **more)


def test_a_flipped_bit_in_a_directory_is_repaired_from_the_other_nodes(world, directory, capsys):
    """The first node is not correct by definition: a flipped bit there would be copied over every good copy."""
    copied(verify(world))
    assert capsys.readouterr().out == "weights  Qwen/Qwen3-8B: every byte verified on a, b, c\n"
    flip(directory["a"] / "sub/model.safetensors", 200_000)
    report = verify(world)
    for place in directory.values():
        assert tree(place) == FILES
    (found,) = report.corrupt
    assert (found.node, found.file, found.source) == ("a", "sub/model.safetensors", "b")
    assert [(each.node, each.bytes) for each in report.copied] == [("a", 300_000)]
    assert report.as_json()["corrupt"][0]["expected"] == hashlib.sha256(FILES["sub/model.safetensors"]).hexdigest()
    copied(report)
    assert "a had a corrupt copy of sub/model.safetensors" in capsys.readouterr().out


def test_a_users_file_in_the_place_of_a_staged_one_is_kept_next_to_it(world, directory):
    (directory["a"] / "chat_template.jinja").write_bytes(b"another")
    path = directory["c"] / "chat_template.jinja"
    path.write_bytes(b"mine")
    (directory["c"] / "sub/model.safetensors").unlink()
    world.changes["c"]["weights"]["missing"] = ["sub/model.safetensors"]
    report = RecordingReport()
    world.stage(what=["weights"], report=report)
    assert path.read_bytes() == b"another"
    assert path.with_name("chat_template.jinja.replaced").read_bytes() == b"mine"
    assert any(note.endswith("chat_template.jinja.replaced") for note in report.notes)


@two
def test_a_users_link_is_kept_next_to_the_file_that_replaces_it(world, directory):
    verify(world)
    path, elsewhere = directory["b"] / "sub/model.safetensors", directory["b"].parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert verify(world).corrupt == ()
    flip(elsewhere)
    assert len(verify(world).corrupt) == 1
    assert tree(directory["b"]) == {**FILES, "sub/model.safetensors.replaced": str(elsewhere)}
    assert elsewhere.read_bytes() != FILES["sub/model.safetensors"]


@two
def test_nodes_with_different_corrupt_files_repair_each_other(world):
    whole(world)
    flip((snapshot(world.nodes["a"]) / "config.json").resolve())
    flip((snapshot(world.nodes["b"]) / "model.safetensors").resolve())
    report = verify(world)
    assert {(each.node, each.file) for each in report.corrupt} == {("a", "config.json"), ("b", "model.safetensors")}
    for host in world.nodes.values():
        for path in snapshot(host).rglob("*.*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.resolve().name


def copies(**nodes):
    """Copies by node, each given as its SHA-256, blob, and its record."""
    found = {}
    for node, (sha256, blob, recorded) in nodes.items():
        found[node] = ListedFile(name="m", size=4, mtime=0, sha256=sha256, blob=blob, recorded=recorded)
    return found


@pytest.mark.parametrize(
    ("found", "holders"),
    [
        (copies(a=(GOOD, None, None), b=(GOOD, None, None)), "ab"),
        (copies(a=(BAD, GOOD, None), b=(BAD, GOOD, None), c=(GOOD, GOOD, None)), "c"),
        (copies(a=(BAD, GOOD, None), b=(WORSE, GOOD, None)), ""),
        (copies(a=(BAD, None, GOOD), b=(GOOD, None, None)), "b"),
        (copies(a=(BAD, None, GOOD), b=(WORSE, None, None)), ""),
        # however many agree: a may have newer weights
        (copies(a=(BAD, None, None), b=(GOOD, None, GOOD), c=(GOOD, None, GOOD)), ""),
        # a node's claim about another node's file
        (copies(a=(GOOD, None, None), b=(BAD, None, BAD)), ""),
        (copies(a=(GOOD, GOOD, None), b=(BAD, BAD, BAD)), ""),
        # no hash
        (copies(a=(GOOD, "weights", None), b=(BAD, "weights", None)), ""),
    ],
)
def test_correct_copies(found, holders):
    assert "".join(right(found)) == holders


def test_if_no_copy_is_known_to_be_correct_the_commands_to_remove_them_are_shown():
    """In the hub's cache that is the blob. Nothing is changed."""
    lists = {
        "a": {"m": copies(a=(GOOD, None, None))["a"], "n": copies(a=(BAD, GOOD, None))["a"]},
        "b": {"m": copies(b=(BAD, None, None))["b"], "n": copies(b=(WORSE, GOOD, None))["b"]},
    }
    with pytest.raises(StageError) as caught:
        compare(lists, "mn", "o/m", {"a": Weights(path="/w"), "b": Weights(path="/b w")})
    assert caught.value.message == (
        f"no copy of m is known to be correct: SHA-256 {GOOD[:12]}… on a, SHA-256 {BAD[:12]}… on b, and of 1 more files; "
        "nothing was changed"
    )
    assert caught.value.hint == "rm /w/m   on a or rm '/b w/m'   on b, whichever is wrong, then retry"
    with pytest.raises(StageError) as caught:
        compare(lists, "n", "o/m", dict.fromkeys("ab", Weights(path="/hub/o--m/snapshots/c")))
    assert caught.value.hint == f"rm /hub/o--m/blobs/{GOOD}   on a or b, whichever is wrong, then retry"
