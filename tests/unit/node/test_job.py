"""Jobs: real processes, which outlive the programs that started them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkcluster.node import common, job

# Says how often it looked and what it was ordered, until it is ordered to stop; ends a child with itself.
PROGRAM = """
import json, os, subprocess, sys, time
from sparkcluster.node import common, job, wire

job._ORDER_S = 1.0
request = json.loads(sys.argv[1])
job._ENDING_S = request.get("ending_s", 60.0)
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
            own.check(request["adopted_s"], held=request["held"])
            time.sleep(0.02)
        if own.order()["stop"] == "fail":
            own.say(looks="last")
            raise wire.Failed("disk", "it is full")
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

    def hold(self):
        """The lock of the lease, held."""
        return common.try_lock(str(self.state_dir / "clusters/atlas/staging.lock"))

    def program(
        self, epoch: int = 7, cluster: str = "atlas", *, adopted_s: float = 0, held: bool = False, **more
    ) -> subprocess.Popen:
        lease = {"state_dir": str(self.state_dir), "cluster": cluster, "epoch": epoch, "kind": "staging"}
        request = {**lease, "directory": str(self.directory), "adopted_s": adopted_s, "held": held, **more}
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
        limit = time.monotonic() + 10
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


def test_a_job_that_was_cancelled_and_does_not_end_is_said(world):
    world.program()
    world.until(lambda said: said.get("looks"))
    world.order(cancel=True)
    world.until(lambda said: said.get("looks") == "cancelled")
    assert last(world.program(ending_s=0.2))["failed"] == "what was cancelled before has not ended after 0 s"


def test_a_job_goes_on_when_the_lease_lapses_and_ends_when_another_operator_asks_for_it(world):
    """Nobody holds the lock of the lease here from the beginning."""
    program = world.program()
    said = world.until(lambda said: said.get("looks", 0) > 3)
    world.grant(7, granted=False)
    assert last(program)["refused"] == "epoch 7 is over: bob@desk (pid 9) is acquiring the lease for staging"
    world.until(lambda _: not world.at_work())
    assert gone(said["child"])


def test_a_job_is_taken_over_by_the_operator_who_took_the_lease(world):
    first = world.program(adopted_s=30)
    said = world.until(lambda said: said.get("looks"))
    world.grant(8)
    assert "refused" in last(first)
    second = world.program(8, adopted_s=30)
    world.until(lambda _: world.leases() == {"atlas staging": 8})
    world.order(stop="well")
    assert "done" in last(second)
    assert world.said()["pid"] == said["pid"]


def test_a_job_that_ended_before_it_heard_of_the_next_lease_is_started_again(world):
    first = world.program()
    said = world.until(lambda said: said.get("looks"))
    os.kill(said["pid"], signal.SIGSTOP)
    world.grant(8)
    assert "refused" in last(first)
    second = world.program(8)
    order = world.directory / "job.json"
    world.until(lambda _: json.loads(order.read_text())["leases"]["atlas staging"]["epoch"] == 8)
    heard = json.loads(order.read_text())["leases"]
    second.send_signal(signal.SIGSTOP)
    world.order(leases={"atlas staging": {**heard["atlas staging"], "epoch": 7}}, kept=True)
    os.kill(said["pid"], signal.SIGCONT)
    world.until(lambda _: world.ended())
    world.order(leases=heard)
    second.send_signal(signal.SIGCONT)
    later = world.until(lambda later: later.get("looks") and later["pid"] != said["pid"])
    assert (world.leases(), later["order"]["kept"]) == ({"atlas staging": 8}, True)
    world.order(stop="well")
    assert "done" in last(second)


def test_an_order_that_replaces_another_in_the_same_tick_of_the_kernel_is_seen(tmp_path):
    """The third file in a row has the inode of the first; its time has to differ, however coarse the kernel's is."""
    for number in range(100):
        began = time.time_ns()
        job._write(str(tmp_path), "job.json", {"number": number})
        assert began <= (tmp_path / "job.json").stat().st_mtime_ns <= time.time_ns()


def test_a_job_that_two_clusters_want_ends_with_neither_alone(world):
    """Neither by the end of a lease, nor by Ctrl-C."""
    world.grant(3, "beta")
    atlas, beta = world.program(), world.program(3, "beta")
    said = world.until(lambda _: len(world.leases()) == 2)
    world.grant(4, "beta")
    assert "refused" in last(beta)
    beta = world.program(4, "beta")
    world.until(lambda _: world.leases() == {"atlas staging": 7, "beta staging": 4})
    world.program(4, "beta", cancel=True).wait(10)
    looks = world.until(lambda _: world.leases() == {"atlas staging": 7})["looks"]
    world.until(lambda later: later["looks"] > looks + 30)  # longer than it takes to look at its leases
    world.program(cancel=True).wait(10)
    assert last(atlas) == {"failed": "it was cancelled", "kind": "cancelled"}
    world.until(lambda _: gone(said["pid"]))  # it ends after it has said how


