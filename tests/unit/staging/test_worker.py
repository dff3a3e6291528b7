"""Workers as processes: chains, and failures of a worker, its disk, a connection or the operator."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from functools import partial

import pytest

from sparkcluster.hosts import program
from sparkcluster.node import common
from tests.unit.staging.workers import chain, content, eventually, flip, written

MB = 1_000_000
SIZES = {"one.bin": 9 * MB, "sub/two.bin": 5 * MB + 3, "config.json": 300, "empty": 0, "sub/small.txt": 70_000}
LARGE = {"one.bin": 5 * MB, "two.bin": 5 * MB, "three.bin": 5 * MB, "four.bin": 5 * MB, "config.json": 300}


def total(sizes):
    return sum(sizes.values())


@pytest.mark.parametrize("receivers", [1, 4])
def test_all_copies_are_equal_and_each_node_sends_once(workers, receivers):
    nodes = workers(*"abcdefgh"[: receivers + 1])
    files = written(nodes[0].root, SIZES)
    for each in nodes:
        each.begin(files)
    chain(nodes)
    for each in nodes[1:]:
        done = each.wait("done")
        assert done["bytes"] == total(SIZES)
        assert each.peak_bytes < 64 << 20
        assert content(each.root) == content(nodes[0].root)
        assert (each.root / "one.bin").stat().st_mtime_ns == 7_000_000_000
    for near, far in itertools.pairwise(nodes):
        assert far.said["from"] == near.name
    for each in nodes:
        each.order(end=True)
    for each in nodes:
        each.wait("over")


@pytest.fixture
def slow_chain(workers):
    """A chain of four with a slow source, and ``third`` of the files present."""
    nodes = workers(*"abcd")
    files = written(nodes[0].root, LARGE)
    nodes[0].begin(files, limit_bytes_s=6 * MB)
    for each in nodes[1:]:
        each.begin(files)
    chain(nodes)
    eventually(lambda: nodes[3].said.get("bytes", 0) > total(LARGE) / 4)
    return nodes


def test_the_next_node_continues_without_the_previous_one_at_the_same_position(slow_chain):
    a, b, c, d = slow_chain
    b.kill()
    for each in (c, d):
        assert each.wait("done")["bytes"] == total(LARGE), "no byte twice"
        assert content(each.root) == content(a.root)
    (left,) = c.said["left"]
    assert left["node"] == "b"
    assert d.said["left"] == [], "a receiver does not leave a node without data"


def test_missing_files_are_reported_and_the_next_run_receives_only_these(workers, set_source):
    real = program.source.__wrapped__
    set_source(
        lambda module, engine: real(module, engine).replace(
            "_PATIENCE_S, _HASHING_S = 60.0", "_PATIENCE_S, _HASHING_S = 2.0"
        )
    )
    a, b, c = workers(*"abc")
    files = written(a.root, LARGE)
    a.begin(files, limit_bytes_s=10 * MB)
    b.begin(files)
    c.begin(files)
    chain((a, b, c))
    eventually(lambda: c.said.get("bytes", 0) > total(LARGE) / 4)
    a.kill()
    for each in (b, c):
        each.wait("over")
        assert each.said["kind"] == "missing"
        assert each.said["failed"].startswith("no node sends ")
        assert not (each.root / "config.json").exists() or content(each.root)["config.json"] == files[-1]["sha256"]
    had = {each: each.said["bytes"] for each in (b, c)}
    assert had[c] > total(LARGE) / 4
    for each in (a, b, c):
        each.begin(files)
    assert b.wait("room")["needed"] == total(LARGE) - had[b]
    chain((a, b, c))
    for each in (b, c):
        assert each.wait("done")["bytes"] == total(LARGE) - had[each]
        assert content(each.root) == content(a.root)


def test_a_full_disk_ends_one_node_and_the_next_ones_continue(workers, small_disk):
    a, b, c = workers(*"abc")
    files = written(a.root, LARGE)
    b.root = small_disk(7 * MB)
    for each in (a, b, c):
        each.begin(files)
    assert b.wait("room")["needed"] == total(LARGE)
    assert b.said["room"]["free"] < b.said["room"]["needed"]
    chain((a, b, c))
    b.wait("over")
    assert b.said["kind"] == "disk"
    assert b.said["failed"].startswith("no space left on device")
    assert c.wait("done")["bytes"] == total(LARGE)
    assert content(c.root) == content(a.root)
    assert [each["node"] for each in c.said["left"]] == ["b"]


def test_a_byte_corrupted_in_transit_is_reported_and_the_file_resent(workers, proxy):
    a, b, c = workers(*"abc")
    (file,) = files = written(a.root, {"one.bin": 8 * MB})
    for each in (a, b, c):
        each.begin(files)
    between = proxy(a.way()["port"], flip(4 * MB))
    b.order(**{"from": [{"node": "a", "ways": [{**a.way(), "port": between.port}]}]})
    c.order(**{"from": [b.source(), a.source()]})
    for each in (b, c):
        each.wait("done")
        assert content(each.root) == content(a.root)
    (wrong,) = b.said["wrong"]
    assert (wrong["file"], wrong["from"]) == (0, "a")
    assert wrong["sha256"] != file["sha256"]
    assert b.said["left"] == []
    assert all(each["from"] == "b" for each in c.said["wrong"])
    assert c.said["left"] == []


def test_a_node_whose_files_always_arrive_corrupt_is_abandoned(workers, proxy, set_source):
    # a busy disk must not count as a silent node, whose first file may be left by an earlier run
    real = program.source.__wrapped__
    set_source(lambda module, engine: real(module, engine).replace("SILENT_S = 5.0", "SILENT_S = 60.0"))
    a, b, c = workers(*"abc")
    files = written(a.root, {"one.bin": 5 * MB})
    written(b.root, {})
    b.root.mkdir(parents=True, exist_ok=True)
    (b.root / "one.bin").write_bytes((a.root / "one.bin").read_bytes())
    for each in (a, b, c):
        each.begin(files)
    between = proxy(b.way()["port"], flip(2 * MB, every=5 * MB))
    c.order(**{"from": [{"node": "b", "ways": [{**b.way(), "port": between.port}]}, a.source()]})
    c.wait("done")
    assert content(c.root) == content(a.root)
    assert [each["from"] for each in c.said["wrong"]] == ["b", "b"]
    assert [each["node"] for each in c.said["left"]] == ["b"]


def test_a_file_that_is_corrupt_on_every_node_is_an_error(workers):
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 5 * MB, "two.bin": 3 * MB})
    with (a.root / "one.bin").open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(b"y" if first == b"x" else b"x")
    a.begin(files)
    b.begin(files)
    chain((a, b))
    b.wait("over")
    assert b.said["kind"] == "hash"
    assert not (b.root / "one.bin").exists()
    assert b.said["failed"] == "one.bin arrived with a wrong SHA-256 from every node"


def test_a_rail_that_fails_during_a_copy_is_reported_and_the_other_is_used(workers, proxy):
    a, b = workers(*"ab")
    files = written(a.root, LARGE)
    a.begin(files, listen={"127.0.0.1": False, "127.0.0.2": False}, limit_bytes_s=10 * MB)
    b.begin(files)
    rail = proxy(a.way()["port"])
    b.order(**{"from": [{"node": "a", "ways": [a.way("127.0.0.2"), {**a.way(), "port": rail.port}]}]})
    eventually(lambda: b.said.get("bytes", 0) > total(LARGE) / 4)
    rail.close()
    assert b.wait("done")["bytes"] == total(LARGE)
    (gone,) = b.said["left"]
    assert (gone["node"], gone["address"]) == ("a", "127.0.0.1")
    assert content(b.root) == content(a.root)


def test_a_worker_continues_without_its_operator_and_the_next_operator_follows_it(slow_chain):
    a, *_, d = slow_chain
    d.detach()
    d.let_go()
    eventually((d.root / "four.bin").exists)
    d.take_lease(2)
    d.begin(token="0" * 32)
    assert d.wait("token") == d.token, "the running worker's token"
    assert d.wait("done")["bytes"] == total(LARGE)
    assert content(d.root) == content(a.root)


def test_a_worker_pauses_while_another_operator_has_the_lease_and_continues_for_that_operator(workers):
    a, b = workers(*"ab")
    files = written(a.root, LARGE)
    a.begin(files, limit_bytes_s=MB)
    b.begin(files)
    chain((a, b))
    eventually(lambda: b.said.get("bytes", 0) > MB)
    b.detach()
    b.take_lease(granted=False)
    eventually(lambda: _still(b))
    assert _size(b) < total(LARGE)
    a.kill()
    a.begin(files)
    b.take_lease(2)
    b.begin()
    b.order(**{"from": [a.source()]})
    assert b.wait("done")["bytes"] == total(LARGE)


def _size(worker):
    return sum(path.stat().st_size for path in worker.root.iterdir())


def _still(worker):
    before = _size(worker)
    time.sleep(1)
    return _size(worker) == before


def test_a_lost_lease_ends_the_worker(slow_chain, set_source):
    *_, d = slow_chain
    d.detach()
    real = program.source.__wrapped__
    set_source(lambda module, engine: real(module, engine).replace("_ADOPTED_S = 60.0", "_ADOPTED_S = 1.0"))
    d.kill()
    d.begin()
    d.wait("ports")
    d.take_lease(granted=False)
    d.wait("over")
    state = eventually(lambda: common.read_json(str(d.directory / "state.json")).get("end", {}).get("refused"))
    assert state == "epoch 1 is over: the lease was last requested by op1"


def test_cancel_ends_a_worker_and_received_files_are_kept(slow_chain):
    *_, d = slow_chain
    d.order(cancel=True)
    d.wait("over")
    assert d.said["kind"] == "cancelled"
    assert _size(d) > total(LARGE) / 4


def test_staged_files_leave_the_page_cache(workers):
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 80 * MB, "two.bin": 5 * MB})
    eventually(partial(_is_dropped, a.root))  # a source keeps pages that were cached before
    a.begin(files)
    b.begin(files)
    chain((a, b))
    b.wait("done")
    for each in (a, b):  # the source once it has heard that the connection is closed
        eventually(partial(_is_left, each.root), lambda each=each: each.name)


def _is_dropped(root):
    """Whether nothing is cached after a request to the kernel to drop it; a busy kernel may ignore that at first."""
    for path in root.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return not _cached(root)


def _is_left(root):
    return _cached(root) < 0.05 * 85 * MB


def _cached(root):
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, root.iterdir())]
    return sum(map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))


@pytest.mark.full
def test_sixty_thousand_small_files_need_little_memory(workers, small_disk):
    a, b = workers(*"ab")
    disk = small_disk(1 << 30)
    a.root, b.root = disk / "a", disk / "b"
    files = written(a.root, {f"directory-{number % 40:060}/{number:060}": 1500 for number in range(60_000)})
    for each in (a, b):
        each.begin(files)
    chain((a, b))
    for each in (a, b):
        each.wait("done", 300)
        assert each.peak_bytes < 96 << 20
    assert content(b.root) == content(a.root)
