"""The guard of a group of one node, check by check; the rank is a process, a wedged engine and the clock are simulated."""

from __future__ import annotations

import time

import pytest

from sparkcluster.node import agent, common, events, group_guard, own_rank, shared, start_lock

from .test_guard import Cluster

# a rank outlives the object that started it
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Clock:
    """The module ``time``, ``later_s`` seconds ahead."""

    later_s = 0.0

    def time(self):
        return time.time() + self.later_s

    def monotonic(self):
        return time.monotonic() + self.later_s

    def __getattr__(self, name):
        return getattr(time, name)


class Watched:
    """A group on one node, and its guard."""

    def __init__(self, folder, monkeypatch):
        self.clock, self.detection_s = Clock(), 0.0
        monkeypatch.setattr(group_guard, "time", self.clock)
        monkeypatch.setattr(group_guard, "REFUSED_S", 0.05)
        monkeypatch.setattr(group_guard, "why_dead", lambda _: self.why_dead())
        self.node = Cluster(folder).alpha
        self.enable()

    def enable(self, *, limits=None, **changes):
        self.node.install(**{"starts": 5, "probe_s": 30.0, **(limits or {})})
        self.node.record(peers={}, **changes)
        self.own = own_rank.OwnRank(str(self.node.enabled))
        self.guard = group_guard.GroupGuard(self.own)

    def why_dead(self):
        self.clock.later_s += self.detection_s
        return "no counter has moved" if self.wedged else None

    def check(self, after_s=60.0, *, wedged=False):
        """Actions of the guard in a check that begins ``after_s`` after the end of the previous one."""
        before = len(self.node.acts)
        self.clock.later_s += after_s
        self.wedged = wedged
        self.guard.check(self.own.start_document())
        return self.node.acts[before:]


@pytest.fixture
def watched(tmp_path, monkeypatch):
    made = Watched(tmp_path, monkeypatch)
    yield made
    made.node.end()


def fails(*_):
    raise OSError("Docker does not answer")


@pytest.mark.parametrize(("after_s", "act"), [(60, "gave up"), (640, "restart")])
def test_a_second_hang_counts_within_ten_minutes_plus_the_detection_time(watched, after_s, act):
    """With 128K tokens an engine may make no progress for 640 s before it is dead."""
    watched.detection_s = 640.0
    watched.check()
    assert watched.check(wedged=True) == ["restart", "serving"]
    assert watched.check(after_s, wedged=True)[0] == act
    assert bool(watched.node.pids()) == (act == "restart")


def test_a_model_on_demand_that_its_guard_gave_up_is_reported_as_failed_immediately(watched):
    """It is not stopped before the next check, since the gateway would load it again immediately."""
    watched.enable(limits={"on_demand": True}, planned_bytes=1 << 60)
    watched.check()
    watched.guard.reply({"do": "want", "run": True})
    assert watched.check() == []
    assert watched.check(90) == ["load failed"]
    assert watched.guard.reply({"do": "states"})["state"] == "failed"


def test_a_hang_after_one_failed_restart_counts_as_the_second(watched, monkeypatch):
    watched.check()
    with monkeypatch.context() as broken:
        broken.setitem(agent.STEPS, "start-process", fails)
        assert watched.check(wedged=True) == ["restart", "failed"]
    assert watched.check() == ["restart", "serving"]
    assert watched.check(wedged=True) == ["gave up"]


def test_a_hung_rank_that_could_not_be_stopped_is_stopped_later(watched, monkeypatch):
    watched.check()
    watched.check(wedged=True)
    with monkeypatch.context() as broken:
        broken.setitem(agent.STEPS, "stop", fails)
        assert watched.check(wedged=True) == ["gave up"]
    watched.check(1)
    assert watched.node.pids()
    assert watched.node.waits.startswith(shared.GAVE_UP)
    assert watched.check(30) == []
    assert watched.node.pids() == []
    assert watched.node.waits.startswith(shared.GAVE_UP)


def test_a_dead_group_with_an_operator_at_work_is_not_given_up(watched, monkeypatch):
    watched.check()
    watched.check(wedged=True)
    lock = str(watched.node.directory / "lease.lock")
    held = []
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(group_guard, "why_dead", lambda _: held.append(common.try_lock(lock)) or "it stalls")
        assert watched.check() == []
    held[0].close()
    assert watched.check() == []
    assert watched.node.pids()
    assert watched.node.waits is None


def test_after_too_many_starts_remaining_ranks_are_stopped(watched):
    watched.enable(limits={"starts": 1})
    assert watched.check() == ["restart", "serving"]
    watched.node.record(peers={}, ranks=["atlas-1-alpha", "atlas-1-lost"])
    assert watched.check() == ["gave up"]
    assert watched.node.pids() == []


def test_memory_taken_by_another_model_before_the_lock_is_waited_for(watched, monkeypatch):
    watched.enable(planned_bytes=2 << 30)
    taken = str(watched.node.state / "start.lock")
    monkeypatch.setattr(start_lock, "available", lambda: (1 if common.is_locked(taken) else 3) << 30)
    assert watched.check() == []
    assert "its rank needs 2.1 GB, but only 1.1 GB are available" in watched.node.waits


def test_the_reason_of_a_wait_stays_published_while_locks_are_tried_and_is_logged_once(watched, monkeypatch, capsys):
    said = []

    def changing(_):
        said.append(watched.node.waits)
        raise common.Busy("its memory is still changing")

    monkeypatch.setattr(start_lock, "settle", changing)
    watched.check()
    watched.check()
    assert said == [None, "alpha: its memory is still changing"]
    assert watched.node.waits == said[1]
    assert capsys.readouterr().out.count("waits: ") == 1


def test_an_operator_whose_epoch_is_granted_while_the_guard_waits_for_the_lock_keeps_it(watched, monkeypatch):
    lock = str(watched.node.directory / "lease.lock")
    try_lock = common.try_lock

    def waits(path, *args, **named):
        if path == lock:
            watched.node.lease(4)
        return try_lock(path, *args, **named)

    monkeypatch.setattr(common, "try_lock", waits)
    watched.own.ask("take")
    watched.own.close()
    assert common.read_json(str(watched.node.directory / "lease.json"))["epoch"] == 4


def test_an_event_without_a_free_thread_cancels_nothing(monkeypatch):
    def no_thread(_):
        raise RuntimeError("can't start new thread")

    heard = []
    entry = {"act": "restart", "wedged": True, "why": "it stalls", "group": "default", "node": "alpha"}
    monkeypatch.setattr(events.threading.Thread, "start", no_thread)
    events.tell({"cluster": "atlas", "on_event": ["notify"]}, entry, heard.append)
    assert heard == ["notify: it could not be started: can't start new thread"]