def test_who_took_the_lease_takes_back_his_own_alone(world):
    world.program(adopted_s=30)
    world.until(lambda said: said.get("looks"))
    world.grant(8)
    world.program(8, adopted_s=30)
    world.until(lambda _: world.leases() == {"atlas staging": 8})
    world.program(7, cancel=True).wait(10)
    assert json.loads((world.directory / "job.json").read_text())["leases"].keys() == {"atlas staging"}


def test_a_lease_that_was_taken_ends_what_waits_to_be_adopted_only_while_it_is_held(world):
    world.program(adopted_s=2, held=True)
    world.until(lambda said: said.get("looks"))
    holder = world.hold()
    world.grant(8)
    looks = world.said()["looks"]
    world.until(lambda later: later["looks"] > looks + 50)
    holder.close()
    looks = world.said()["looks"]
    world.until(lambda later: later["looks"] > looks + 150)
    assert world.at_work()
    with world.hold():
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


def test_an_order_that_cannot_be_written_ends_the_program_that_got_it_with_the_cause(world):
    program = world.program(listen=True)
    world.until(lambda said: said.get("looks"))
    with common.try_lock(str(world.directory / "order.lock")):
        program.stdin.write('{"from": 1}\n')
        program.stdin.flush()
        text = "another program still writes its order after 1 s"
        assert json.loads([*program.stdout][-1]) == {"failed": text, "kind": "other"}
    assert world.at_work()


def test_a_job_that_is_told_no_orders_tells_why(world):
    world.directory.mkdir(parents=True, mode=0o700)
    with common.try_lock(str(world.directory / "order.lock")):
        assert last(world.program())["failed"] == "another program still writes its order after 1 s"


def test_a_job_keeps_nothing_of_the_program_that_started_it_but_its_lock(world):
    """A lock that is inherited would be held as long as the job works."""
    world.program(listen=True)
    said = world.until(lambda said: said.get("looks"))

    def kept(_: dict) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return {str(each.readlink()) for each in fds.iterdir()} == {os.devnull, str(world.directory / "lock")}
        return False

    fds = Path(f"/proc/{said['pid']}/fd")
    world.until(kept)


@pytest.fixture
def small(small_disk):
    made = World(small_disk("256k") / "state")
    yield made
    for each in made.programs:
        each.kill()
        each.communicate()


def fill(directory: Path) -> None:
    with contextlib.suppress(OSError), (directory / "fill").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def test_a_job_says_how_it_ended_on_a_disk_that_is_full(small):
    program = small.program()
    said = small.until(lambda said: said.get("looks"))
    ordered = small.directory / "ordered"
    ordered.write_text(json.dumps({**json.loads((small.directory / "job.json").read_text()), "stop": "fail"}))
    os.kill(said["pid"], signal.SIGSTOP)
    for name in ("job.json", "state.json"):  # what replaces them frees no space
        (small.state_dir / name).hardlink_to(small.directory / name)
    fill(small.state_dir)
    ordered.replace(small.directory / "job.json")
    os.kill(said["pid"], signal.SIGCONT)
    assert last(program) == {"failed": "it is full", "kind": "disk"}
    names = {"lock", "order.lock", "job.json", "end.json", "state.json"}
    assert {file.name for file in small.directory.iterdir()} == names


def test_a_disk_that_is_full_from_the_beginning_is_the_cause(small):
    fill(small.state_dir)
    assert last(small.program())["kind"] == "disk"
    assert not small.at_work()


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


def test_a_failure_has_its_kind_and_comes_after_the_last_words(world):
    program = world.program()
    world.until(lambda said: said.get("looks"))
    world.order(stop="fail")
    *_, words, end = map(json.loads, program.communicate(timeout=20)[0].splitlines())
    assert (words, end) == ({"looks": "last"}, {"failed": "it is full", "kind": "disk"})


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
    world.until(lambda _: "refused" in world.ended())


def test_orders_are_for_this_user_alone(world):
    world.program()
    said = world.until(lambda said: said.get("looks"))
    os.kill(said["pid"], signal.SIGKILL)
    world.until(lambda _: not world.at_work())
    modes = {file.name: file.stat().st_mode & 0o777 for file in world.directory.iterdir()}
    assert {"lock", "order.lock", "job.json", "state.json", "end.json"} <= modes.keys()
    assert set(modes.values()) == {0o600}
