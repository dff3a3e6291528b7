"""A node that lies to the controller or to another node: nothing is written but what the controller listed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from sparkcluster.errors import StageError
from sparkcluster.hosts.base import Stream
from sparkcluster.hosts.program import stream
from sparkcluster.node import wire
from sparkcluster.node.tree import Tree
from sparkcluster.staging.again import Step
from sparkcluster.staging.copy import Failure, copy, list_files, stage_error
from sparkcluster.staging.manifest import BadAnswer, ListedFile, Manifest

REVISION = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "ab" * 32

# A program in the place of ours; ``request`` is what the controller sent.
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
    """Makes a node whose relay is another program: Python that ends with ``text``."""

    def make(name, text):
        made = node(name)
        program = made.home / "liar.py"
        program.write_text(LIAR + text)
        start = made._start

        def _start(argv, limit_s=None) -> Stream:
            return start([sys.executable, str(program)] if argv[-1] == "relay" else argv, limit_s)

        made._start = _start
        return made

    return make


@pytest.fixture
def step(lease):
    return Step("stage weights", lambda _: lease.document(), lambda: False)


def ignore(done, total):
    """Reports that no test reads."""


def listed(name, size=4, **more):
    return {"name": name, "size": size, "mtime": 0, "blob": None, **more}


@pytest.mark.parametrize(
    "files",
    [
        [listed("../x")],
        [listed("/etc/cron.d/x")],
        [listed("a/../../x")],
        [listed("..")],
        [listed("a/..")],
        [listed("a//x")],
        [listed("./x")],
        [listed("a/.")],
        [listed("")],
        [listed("x/")],
        [listed("a\0b")],
        [listed("a\nb")],
        [listed("\x9bm")],
        [listed("a\u202egpj")],
        [listed("\udce4")],
        [listed(".ssh/authorized_keys")],
        [listed("a/" * 600 + "x")],
        [listed("a" * 250)],
        [listed(".m.bin.0a1b2c3d.partial")],
        [listed("a"), listed("a")],
        [listed("a"), listed("a/b")],
        [listed("a/b"), listed("a")],
        [listed("a/b/c"), listed("a/b")],
        [listed("a", size=-1)],
        [listed("a", size=True)],
        [listed("a", size=1e3)],
        [listed("a", size=1 << 51)],
        [listed("a", size=None)],
        [listed("a", mtime=-1)],
        [listed("a", mtime=1 << 80)],
        [listed("a", sha256="AB" * 32)],
        [listed("a", sha256=[])],
        [listed(7)],
        [listed(["a"])],
        ["a"],
        [None],
        [{}],
    ],
)
def test_a_file_that_no_honest_node_has_is_refused(files):
    manifest = Manifest()
    for each in files[:-1]:
        manifest.add(ListedFile(**each))
    with pytest.raises((BadAnswer, ValidationError)):
        manifest.add(ListedFile.model_validate(files[-1]))


@pytest.mark.parametrize(
    "files",
    [
        [listed("a", blob="../../../x")],
        [listed("a", blob="")],
        [listed("a", blob=".x")],
        [listed("a", blob="b/c")],
        [listed("a", blob=["b"])],
        [listed("../../x")],
        [listed("..")],
        [listed("a", blob="b"), listed("a", blob="b")],
        [listed("a", blob="b"), listed("a/b", blob="b")],
        [listed("a", blob="0" * 64, sha256="1" * 64)],
    ],
)
def test_a_snapshot_is_made_of_blobs_and_of_names_inside_it(files):
    manifest = Manifest(REVISION)
    for each in files[:-1]:
        manifest.add(ListedFile(**each))
    with pytest.raises((BadAnswer, ValidationError)):
        manifest.add(ListedFile.model_validate(files[-1]))


@pytest.mark.parametrize("revision", ["..", "../../x", "a/b", "", "a" * 65, "main\n"])
def test_a_revision_is_one_name(revision):
    with pytest.raises(BadAnswer):
        Manifest(revision)


def test_what_an_honest_node_lists_becomes_paths_that_the_controller_made():
    manifest = Manifest(REVISION)
    for name, blob in (
        ("config.json", "c0"),
        ("sub/copy.json", "c0"),
        ("real file.py", None),
        (".gitattributes", "c1"),
    ):
        manifest.add(ListedFile(**listed(name, blob=blob, sha256=DIGEST, extra="ignored")))
    snapshot = f"snapshots/{REVISION}"
    assert manifest.files == [
        {"path": "blobs/c0", "size": 4, "mtime": 0, "sha256": DIGEST,
         "links": [f"{snapshot}/config.json", f"{snapshot}/sub/copy.json"]},
        {"path": f"{snapshot}/real file.py", "size": 4, "mtime": 0, "sha256": DIGEST, "links": []},
        {"path": "blobs/c1", "size": 4, "mtime": 0, "sha256": DIGEST, "links": [f"{snapshot}/.gitattributes"]},
    ]  # fmt: skip
    with pytest.raises(BadAnswer, match="has no SHA-256"):
        Manifest(verify=True).add(ListedFile(**listed("a")))


def test_twenty_thousand_files_are_checked_within_seconds():
    manifest = Manifest(REVISION)
    begin = time.process_time()
    for number in range(20_000):
        found = listed(f"{number % 100}/{number}", blob=f"{number:040x}", sha256=f"{number:064x}")
        manifest.add(ListedFile(**found))
    assert len(manifest.files) == 20_000
    assert time.process_time() - begin < 3


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("say(file={'name': '../../x', 'size': 1, 'mtime': 0}); say(done={})", "is not the path of a finished file"),
        ("say(done={})", "the list of files is missing"),
        ("say(done=[])", "done: "),
        ("say(file={'name': 'x', 'size': 1, 'mtime': 0}); say(bytes='x', total=[]); say(done={})", "bytes: "),
        ("say(file=7); say(done={})", "file: "),
        ("for n in range(10**9): say(file={'name': str(n), 'size': 0, 'mtime': 0})", "more than 100"),
        ("print('[' * 100000); say(done={})", r"unexpected output: \[\["),
        ("say(failed=['no'], kind={})", "failed: "),
        ("sys.exit('Traceback')", "Traceback"),
    ],
)  # fmt: skip
def test_a_list_that_makes_no_sense_is_that_nodes_error(hostile, step, monkeypatch, program, message):
    monkeypatch.setattr("sparkcluster.staging.manifest.MOST_FILES", 100)
    with pytest.raises(StageError, match=message) as caught:
        list_files(step, hostile("a", program), {"what": "files", "root": "/x"}, ignore)
    assert caught.value.node == "a"


def file(path, size=4, **more):
    return {"path": path, "size": size, "mtime": 0, "links": [], "sha256": None, **more}


HOSTILE_SENDER = """
sock = wire.accept(request["address"], request["token"])[0]
sock.recv(1000)
sock.sendall(b"good" + wire._FRAME.pack(9) + b'{"p":"x"}' + b"x" * 100000)
time.sleep(1)
"""


def test_a_sender_adds_nothing_to_what_the_controller_listed(hostile, node, step, tmp_path):
    target = tmp_path / "to"
    request = {"what": "files", "root": str(target), "files": [file("m.bin")]}
    copy(step, hostile("a", HOSTILE_SENDER), node("b"), address="127.0.0.1", requests=(request, request), report=ignore)
    assert {str(path.relative_to(target)) for path in target.rglob("*")} == {"m.bin"}
    assert (target / "m.bin").read_bytes() == b"good"


def test_another_content_than_was_listed_is_refused(hostile, node, step, tmp_path):
    """A node that became a source does not pass on other code than the first one has."""
    target = tmp_path / "to"
    request = {"what": "files", "root": str(target), "files": [file("m.py", sha256=DIGEST)]}
    with pytest.raises(StageError, match=r"m\.py arrived with another SHA-256"):
        copy(
            step, hostile("a", HOSTILE_SENDER), node("b"), address="127.0.0.1", requests=(request, request), report=ignore
        )  # fmt: skip
    assert not (target / "m.py").exists()


@pytest.mark.parametrize("port", ["'x'", "0.5", "-1", "70000", "True", "None", "[1]", "10**400"])
def test_a_port_is_a_port(hostile, node, step, port):
    request = {"what": "files", "root": "/x", "files": [file("m.bin")]}
    with pytest.raises(StageError, match=r"malformed answer to stage weights: port: |it did not start") as caught:
        copy(step, hostile("a", f"say(port={port}); time.sleep(9)"), node("b"), address="127.0.0.1",
             requests=(request, request), report=ignore)  # fmt: skip
    assert caught.value.node == "a"


@pytest.mark.parametrize(
    "program",
    [
        "say(done=7)",
        "say(done={'bytes': 'many'})",
        "say(done={'bytes': -1})",
        "say(done={'bytes': 1, 'image_id': '--output=/x'})",
        "say(done={'bytes': 1, 'image_id': ['sha256']})",
        "say(bytes=[], total=1)",
        "say(bytes=1, total='2')",
        "say(bytes=float('nan'), total=0)",
    ],
)
def test_a_receivers_answer_is_what_it_may_be(hostile, node, step, tmp_path, program):
    (tmp_path / "m.bin").write_bytes(b"good")
    request = {"what": "files", "root": str(tmp_path), "files": [file("m.bin")]}
    with pytest.raises(StageError, match=r"malformed answer to stage weights: |no output") as caught:
        copy(step, node("a"), hostile("b", program), address="127.0.0.1", requests=(request, request), report=ignore)
    assert caught.value.node == "b"


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


def test_a_directory_that_becomes_a_link_during_the_copy_is_not_followed(peer, tmp_path, outside):
    made = peer(file("sub/a"), file("sub/authorized_keys", 50_000_000))
    made.wire.read_frame()
    made.wire.send(b"good")
    sub = tmp_path / "to" / "sub"
    until = time.monotonic() + 20
    while not (sub / "a").exists() and time.monotonic() < until:
        time.sleep(0.01)
    sub.rename(tmp_path / "to" / "before")
    sub.symlink_to(outside)
    with contextlib.suppress(wire.Failed):  # it may have found the link before it read
        made.wire.send(b"evil" * 12_500_000)
    failed = made.outcome()
    assert failed == {"failed": f"expected a directory, found a link or a file: {sub}", "kind": "tree"}
    check_untouched(outside)


@pytest.mark.parametrize(
    "path", ["sub/authorized_keys", "sub/deep/x", "ok/../sub/x", "../outside/authorized_keys", "/etc/x"]
)
def test_a_link_below_the_directory_is_not_followed(peer, tmp_path, outside, path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(outside)
    assert peer(file(path)).outcome()["kind"] in {"tree", "other"}
    check_untouched(outside)


@pytest.mark.parametrize("links", [["sub/x"], ["sub"], ["../x"]])
def test_neither_are_links_made_through_one_nor_in_the_place_of_a_directory(peer, tmp_path, outside, links):
    (tmp_path / "to" / "m").mkdir(parents=True)
    (tmp_path / "to" / "m" / "x").write_bytes(b"good")
    (tmp_path / "to" / "sub").symlink_to(outside)
    found = peer(file("m/x", links=links)).outcome()
    assert ("done" in found) == (links == ["sub"])  # a link is replaced, its target left alone
    check_untouched(outside)


def test_links_in_the_place_of_files_are_replaced_and_not_written_through(peer, tmp_path, outside):
    to = tmp_path / "to"
    to.mkdir()
    (to / "m.bin").symlink_to(outside / "authorized_keys")
    made = peer(file("m.bin", 5))
    made.wire.read_frame()
    made.wire.send(b"other")
    assert made.outcome()["done"]["bytes"] == 5
    assert not (to / "m.bin").is_symlink()
    assert (to / "m.bin").read_bytes() == b"other"
    check_untouched(outside)


def test_a_partial_file_that_is_a_link_is_not_written_through(peer, tmp_path, outside):
    to = tmp_path / "to"
    to.mkdir()
    mark = hashlib.sha256(b"4000000-0").hexdigest()[:8]
    (to / f".m.bin.{mark}.partial").symlink_to(outside / "authorized_keys")
    made = peer(file("m.bin", 4_000_000))
    assert made.outcome()["kind"] == "tree"
    check_untouched(outside)


def test_a_directory_that_becomes_a_link_while_a_file_is_opened_is_not_followed(tmp_path, outside, monkeypatch):
    sub = tmp_path / "to" / "sub"
    sub.mkdir(parents=True)

    def swap(*_, **__):
        sub.rename(tmp_path / "to" / "before")
        sub.symlink_to(outside)
        raise FileNotFoundError

    tree = Tree(str(tmp_path / "to"))
    monkeypatch.setattr(os, "unlink", swap)  # what precedes the opening
    with tree.writer("sub/authorized_keys") as written:
        written.write(b"evil")
    check_untouched(outside)


def test_the_root_itself_may_be_a_link_of_the_user(peer, tmp_path):
    (tmp_path / "disk2").mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "disk2")
    made = peer(file("sub/m.bin"))
    made.wire.read_frame()
    made.wire.send(b"good")
    assert "done" in made.outcome()
    assert (tmp_path / "disk2" / "sub" / "m.bin").read_bytes() == b"good"


# the sender


@pytest.fixture
def sender(node, lease, impatient, tmp_path):
    """A relay that is to send two small files, and a connection to it that knows the token."""
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "one").write_bytes(b"1" * 10)
    (tmp_path / "from" / "two").write_bytes(b"2" * 20)
    request = {**lease.document(), "what": "files", "do": "send", "root": str(tmp_path / "from"), "token": "right",
               "address": "127.0.0.1", "files": [file("one", 10), file("two", 20)]}  # fmt: skip
    with stream(node("a"), "relay", request) as running:
        lines = running.lines(30)
        line = wire.Wire(wire.dial("127.0.0.1", json.loads(next(lines))["port"], "right"))
        yield line, lines
        line.close()


def test_a_receiver_gets_what_it_asks_for(sender):
    line, lines = sender
    line.send_frame(b"")
    line.send_frame(struct.pack("!IQIQ", 1, 5, 0, 0))
    assert line.read(25) == b"2" * 15 + b"1" * 10
    assert json.loads(next(lines)) == {"done": {"bytes": 25}}


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("!IIQ", 12, 2, 0),
        struct.pack("!IIQ", 12, 0, 11),
        struct.pack("!IIQ", 12, 0, 1 << 63),
        struct.pack("!I", 11) + b"x" * 11,
        struct.pack("!I", 25) + b"x" * 25,
        struct.pack("!I", 0xFFFFFFFF),
        struct.pack("!I", 1 << 30) + b"x",
        b"[[[[",
    ],
)
def test_a_receiver_that_asks_for_anything_else_gets_nothing(sender, message):
    line, lines = sender
    line.sock.sendall(message)
    assert json.loads(next(lines)) == {"failed": "invalid message from the other node", "kind": "link"}


def test_a_path_that_a_node_names_is_in_no_command_of_roots() -> None:
    failure = Failure("beta", "permission", "permission denied: /etc")
    hint = stage_error(Step("stage weights", lambda _: {}, lambda: False), failure).hint
    assert hint is not None
    assert "sudo" not in hint
