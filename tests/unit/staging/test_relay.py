"""One copy between two real relays, and between one relay and a peer that misbehaves."""

from __future__ import annotations

import dataclasses
import os
import struct
import threading
import time
from functools import partial

import pytest

from sparkcluster.errors import LeaseLost, StageError
from sparkcluster.hosts import program
from sparkcluster.node import relay, wire
from sparkcluster.node.tree import Tree
from sparkcluster.staging import copy as copying
from sparkcluster.staging.again import Step
from sparkcluster.staging.copy import Failure, copy, list_files
from tests.unit.staging.conftest import Breaking


@pytest.fixture
def pair(node, lease, impatient):
    return node("a"), node("b")


@pytest.fixture
def step(lease):
    return Step("stage weights", lambda _: lease.document(), lambda: False)


def move(step, source, target, sending, receiving, reports=None):
    def report(done, total):
        if reports is not None:
            reports.append((done, total))

    if sending["what"] == "files":
        files = list_files(step, source, sending, report).files
        sending, receiving = {**sending, "files": files}, {**receiving, "files": files}
    return copy(step, source, target, address="127.0.0.1", requests=(sending, receiving), report=report)


def roots(pair, **more):
    shared = {"what": "files", "verify": False, **more}
    folder = "hub/models--Qwen--Qwen3-8B"
    return tuple({**shared, "root": f"{host.hf_home}/{folder}"} for host in pair)


def test_a_snapshot_is_copied_with_its_links_and_ref_and_a_second_run_copies_nothing(pair, step, model):
    write, tree, revision = model
    sizes = write(pair[0].hf_home)
    requests = roots(pair, revision=revision, ref="main")
    (pair[0].hf_home / "hub/models--Qwen--Qwen3-8B/blobs/other").write_bytes(b"of another revision")
    reports = []
    done = move(step, *pair, *requests, reports)
    assert done.bytes == sum(sizes.values())
    assert reports
    want = tree(pair[0].hf_home)
    del want["hub/models--Qwen--Qwen3-8B/blobs/other"]
    assert tree(pair[1].hf_home) == want
    assert move(step, *pair, *requests).bytes == 0


def test_a_directory_is_copied_with_its_times_and_only_changes_are_copied_again(pair, step, tmp_path):
    source, target = tmp_path / "from", tmp_path / "to"
    (source / "sub").mkdir(parents=True)
    (source / "one.bin").write_bytes(b"1" * 100_000)
    (source / "sub" / "two.bin").write_bytes(b"2" * 100)
    os.utime(source / "one.bin", ns=(5, 7_000_000_000))
    requests = {"what": "files", "root": str(source)}, {"what": "files", "root": str(target)}
    assert move(step, *pair, *requests).bytes == 100_100
    assert (target / "one.bin").stat().st_mtime_ns == 7_000_000_000
    (source / "sub" / "two.bin").write_bytes(b"3" * 101)
    assert move(step, *pair, *requests).bytes == 101
    assert (target / "sub" / "two.bin").read_bytes() == b"3" * 101


def test_a_copy_resumes_where_an_earlier_run_stopped(pair, step, model):
    write, tree, revision = model
    write(pair[0].hf_home)
    requests = roots(pair, revision=revision, ref="main")
    move(step, *pair, *requests)
    blob = max((pair[1].hf_home / "hub/models--Qwen--Qwen3-8B/blobs").iterdir(), key=lambda path: path.stat().st_size)
    partial = blob.with_name(f".{blob.name}.{_mark('3000000')}.partial")
    partial.write_bytes(blob.read_bytes()[:2_000_000])
    blob.unlink()
    assert move(step, *pair, *requests).bytes == 1_000_000
    assert tree(pair[1].hf_home) == tree(pair[0].hf_home)


def test_a_receiver_waits_for_another_one_of_the_same_directory(pair, step, tmp_path):
    """One that lost its operator may not have ended yet: two would write the same file."""
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    (source / "one.bin").write_bytes(b"1" * 100_000)
    other = Tree(str(target))
    assert other.lock()
    begin = time.monotonic()
    threading.Timer(0.7, os.close, [other.handle]).start()
    requests = {"what": "files", "root": str(source)}, {"what": "files", "root": str(target)}
    assert move(step, *pair, *requests).bytes == 100_000
    assert time.monotonic() - begin > 0.7


@pytest.mark.parametrize("silent", ["a", "b"])
def test_a_copy_goes_on_where_it_stopped_after_the_connection_to_a_node_broke(
    pair, step, tmp_path, monkeypatch, silent
):
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    (source / "one.bin").write_bytes(os.urandom(300_000))
    made, said = [], []

    def start(host, module, request):
        running = program.stream(host, module, request)
        if host.name != silent or request["do"] == "list":
            return running
        made.append(running)
        return Breaking(running, silent) if len(made) < 2 else running

    monkeypatch.setattr(copying, "stream", start)
    real = copying.follow

    def follow(step, node, *more):
        if (silent, node, len(made)) == ("a", "b", 1):  # the sender is asked only where the receiver failed
            return Failure("b", "link", "the connection broke")
        return real(step, node, *more)

    monkeypatch.setattr(copying, "follow", follow)
    requests = {"what": "files", "root": str(source)}, {"what": "files", "root": str(target)}
    step = dataclasses.replace(step, tell=lambda node, text: said.append((node, text)))
    move(step, *pair, *requests)
    assert len(made) == 2
    assert (target / "one.bin").read_bytes() == (source / "one.bin").read_bytes()
    assert said[0] == (
        silent,
        f"connection to {silent} broke: connecting again; files resume where they stopped",
    )


