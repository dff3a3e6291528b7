"""Jobs: real processes, which outlive the programs that started them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkcluster.node import common

# Says how often it looked and what it was ordered, until it is ordered to stop; ends a child with itself.
PROGRAM = """
import json, os, subprocess, sys, time
from sparkcluster.node import common, job, wire

request = json.loads(sys.argv[1])
lease = common.lease_of(request)

def work(own):
    child = subprocess.Popen(["sleep", "60"])
    try:
        looks = 0
        while not own.order().get("stop"):
            looks += 1
            own.say(looks=looks, child=child.pid, order=own.order(), before=own.before)
            own.check(request["adopted_s"])
            time.sleep(0.02)
        if own.order()["stop"] == "fail":
            raise wire.Failed("disk", "it is full")
        return {"looks": looks}
    finally:
        child.kill()
        child.wait()

def check():
    common.not_taken(**lease)

lines = sys.stdin.buffer if request.get("listen") else None
order = {"lease": lease, "by": {request["name"]: True}}
common.emit(wire.outcome(lambda: job.run(request["directory"], order, work, check, lines)))
os._exit(0)
"""


class World:
    def __init__(self, state_dir: Path) -> None:
        self.state_dir, self.directory = state_dir, state_dir / "clusters/atlas/staging/key"
        self.state_dir.joinpath("clusters/atlas").mkdir(parents=True)
        self.grant(7)
        self.programs: list[subprocess.Popen] = []

    def grant(self, epoch: int, *, granted: bool = True) -> None:
        record = {"epoch": epoch, "operator": "bob@desk (pid 9)", "granted": granted}
        (self.state_dir / "clusters/atlas/staging.json").write_text(json.dumps(record))

    def program(self, name: str = "ann", epoch: int = 7, *, adopted_s: float = 0, **more) -> subprocess.Popen:
        lease = {"state_dir": str(self.state_dir), "cluster": "atlas", "epoch": epoch, "kind": "staging"}
        request = {**lease, "directory": str(self.directory), "name": name, "adopted_s": adopted_s, **more}
        argv = [sys.executable, "-c", PROGRAM, json.dumps(request)]
        self.programs.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return self.programs[-1]

    def said(self) -> dict:
        return common.read_json(str(self.directory / "state.json")) or {}

    def until(self, condition) -> dict:
        limit = time.monotonic() + 10
        while not condition(self.said()):
            assert time.monotonic() < limit, self.said()
            time.sleep(0.02)
        return self.said()

    def at_work(self) -> bool:
        return common.is_locked(str(self.directory / "lock"))

    def stop(self, how: str = "well") -> None:
        order = json.loads((self.directory / "job.json").read_text())
        common.write_atomically(str(self.directory / "job.json"), json.dumps({**order, "stop": how}).encode())


def last(program: subprocess.Popen) -> dict:
    return json.loads(program.communicate(timeout=20)[0].splitlines()[-1])


def gone(pid: int) -> bool:
    return common.start_ticks(pid) is None


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "state")
    yield made
    for each in made.programs:
        each.kill()
        each.wait()
        each.stdin.close()
        each.stdout.close()
    pid = made.said().get("pid")
    if pid and made.at_work():
        os.kill(pid, signal.SIGKILL)


def test_a_job_outlives_the_program_that_started_it_and_the_next_one_follows_it(world):
    first = world.program()
    said = world.until(lambda said: said.get("looks"))
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = world.program("bea")
    later = world.until(lambda said: "bea" in said.get("order", {}).get("by", {}))
    assert later["pid"] == said["pid"]
    assert later["order"]["by"] == {"ann": True, "bea": True}
    world.stop()
    assert last(second)["done"]["looks"] > said["looks"]
    assert not world.at_work()


def test_a_job_goes_on_when_the_lease_lapses_and_ends_when_another_operator_asks_for_it(world):
    """Nobody holds the lock of the lease here from the beginning."""
    program = world.program()
    said = world.until(lambda said: said.get("looks", 0) > 3)
    world.grant(7, granted=False)
    assert last(program)["refused"] == "epoch 7 is over: bob@desk (pid 9) is acquiring the lease"
    world.until(lambda _: not world.at_work())
    assert gone(said["child"])


def test_a_job_is_taken_over_by_the_operator_who_took_the_lease(world):
    first = world.program(adopted_s=30)
    said = world.until(lambda said: said.get("looks"))
    world.grant(8)
    assert "refused" in last(first)
    second = world.program("bea", epoch=8, adopted_s=30)
    world.until(lambda said: said["order"]["lease"]["epoch"] == 8)
    world.stop()
    assert "done" in last(second)
    assert world.said()["pid"] == said["pid"]


def test_a_job_that_ended_before_it_heard_of_the_next_lease_is_started_again(world):
    first = world.program()
    said = world.until(lambda said: said.get("looks"))
    os.kill(said["pid"], signal.SIGSTOP)
    world.grant(8)
    assert "refused" in last(first)
    second = world.program("bea", epoch=8)
    order = world.directory / "job.json"
    world.until(lambda _: "bea" in json.loads(order.read_text())["by"])
    heard = json.loads(order.read_text())
    common.write_atomically(str(order), json.dumps({**heard, "lease": {**heard["lease"], "epoch": 7}}).encode())
    os.kill(said["pid"], signal.SIGCONT)
    later = world.until(lambda later: later.get("looks") and later["pid"] != said["pid"])
    assert (later["order"]["lease"]["epoch"], later["order"]["by"]) == (8, {"ann": True, "bea": True})
    world.stop()
    assert "done" in last(second)


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_that_was_ended_is_named_and_the_next_one_knows_what_it_said(world, signalled):
    program = world.program()
    said = world.until(lambda said: said.get("looks", 0) > 3)
    os.kill(said["pid"], signalled)
    found = last(program)
    killed = {"failed": "its process on this node was ended", "kind": "lost"}
    assert found == (killed if signalled == signal.SIGKILL else {"failed": "it was cancelled", "kind": "cancelled"})
    if signalled == signal.SIGKILL:
        os.kill(said["child"], signal.SIGKILL)
    else:
        assert gone(said["child"])
    world.program()
    assert world.until(lambda said: said.get("before"))["before"]["looks"] >= said["looks"]


def test_a_failure_has_its_kind(world):
    program = world.program()
    world.until(lambda said: said.get("looks"))
    world.stop("fail")
    assert last(program) == {"failed": "it is full", "kind": "disk"}


def test_a_job_ends_with_its_directory(world):
    program = world.program()
    said = world.until(lambda said: said.get("looks"))
    world.directory.rename(world.directory.with_name("gone"))  # at once: it writes
    shutil.rmtree(world.directory.with_name("gone"))
    limit = time.monotonic() + 10
    while not gone(said["pid"]):
        assert time.monotonic() < limit
        time.sleep(0.02)
    assert last(program)["kind"] == "lost"
    assert not world.directory.exists()


def test_lines_of_input_are_orders_and_their_end_is_not_the_jobs(world):
    program = world.program(listen=True)
    for order in ({"from": {"b": 1}}, {"from": {"c": 2}}):
        program.stdin.write(json.dumps(order) + "\n")
        program.stdin.flush()
    world.until(lambda said: said.get("order", {}).get("from") == {"b": 1, "c": 2})
    program.stdin.close()
    assert program.wait(10) == 1
    assert world.at_work()
    world.grant(8)
    world.until(lambda said: "refused" in said)


def test_orders_are_for_this_user_alone(world):
    world.program()
    world.until(lambda said: said.get("looks"))
    assert {file.name: file.stat().st_mode & 0o777 for file in world.directory.iterdir()} == dict.fromkeys(
        ("lock", "order.lock", "job.json", "state.json"), 0o600
    )
