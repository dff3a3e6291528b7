"""Each program of a copy is killed during it: the next run copies only the rest."""

from __future__ import annotations

import signal

import pytest

from sparkcluster.node import common, file_list
from sparkcluster.node.wire import Failed
from sparkcluster.staging.order import files_lines
from sparkcluster.staging.send import send
from tests.unit.staging.test_send import CONTENT, World
from tests.unit.staging.workers import chain, content, eventually, written

MB = 1_000_000
SIZES = {"one.bin": 10 * MB, "two.bin": 10 * MB, "three.bin": 10 * MB, "config.json": 300}
TOTAL = sum(SIZES.values())
RATE = 10 * MB

POINTS = (5, 45, 95)
"""Percent of the bytes on the receiver when a program is killed."""


def cases(*victims):
    """Every victim at every point; by default only in the middle."""
    return [
        pytest.param(point, victim, marks=() if point == 45 else pytest.mark.full)
        for point in POINTS
        for victim in victims
    ]


def there(worker):
    """Bytes on a node, complete or partial."""
    return sum(path.stat().st_size for path in worker.root.rglob("*") if path.is_file())


def under_way(workers, point):
    """A source, a receiver that has ``point`` percent of its files, and these files."""
    a, b = workers("a", "b")
    files = written(a.root, SIZES)
    a.begin(files, limit_bytes_s=RATE)
    b.begin(files)
    chain((a, b))
    eventually(lambda: b.root.exists() and there(b) >= TOTAL * point / 100)
    return a, b, files


@pytest.mark.parametrize(("point", "victim"), cases("receiver", "source"))
def test_files_of_a_killed_worker(workers, point, victim):
    a, b, files = under_way(workers, point)
    (b if victim == "receiver" else a).kill()
    if victim == "source":
        eventually(lambda: b.said.get("left"))  # it took all that was sent
        b.order(cancel=True)
    b.wait("over")
    assert "done" not in b.said
    had = there(b)
    assert TOTAL * point / 100 <= had < TOTAL
    a.begin(files)
    b.begin(files)
    assert b.wait("room")["needed"] <= TOTAL - had + SIZES["config.json"]
    chain((a, b))
    assert b.wait("done")["bytes"] <= TOTAL - had + SIZES["config.json"]
    assert content(b.root) == content(a.root)


@pytest.mark.parametrize("point", [pytest.param(each, marks=() if each == 45 else pytest.mark.full) for each in POINTS])
def test_files_of_a_killed_operator(workers, point):
    a, b, files = under_way(workers, point)
    before = b.pid
    for each in (a, b):
        each._follower.send_signal(signal.SIGKILL)
        each._follower.wait()
        each.begin(files)
    chain((a, b))
    assert b.wait("done")["bytes"] == TOTAL, "no byte twice"
    assert b.pid == before
    assert content(b.root) == content(a.root)


def test_a_truncated_list_of_files_starts_nothing(tmp_path):
    """A copy of a part of a model would look complete."""
    lines = files_lines(written(tmp_path, {"one.bin": 5, "two.bin": 7})).splitlines(keepends=True)
    listed, _ = file_list.read(lines, 2)
    assert [file.path for file in listed] == ["one.bin", "two.bin"]
    with pytest.raises(Failed, match="the list of files is truncated"):
        file_list.read(lines[:1], 2)


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as made:
        yield made


@pytest.mark.parametrize("point", [pytest.param(each, marks=() if each == 45 else pytest.mark.full) for each in POINTS])
def test_a_file_of_this_machine_after_its_operator_was_killed(world, point):
    first = world.operator()
    eventually(lambda: world.written() >= len(CONTENT) * point / 100)
    first.kill()
    first.wait()
    eventually(lambda: not common.is_locked(str(world.state / "clusters/atlas/staging.lock")))
    with world.lease().acquire(["a"]) as lease:
        had = world.written()
        assert len(CONTENT) * point / 100 <= had < len(CONTENT)
        assert send(world.step(lease), world.fleet["a"], world.source, world.request).bytes <= len(CONTENT) - had
    assert world.whole().read_bytes() == CONTENT


def test_a_worker_with_a_different_list_of_files_is_ended(workers):
    """The source's model changed since the operator was killed."""
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 5 * MB, "config.json": 300})
    a.begin(files, limit_bytes_s=MB)
    b.begin(files)
    b.order(**{"from": [a.source()]})
    eventually(lambda: b.said.get("bytes", 0) > MB)
    more = [*files, *written(a.root, {"two.bin": 3 * MB})]
    for each in (a, b):
        each.begin(more)
    assert b.wait("lacks") == 3
    b.order(**{"from": [a.source()]})
    b.wait("done")
    assert content(b.root) == content(a.root)