def _mark(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]


def test_verify_finds_and_replaces_files_that_only_have_the_right_size(pair, step, model):
    write, tree, revision = model
    sizes = write(pair[0].hf_home)
    requests = roots(pair, revision=revision, ref="main", verify=True)
    assert move(step, *pair, *requests).bytes == sum(sizes.values())
    blob = max((pair[1].hf_home / "hub/models--Qwen--Qwen3-8B/blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(b"X" * 3_000_000)
    assert move(step, *pair, *roots(pair, revision=revision, ref="main")).bytes == 0
    assert move(step, *pair, *requests).bytes == 3_000_000
    assert tree(pair[1].hf_home) == tree(pair[0].hf_home)


def test_verify_names_a_corrupt_source(pair, step, model):
    write, _, revision = model
    write(pair[0].hf_home)
    blob = max((pair[0].hf_home / "hub/models--Qwen--Qwen3-8B/blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(b"X" * 3_000_000)
    with pytest.raises(
        StageError, match=f"stage weights on a: blobs/{blob.name} is corrupt: its SHA-256 is "
    ) as caught:
        move(step, *pair, *roots(pair, revision=revision, ref="main", verify=True))
    assert caught.value.node == "a"


def test_a_missing_source_is_named(pair, step, model):
    with pytest.raises(StageError, match=r"stage weights on a: .* does not exist") as caught:
        move(step, *pair, *roots(pair, revision="abc"))
    assert caught.value.node == "a"


def plant(cache, revision, what, secret):
    """What an image that downloaded the model can leave in its cache, for the node's own programs to follow."""
    snapshot = cache / "snapshots" / revision
    if what in {"file", "relative"}:
        (snapshot / "tokenizer.json").unlink()
        (snapshot / "tokenizer.json").symlink_to(secret if what == "file" else "../../../../.ssh/../.ssh/id_ed25519")
    else:
        folder = {"blobs": cache / "blobs", "snapshot": snapshot, "snapshots": snapshot.parent}[what]
        folder.rename(secret.parent / folder.name)
        folder.symlink_to(secret.parent / folder.name)


@pytest.mark.parametrize("what", ["file", "relative", "blobs", "snapshot", "snapshots"])
def test_a_link_out_of_the_models_cache_carries_nothing_to_another_node(pair, step, model, what):
    write, _, revision = model
    write(pair[0].hf_home)
    secret = pair[0].hf_home / ".ssh" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("of the node's user")
    plant(pair[0].hf_home / "hub/models--Qwen--Qwen3-8B", revision, what, secret)
    sending, receiving = roots(pair, revision=revision, ref="main")
    listing = partial(list_files, step, pair[0], sending, lambda _done, _total: None)
    for attack in (listing, partial(move, step, *pair, sending, receiving)):
        with pytest.raises(StageError, match=r"leads out of the model's cache, to .*; check it: ls -l /") as caught:
            attack()
        assert caught.value.node == "a"
    assert not list(pair[1].home.rglob("tokenizer.json"))


def test_a_file_that_becomes_a_link_while_it_is_opened_is_not_sent(tmp_path, monkeypatch):
    (tmp_path / "cache" / "blobs").mkdir(parents=True)
    blob, secret = tmp_path / "cache" / "blobs" / "c0", tmp_path / "id_ed25519"
    blob.write_text("code")
    secret.write_text("of the node's user")

    def swap(*_):
        blob.unlink()
        blob.symlink_to(secret)

    monkeypatch.setattr(relay, "stay_inside", swap)
    with pytest.raises(OSError, match="expected a directory, found a link or a file"):
        relay._opened(str(tmp_path / "cache"), "blobs/c0", "0" * 40)


def test_a_file_that_becomes_a_link_after_it_was_listed_is_not_sent(pair, step, model):
    write, _, revision = model
    write(pair[0].hf_home)
    sending, receiving = roots(pair, revision=revision, ref="main")
    files = list_files(step, pair[0], sending, lambda _done, _total: None).files
    blob = pair[0].hf_home / "hub/models--Qwen--Qwen3-8B" / files[0]["path"]
    secret = pair[0].home / "id_ed25519"
    secret.write_bytes(b"s" * blob.stat().st_size)
    blob.unlink()
    blob.symlink_to(secret)
    with pytest.raises(StageError, match="leads out of the model's cache"):
        copy(step, *pair, address="127.0.0.1", requests=({**sending, "files": files}, {**receiving, "files": files}),
             report=lambda _done, _total: None)  # fmt: skip


def test_a_cache_on_another_disk_is_copied(pair, step, model, tmp_path):
    write, _, revision = model
    sizes = write(pair[0].hf_home)
    root = pair[0].hf_home / "hub/models--Qwen--Qwen3-8B"
    root.rename(tmp_path / "disk2")
    root.symlink_to(tmp_path / "disk2")
    assert move(step, *pair, *roots(pair, revision=revision, ref="main")).bytes == sum(sizes.values())


def test_links_in_a_directory_of_the_users_are_followed(pair, step, tmp_path):
    (tmp_path / "disk2").mkdir()
    (tmp_path / "disk2" / "one.bin").write_bytes(b"1" * 100)
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "one.bin").symlink_to(tmp_path / "disk2" / "one.bin")
    requests = [{"what": "files", "root": str(tmp_path / name)} for name in ("from", "to")]
    assert move(step, *pair, *requests).bytes == 100


def test_an_unwritable_target_is_named(pair, step, model):
    write, _, revision = model
    write(pair[0].hf_home)
    sending, receiving = roots(pair, revision=revision, ref="main")
    with pytest.raises(StageError, match="stage weights on b: ") as caught:
        move(step, *pair, sending, {**receiving, "root": "/proc/nothing"})
    assert caught.value.node == "b"


@pytest.mark.parametrize("epoch", [6, 8])
def test_another_epoch_is_refused(pair, lease, model, epoch):
    write, tree, revision = model
    write(pair[0].hf_home)
    step = Step("stage weights", lambda _: lease.document(epoch), lambda: False)
    with pytest.raises(LeaseLost, match="a refuses the change: epoch"):
        move(step, *pair, *roots(pair, revision=revision, ref="main"))
    assert tree(pair[1].home) == {}


@pytest.mark.full
def test_a_model_of_twenty_thousand_files_is_listed_and_requested(pair, step, tmp_path):
    source, target = tmp_path / "from", tmp_path / "to"
    for folder in (source, target):
        for number in range(20_000):
            place = folder / f"directory-{number % 40:060}"
            if number < 40:
                place.mkdir(parents=True)
            (place / f"{number:060}").touch()
    (target / f"directory-{7:060}" / f"{7:060}").unlink()
    requests = {"what": "files", "root": str(source)}, {"what": "files", "root": str(target)}
    move(step, *pair, *requests)
    assert (target / f"directory-{7:060}" / f"{7:060}").exists()


def file(path="m.bin", size=10_000_000, **more):
    return {"path": path, "size": size, "mtime": 0, "links": [], "sha256": None, **more}


def wanted(*files):
    return b"".join(struct.pack("!IQ", *each) for each in files)


def test_a_sender_that_dies_is_reported_and_received_data_is_kept(peer, tmp_path):
    peer = peer(file())
    assert peer.wire.read_frame() == wanted((0, 0))
    peer.wire.send(b"x" * 4_000_000)
    peer.wire.close()
    assert peer.outcome() == {"failed": "the other node closed the connection too early", "kind": "link"}
    partials = [path.name for path in (tmp_path / "to").iterdir()]
    assert len(partials) == 1
    assert partials[0].endswith(".partial")


def test_a_broken_link_ends_the_copy_within_the_limit(peer):
    peer = peer(file())
    begin = time.monotonic()
    peer.wire.send(b"x" * 1000)
    assert peer.outcome() == {"failed": "received nothing for 1 s", "kind": "link"}
    assert time.monotonic() - begin < 5


def test_a_lost_lease_stops_the_copy(peer, lease, tmp_path):
    peer = peer(file())
    peer.wire.send(b"x" * 1000)
    lease.let_go()
    lease.record(granted=False)

    def trickle() -> None:
        try:
            for _ in range(100):
                peer.wire.send(b"x" * 1000)
                time.sleep(0.05)
        except wire.Failed:
            return

    thread = threading.Thread(target=trickle)
    thread.start()
    outcome = peer.outcome()
    thread.join(10)
    assert outcome["refused"] == "epoch 7 is over: test is acquiring the lease"
    assert not (tmp_path / "to" / "m.bin").exists()


def test_a_copy_goes_on_when_the_lease_lapses(peer, lease, tmp_path):
    """The operator is silent, and no other one has asked for the lease."""
    peer = peer(file())
    peer.wire.send(b"x" * 1000)
    lease.let_go()
    for _ in range(30):  # it looks each second
        peer.wire.send(b"x" * 1000)
        time.sleep(0.05)
    peer.wire.send(b"x" * (file()["size"] - 31_000))
    assert peer.outcome() == {"done": {"bytes": file()["size"]}}
    assert (tmp_path / "to" / "m.bin").exists()


def test_a_copy_that_does_not_fit_fails_before_the_first_byte(peer):
    outcome = peer(file(size=10**15)).outcome()
    assert outcome["kind"] == "disk"
    assert "1000000.0 GB needed" in outcome["failed"]


def test_the_relay_exits_with_its_controller(peer):
    peer = peer(file())
    peer.running._process.stdin.close()
    assert peer.running._process.wait(5) == 1
