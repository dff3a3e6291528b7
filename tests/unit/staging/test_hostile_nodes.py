"""A node that lies to the controller or to another node: only files listed by the controller are written."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sparkcluster.errors import StageError
from sparkcluster.hosts.base import Stream
from sparkcluster.node import wire
from sparkcluster.staging.copy import Failure, Step, list_files, stage_error
from sparkcluster.staging.follower import Follower
from sparkcluster.staging.manifest import BadAnswer, ListedFile, Manifest
from tests.unit.staging.workers import chain, eventually, written
from tests.unit.staging.world import REVISION

DIGEST = "ab" * 32

# A program that replaces ours; ``request`` is the controller's request.
LIAR = f"""
import json, os, sys, time
sys.path.insert(0, {str(Path(wire.__file__).parents[2])!r})
from sparkcluster.node import wire
request = json.loads(sys.stdin.buffer.readline())["request"]
def say(**document):
    print(json.dumps(document), flush=True)
"""


@pytest.fixture
def hostile(node):
    """Creates a node whose listing and worker are another program: Python that ends with ``text``."""

    def make(name, text):
        made = node(name)
        program = made.home / "liar.py"
        program.write_text(LIAR + text)
        start = made._start

        def _start(argv, limit_s=None) -> Stream:
            return start([sys.executable, str(program)] if argv[-1] in {"listing", "worker"} else argv, limit_s)

        made._start = _start
        return made

    return make


@pytest.fixture
def step(lease):
    return Step("stage weights", lambda _: lease.document(), lambda: False)


def ignore(done, total):
    """Ignore reports."""


def listed(name, size=4, **more):
    return {"name": name, "size": size, "mtime": 0, "blob": None, **more}


@pytest.mark.parametrize(
    "files",
    [
        [listed("/etc/cron.d/x")],
        [listed("a/../../x")],
        [listed("..")],
        [listed("")],
        [listed("a\nb")],
        [listed("a\u202egpj")],
        [listed(".ssh/authorized_keys")],
        [listed("a/" * 600 + "x")],
        [listed(".m.bin.0a1b2c3d.partial")],
        [listed("a"), listed("a")],
        [listed("a"), listed("a/b")],
        [listed("a/b"), listed("a")],
        [listed("a", size=-1)],
        [listed("a", sha256="AB" * 32)],
        [listed(7)],
        [None],
    ],
)
def test_a_file_that_no_honest_node_lists_is_refused(files):
    Manifest.of((ListedFile(**each) for each in files[:-1]), None)
    with pytest.raises((BadAnswer, ValidationError)):
        Manifest.of((ListedFile.model_validate(each) for each in files), None)


@pytest.mark.parametrize(
    "files",
    [
        [listed("a", blob="../../../x")],
        [listed("a", blob=".x")],
        [listed("../../x")],
        [listed("a", blob="b"), listed("a/b", blob="b")],
        [listed("a", blob="b"), listed("c", blob="b", size=5)],
    ],
)
def test_a_snapshot_consists_of_blobs_and_names_inside_it(files):
    Manifest.of((ListedFile(**each) for each in files[:-1]), REVISION)
    with pytest.raises((BadAnswer, ValidationError)):
        Manifest.of((ListedFile.model_validate(each) for each in files), REVISION)


@pytest.mark.parametrize("revision", ["..", "a/b", "", "main\n"])
def test_a_revision_is_a_single_name(revision):
    with pytest.raises(BadAnswer):
        Manifest.of([], revision)


def test_the_list_of_an_honest_node_becomes_paths_made_by_the_controller():
    names = {"config.json": "c0", "sub/copy.json": "c0", "real file.py": None, ".gitattributes": "c1"}
    found = [ListedFile(**listed(name, blob=blob, sha256=DIGEST, extra="ignored")) for name, blob in names.items()]
    snapshot = f"snapshots/{REVISION}"
    assert Manifest.of(found, REVISION).files == [
        {"path": "blobs/c0", "size": 4, "mtime": 0, "sha256": DIGEST,
         "links": [f"{snapshot}/config.json", f"{snapshot}/sub/copy.json"]},
        {"path": f"{snapshot}/real file.py", "size": 4, "mtime": 0, "sha256": DIGEST, "links": []},
        {"path": "blobs/c1", "size": 4, "mtime": 0, "sha256": DIGEST, "links": [f"{snapshot}/.gitattributes"]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("say(file={'name': '../../x', 'size': 1, 'mtime': 0}); say(done={})", "is not the path of a finished file"),
        ("say(done={})", "the list of files is missing"),
        ("say(file=7); say(done={})", "file: "),
        ("for n in range(10**9): say(file={'name': str(n), 'size': 0, 'mtime': 0})", "more than 100"),
        ("print('[' * 100000); say(done={})", r"unexpected output: \[\["),
        ("sys.exit('Traceback')", "Traceback"),
    ],
)  # fmt: skip
def test_an_invalid_list_is_an_error_of_that_node(hostile, step, monkeypatch, program, message):
    monkeypatch.setattr("sparkcluster.staging.copy.MOST_FILES", 100)
    with pytest.raises(StageError, match=message) as caught:
        list_files(step, hostile("a", program), {"root": "/x"}, ignore)
    assert caught.value.node == "a"


def followed(step, host):
    """The reason why a worker is no longer followed."""
    heard = []
    Follower(step, host, {}, b"{}\n", heard.append).run()
    node, how = heard[-1]
    return node, how.text if isinstance(how, Failure) else how.message


@pytest.mark.parametrize(
    "program",
    [
        "say(done=7)",
        "say(done={'bytes': -1})",
        "say(done={'bytes': 1, 'image_id': '--output=/x'})",
        "say(bytes=float('nan'), total=0)",
    ],
)
def test_only_valid_answers_of_a_worker_are_accepted(hostile, step, program):
    node, why = followed(step, hostile("b", program))
    assert node == "b"
    assert re.search("malformed answer to stage weights: |no output", why)


# the receiver


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "authorized_keys").write_text("ours")
    return place


def check_untouched(outside):
    assert [path.name for path in outside.iterdir()] == ["authorized_keys"]
    assert (outside / "authorized_keys").read_text() == "ours"


@pytest.fixture
def bring(workers):
    """One worker copies files to another; returns the result."""

    def run(sizes, prepare=lambda _root: None, **more):
        a, b = workers(*"ab")
        files = written(a.root, sizes)
        b.root.parent.mkdir(parents=True, exist_ok=True)
        prepare(b.root)
        a.begin(files)
        b.begin([{**file, **more} for file in files])
        eventually(lambda: "lacks" in b.said or "over" in b.said)
        if "over" not in b.said:
            chain((a, b))
        eventually(lambda: "done" in b.said or "over" in b.said)
        return b

    return run


def test_a_directory_replaced_by_a_link_during_the_copy_is_not_followed(workers, tmp_path, outside):
    a, b = workers(*"ab")
    files = written(a.root, {"sub/a": 10_000_000, "sub/authorized_keys": 70_000})
    a.begin(files, limit_bytes_s=10_000_000)
    b.begin(files)
    chain((a, b))
    sub = b.root / "sub"
    eventually(lambda: sub.is_dir() and any(sub.iterdir()))
    sub.rename(b.root / "before")
    sub.symlink_to(outside)
    eventually(lambda: "done" in b.said or "over" in b.said)
    assert b.said["failed"] == f"expected a directory, found a link or a file: {sub}"
    assert b.said["kind"] == "tree"
    check_untouched(outside)


@pytest.mark.parametrize(("path", "size"), [("sub/authorized_keys", 4), ("sub/deep/x", 3_000_000)])
def test_a_link_below_the_directory_is_not_followed(bring, outside, path, size):
    def prepare(root):
        root.mkdir()
        (root / "sub").symlink_to(outside)

    assert bring({path: size}, prepare).said["kind"] == "tree"
    check_untouched(outside)


@pytest.mark.parametrize("links", [["sub/x"], ["sub"], ["../x"]])
def test_links_are_not_created_through_links_or_over_directories(bring, outside, links):
    def prepare(root):
        root.mkdir()
        (root / "sub").symlink_to(outside)

    said = bring({"m/x": 4}, prepare, links=links).said
    assert ("done" in said) == (links == ["sub"])  # a link is replaced, its target left alone
    check_untouched(outside)


def test_links_in_place_of_files_are_replaced_and_not_written_through(bring, outside):
    def prepare(root):
        root.mkdir()
        (root / "m.bin").symlink_to(outside / "authorized_keys")

    b = bring({"m.bin": 5}, prepare)
    assert b.said["done"]["bytes"] == 5
    assert not (b.root / "m.bin").is_symlink()
    check_untouched(outside)


def test_a_partial_file_that_is_a_link_is_not_written_through(bring, outside):
    def prepare(root):
        root.mkdir()
        mark = hashlib.sha256(b"4000000-7000000000").hexdigest()[:8]
        (root / f".m.bin.{mark}.partial").symlink_to(outside / "authorized_keys")

    bring({"m.bin": 4_000_000}, prepare)
    check_untouched(outside)


def test_the_root_may_be_a_link_of_the_user(bring, tmp_path):
    (tmp_path / "disk2").mkdir()
    b = bring({"sub/m.bin": 4}, lambda root: root.symlink_to(tmp_path / "disk2"))
    assert "done" in b.said
    assert (tmp_path / "disk2" / "sub" / "m.bin").stat().st_size == 4


def test_a_path_reported_by_a_node_is_in_no_sudo_command() -> None:
    failure = Failure("beta", "permission", "permission denied: /etc")
    hint = stage_error(Step("stage weights", lambda _: {}, lambda: False), failure).hint
    assert hint is not None
    assert "sudo" not in hint
