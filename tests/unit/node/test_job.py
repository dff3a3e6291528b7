"""Jobs: real processes, which outlive the programs that started them."""

from __future__ import annotations

import json
import os
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

job._ORDER_S = 1.0
request = json.loads(sys.argv[1])
lease = common.lease_of(request)

def work(own):
    child = subprocess.Popen(["sleep", "60"])
    try:
        looks = 0
        while not own.order().get("stop"):
            if own.order().get("cancel"):
                own.say(looks="cancelled")
                while not os.path.exists(os.path.join(own.directory, "go")):
                    time.sleep(0.01)
                raise wire.Failed("cancelled", "it was cancelled")
            looks += 1
            own.say(looks=looks, child=child.pid, order=own.order(), before=own.before)
            own.check(request["adopted_s"], held=request.get("held", False))
            time.sleep(0.02)
        return {"looks": looks}
    finally:
        child.kill()
        child.wait()

def check():
    common.not_taken(**lease)

if request.get("cancel"):
    job.cancel(request["directory"], lease)
    sys.exit()
lines = sys.stdin.buffer if request.get("listen") else None
common.emit(wire.outcome(lambda: job.run(request["directory"], lease, work, check, lines)))
os._exit(0)
"""


class World:
    def __init__(self, state_dir: Path) -> None:
        self.state_dir, self.directory = state_dir, state_dir / "pulls/key"
        self.grant(7)
        self.programs: list[subprocess.Popen] = []

    def grant(self, epoch: int, cluster: str = "atlas", **changes) -> None:
        folder = self.state_dir / "clusters" / cluster
        folder.mkdir(parents=True, exist_ok=True)
        record = {"epoch": epoch, "operator": "bob@desk (pid 9)", "granted": True, **changes}
        common.write_atomically(str(folder / "staging.json"), json.dumps(record).encode())

    def program(self, epoch: int = 7, cluster: str = "atlas", *, adopted_s: float = 0, **more) -> subprocess.Popen:
        lease = {"state_dir": str(self.state_dir), "cluster": cluster, "epoch": epoch, "kind": "staging"}
        request = {**lease, "directory": str(self.directory), "adopted_s": adopted_s, **more}
        argv = [sys.executable, "-c", PROGRAM, json.dumps(request)]
        self.programs.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return self.programs[-1]

    def said(self) -> dict:
        return common.read_json(str(self.directory / "state.json")) or {}

    def ended(self) -> dict:
        return common.read_json(str(self.directory / "end.json")) or {}

    def leases(self) -> dict[str, int]:
        return {name: lease["epoch"] for name, lease in self.said().get("order", {}).get("leases", {}).items()}

    def until(self, condition) -> dict:
        limit = time.monotonic() + 60
        while not condition(self.said()):
            assert time.monotonic() < limit, self.said()
            time.sleep(0.02)
        return self.said()

    def at_work(self) -> bool:
        return common.is_locked(str(self.directory / "lock"))

    def ordered_epoch(self) -> int:
        return json.loads((self.directory / "job.json").read_text())["leases"]["atlas staging"]["epoch"]

    def order(self, **change) -> None:
        order = json.loads((self.directory / "job.json").read_text())
        common.write_atomically(str(self.directory / "job.json"), json.dumps({**order, **change}).encode())


def last(program: subprocess.Popen) -> dict:
    return json.loads(program.communicate(timeout=60)[0].splitlines()[-1])


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
    world.grant(3, "beta")
    second = world.program(3, "beta")
    later = world.until(lambda _: world.leases() == {"atlas staging": 7, "beta staging": 3})
    assert later["pid"] == said["pid"]
    world.order(stop="well")
    assert last(second)["done"]["looks"] > said["looks"]
    assert not world.at_work()


def test_a_job_that_was_cancelled_is_waited_for_and_begins_anew(world):
    """``stage`` right after Ctrl-C."""
    first = world.program()
    world.until(lambda said: said.get("looks"))
    world.order(cancel=True)
    said = world.until(lambda said: said.get("looks") == "cancelled")
    world.grant(8)
    second = world.program(8)
    world.until(lambda _: common.is_locked(str(world.directory / "order.lock")))
    until = time.monotonic() + 1  # a lock is tried for half a second
    world.until(lambda _: time.monotonic() > until)
    assert world.ordered_epoch() == 7
    (world.directory / "go").touch()
    world.until(lambda now: now.get("looks") and now["pid"] != said["pid"])
    world.order(stop="well")
    assert "looks" in last(second)["done"]
    assert last(first)["refused"]


def test_a_job_goes_on_when_the_lease_lapses_and_ends_when_another_operator_asks_for_it(world):
    """Nobody holds the lock of the lease here from the beginning."""
    program = world.program()
    said = world.until(lambda said: said.get("looks", 0) > 3)
    world.grant(7, granted=False)
    assert last(program)["refused"] == "epoch 7 is over: bob@desk (pid 9) is acquiring the lease for staging"
    world.until(lambda _: not world.at_work())
    assert gone(said["child"])


def test_a_job_that_two_clusters_want_ends_with_neither_alone(world):
    """Neither by the end of a lease, nor by Ctrl-C."""
    world.grant(3, "beta")
    atlas, beta = world.program(), world.program(3, "beta")
    said = world.until(lambda _: len(world.leases()) == 2)
    world.grant(4, "beta")
    assert "refused" in last(beta)
    beta = world.program(4, "beta")
    world.until(lambda _: world.leases() == {"atlas staging": 7, "beta staging": 4})
    world.program(4, "beta", cancel=True).wait(60)
    looks = world.until(lambda _: world.leases() == {"atlas staging": 7})["looks"]
    world.until(lambda later: later["looks"] > looks + 30)  # longer than it takes to look at its leases
    world.program(cancel=True).wait(60)
    assert last(atlas) == {"failed": "it was cancelled", "kind": "cancelled"}
    world.until(lambda _: gone(said["pid"]))  # it ends after it has said how


def test_who_took_the_lease_takes_back_his_own_alone(world):
    world.program(adopted_s=30)
    world.until(lambda said: said.get("looks"))
    world.grant(8)
    world.program(8, adopted_s=30)
    world.until(lambda _: world.leases() == {"atlas staging": 8})
    world.program(7, cancel=True).wait(60)
    assert json.loads((world.directory / "job.json").read_text())["leases"].keys() == {"atlas staging"}


def test_a_lease_that_was_taken_ends_what_waits_to_be_adopted_only_while_it_is_held(world):
    world.program(adopted_s=1, held=True)
    world.until(lambda said: said.get("looks"))
    lock = str(world.state_dir / "clusters/atlas/staging.lock")
    with common.try_lock(lock):
        world.grant(8)
    looks = world.said()["looks"]
    world.until(lambda later: later["looks"] > looks + 150)  # of which fifty are a second
    assert world.at_work()
    with common.try_lock(lock):
        world.until(lambda _: "refused" in world.ended())


def test_the_same_epoch_of_another_operator_is_another_lease(world):
    """A node whose records were removed counts from 1 again."""
    world.grant(7, mark="ab")
    world.program()
    world.until(lambda said: said.get("looks"))
    world.grant(7, mark="cd")
    world.until(lambda _: "refused" in world.ended())


def test_nothing_is_ordered_or_started_under_a_lease_that_went_while_another_program_wrote_its_order(world):
    world.directory.mkdir(parents=True, mode=0o700)
    with common.try_lock(str(world.directory / "order.lock")):
        program = world.program()
        wchan = Path(f"/proc/{program.pid}/fd")
        world.until(lambda _: any(each.resolve().name == "order.lock" for each in wchan.iterdir()))
        world.grant(8)
    assert "refused" in last(program)
    assert {file.name for file in world.directory.iterdir()} == {"order.lock"}


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


def test_lines_of_input_are_orders_and_their_end_is_not_the_jobs(world):
    program = world.program(listen=True)
    for order in ({"from": {"b": 1}}, {"from": {"c": 2}}):
        program.stdin.write(json.dumps(order) + "\n")
        program.stdin.flush()
    world.until(lambda said: said.get("order", {}).get("from") == {"b": 1, "c": 2})
    program.stdin.close()
    assert program.wait(60) == 1
    assert world.at_work()
    world.grant(8)
    world.until(lambda _: "refused" in world.ended())


def test_orders_are_for_this_user_alone(world):
    world.program()
    said = world.until(lambda said: said.get("looks"))
    os.kill(said["pid"], signal.SIGKILL)
    world.until(lambda _: not world.at_work())
    modes = {file.name: file.stat().st_mode & 0o777 for file in world.directory.iterdir()}
    assert {"lock", "order.lock", "job.json", "state.json", "end.json"} <= modes.keys()
    assert set(modes.values()) == {0o600}
