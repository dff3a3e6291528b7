"""Jobs: real processes that outlive the programs that started them."""

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

# Reports its iterations and orders until it is ordered to stop; ends its child on exit.
PROGRAM = """
import json, os, subprocess, sys, time
from sparkcluster.node import common, job, wire

request = json.loads(sys.argv[1])
job.STOPPED_S = request.get("stopped_s", job.STOPPED_S)

def work(own):
    child = subprocess.Popen(["sleep", "60"])
    try:
        looks = 0
        while not os.path.exists(os.path.join(own.directory, "stop")):
            looks += 1
            own.say({"looks": looks, "child": child.pid, "order": own.order()})
            time.sleep(0.02)
        return {"looks": looks}
    finally:
        child.kill()
        child.wait()
        while os.path.exists(os.path.join(own.directory, "stay")):
            time.sleep(0.01)

if request.get("cancel"):
    job.cancel(request["directory"])
    sys.exit()
lines = sys.stdin.buffer if request.get("listen") else None
check = lambda: common.check_not_taken(request)
common.emit(wire.outcome(
    lambda: job.run(request["directory"], request["cluster"], work, check, lines=lines, what=request.get("what"))
))
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

    def program(self, epoch: int = 7, cluster: str = "atlas", **more) -> subprocess.Popen:
        lease = {"state_dir": str(self.state_dir), "cluster": cluster, "epoch": epoch, "kind": "staging"}
        request = {**lease, "directory": str(self.directory), **more}
        argv = [sys.executable, "-c", PROGRAM, json.dumps(request)]
        self.programs.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return self.programs[-1]

    def state(self) -> dict:
        return common.read_json(str(self.directory / "state.json"))

    def until(self, condition) -> dict:
        """The job's output when ``condition`` is true, and its process."""
        limit = time.monotonic() + 60
        while True:
            state = self.state()
            said = {**state.get("said", {}), "pid": state.get("pid")}
            if said["pid"] and condition(said):
                return said
            assert time.monotonic() < limit, state
            time.sleep(0.02)

    def at_work(self) -> bool:
        return common.is_locked(str(self.directory / "lock"))

    def stop(self) -> None:
        (self.directory / "stop").touch()


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
    pid = made.state().get("pid")
    if pid and made.at_work():
        os.kill(pid, signal.SIGKILL)


def test_a_job_outlives_the_program_that_started_it_and_the_next_program_follows_it(world):
    """Also a job of another cluster."""
    first = world.program()
    said = world.until(lambda said: said.get("looks"))
    first.send_signal(signal.SIGKILL)
    first.wait()
    world.grant(3, "beta")
    second = world.program(3, "beta")
    assert second.stdout.readline()  # it follows
    later = world.until(lambda later: later["looks"] > said["looks"])
    assert later["pid"] == said["pid"]
    world.stop()
    assert last(second)["done"]["looks"] > said["looks"]
    assert not world.at_work()


def test_after_losing_the_lease_a_program_stops_following_and_the_job_continues(world):
    program = world.program()
    said = world.until(lambda said: said.get("looks"))
    world.grant(7, granted=False)
    assert last(program)["refused"] == "epoch 7 is over: the lease was last requested by bob@desk (pid 9)"
    world.until(lambda later: later["looks"] > said["looks"] + 50)


def test_a_job_followed_by_two_programs_ends_when_the_second_cancels_it(world):
    world.grant(3, "beta")
    atlas, beta = world.program(), world.program(3, "beta")
    assert atlas.stdout.readline()
    assert beta.stdout.readline()
    beta.kill()
    beta.wait()
    world.program(3, "beta", cancel=True).wait(60)
    said = world.until(lambda said: said.get("looks"))
    world.until(lambda later: later["looks"] > said["looks"] + 30)
    atlas.kill()
    atlas.wait()
    world.program(cancel=True).wait(60)
    world.until(lambda _: gone(said["pid"]) and gone(said["child"]))


def test_a_cancelled_job_is_waited_for_and_restarted(world):
    """``stage`` immediately after Ctrl-C."""
    first = world.program()
    said = world.until(lambda said: said.get("looks"))
    (world.directory / "stay").touch()
    first.kill()
    first.wait()
    cancelling = world.program(cancel=True)
    time.sleep(1)
    world.grant(8)
    second = world.program(8)
    time.sleep(1)
    (world.directory / "stay").unlink()
    cancelling.wait(60)
    world.until(lambda now: now.get("looks") and now["pid"] != said["pid"])
    world.stop()
    assert "looks" in last(second)["done"]


def test_a_different_job_in_the_same_directory_ends_the_previous_one(world):
    world.program(what="a")
    said = world.until(lambda said: said.get("looks"))
    world.program(what="b")
    world.until(lambda now: now.get("looks") and now["pid"] != said["pid"])
    assert gone(said["child"])


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
def test_an_ended_job_is_reported(world, signalled):
    program = world.program()
    said = world.until(lambda said: said.get("looks"))
    os.kill(said["pid"], signalled)
    found = last(program)
    killed = {"failed": "its process on this node was killed", "kind": "lost"}
    assert found == (killed if signalled == signal.SIGKILL else {"failed": "cancelled", "kind": "cancelled"})
    if signalled == signal.SIGKILL:
        os.kill(said["child"], signal.SIGKILL)
    else:
        assert gone(said["child"])


def test_a_paused_job_is_reported_with_the_command_to_type(world):
    program = world.program(stopped_s=0.5)
    pid = world.until(lambda said: said.get("looks"))["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert last(program) == {"failed": f"its process {pid} was stopped (SIGSTOP): kill -CONT {pid}", "kind": "stuck"}
    os.kill(pid, signal.SIGCONT)


def test_input_lines_are_orders_and_closing_the_input_does_not_end_the_job(world):
    program = world.program(listen=True)
    for order in ({"from": ["b"], "round": 1}, {"from": ["c"]}):
        program.stdin.write(json.dumps(order) + "\n")
        program.stdin.flush()
    world.until(lambda said: said.get("order", {}).get("from") == ["c"] and said["order"]["round"] == 1)
    program.stdin.close()
    assert program.wait(60) == 1
    assert world.at_work()
