"""The lease as operators take it, on hosts that run the real programs."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkcluster.errors import LeaseHeld, LeaseLost
from sparkcluster.hosts.fake import FakeHost, FakeStream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.node import common
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.runtime import lease as module
from sparkcluster.runtime.lease import Lease, wait_for

NODES = ("alpha", "beta")


class SeparateNode(LocalHost):
    """A separate node on this machine: its home is another directory."""

    def __init__(self, name, home):
        super().__init__(name)
        self.home = home

    def run(self, argv, *, stdin=b"", timeout_s=30):
        return super().run(["env", f"HOME={self.home}", *argv], stdin=stdin, timeout_s=timeout_s)

    def stream(self, argv, *, stdin=b""):
        return super().stream(["env", f"HOME={self.home}", *argv], stdin=stdin)


@pytest.fixture
def homes(tmp_path):
    return {name: tmp_path / name for name in NODES}


@pytest.fixture
def fleet(homes):
    for home in homes.values():
        home.mkdir()
    return Fleet({name: SeparateNode(name, home) for name, home in homes.items()})


INVENTORY = SimpleNamespace(cluster="atlas", state_dir="~/s")


def lease(fleet):
    return Lease(fleet, INVENTORY, "up")


def change(fleet, epochs):
    """Nodes on which a change under ``epochs`` was made."""
    steps = {name: [{"do": "mkdir", "path": "~/s/x"}] for name in fleet.names}
    outcomes = Changer(fleet, cluster="atlas", state_dir="~/s", epochs=epochs).attempt(steps, timeout_s=20)
    assert all(isinstance(outcome, list | LeaseLost) for outcome in outcomes.values())
    return [name for name, outcome in outcomes.items() if isinstance(outcome, list)]


def free(homes):
    return not any(common.is_locked(str(home / "s/clusters/atlas/lease.lock")) for home in homes.values())


def claimed_epoch(home, epoch):
    """The last epoch that a node claims to have granted."""
    directory = home / "s/clusters/atlas"
    directory.mkdir(parents=True)
    (directory / "lease.json").write_text(json.dumps({"epoch": epoch}))


def test_every_node_has_a_separate_epoch_one_above_its_last(fleet, homes):
    claimed_epoch(homes["beta"], 41)
    with lease(fleet).acquire(list(NODES)) as taken:
        assert taken.changer.epochs == {"alpha": 1, "beta": 42}
        assert change(fleet, taken.changer.epochs) == list(NODES)
        assert change(fleet, {"alpha": 42, "beta": 1}) == []
        assert change(fleet, {"beta": 42}) == ["beta"]
    for name, home in homes.items():
        assert json.loads((home / "s/clusters/atlas/lease.json").read_text())["epoch"] == taken.changer.epochs[name]
    assert free(homes)
    assert change(fleet, taken.changer.epochs) == []


def test_an_epoch_claimed_by_one_node_blocks_no_operator_on_another(fleet, homes, monkeypatch):
    claimed_epoch(homes["beta"], 1 << 53)
    with lease(fleet).acquire(list(NODES)) as taken:
        assert change(fleet, taken.changer.epochs) == list(NODES)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: time.time() - 60, sleep=time.sleep))
    with lease(fleet).acquire(list(NODES)) as taken:
        assert change(fleet, taken.changer.epochs) == list(NODES)


def test_of_many_concurrent_operators_exactly_one_gets_the_lease(fleet):
    for _ in range(3):
        taken, refused = [], []
        start = threading.Barrier(4)

        def operator(start=start, taken=taken, refused=refused):
            start.wait()
            try:
                taken.append(lease(fleet).acquire(list(NODES)))
            except LeaseHeld as held:
                refused.append(held)

        threads = [threading.Thread(target=operator) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(taken), len(refused)) == (1, 3)
        assert all(error.exit_code == 3 and module.this_operator() in error.message and error.hint for error in refused)
        taken[0].close()


def staging(fleet):
    return Lease(fleet, INVENTORY, "stage", "staging")


def test_a_staging_blocks_only_another_staging(fleet, homes):
    """Each kind has separate epochs: a change under one is refused under the other."""
    with staging(fleet).acquire(list(NODES)) as first:
        with pytest.raises(LeaseHeld, match=r" is running stage on atlas"):
            staging(fleet).acquire(list(NODES))
        for _ in range(2):
            with lease(fleet).acquire(list(NODES)) as taken:
                steps = {name: [{"do": "mkdir", "path": "~/s/x"}] for name in NODES}
                taken.changer.apply(steps)
                first.changer.apply(steps)
        assert taken.changer.lease("alpha")["epoch"] == 2
        assert first.changer.lease("alpha") == {"state_dir": "~/s", "cluster": "atlas", "epoch": 1, "kind": "staging"}
        with pytest.raises(LeaseLost, match="epoch 2 is over"):
            taken.changer.apply(steps)


def test_the_second_operator_takes_no_lease_on_any_node(fleet, homes):
    with lease(fleet).acquire(["beta"]):
        with pytest.raises(
            LeaseHeld, match=r"^\S+@\S+ \(pid \d+\) is running up on atlas, started \d+ s ago$"
        ) as caught:
            lease(fleet).acquire(list(NODES))
        assert caught.value.hint.startswith("wait until it ends, or stop it where it was started")
        assert "inventory" not in caught.value.hint
        until = time.monotonic() + 60
        while common.is_locked(str(homes["alpha"] / "s/clusters/atlas/lease.lock")) and time.monotonic() < until:
            time.sleep(0.02)
        assert change(fleet, dict.fromkeys(NODES, 1)) == ["beta"]


def test_heartbeats_keep_a_lease_beyond_its_limit(fleet, homes, monkeypatch):
    monkeypatch.setattr(module, "TTL_S", 4.0)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.1)
    with lease(fleet).acquire(list(NODES)) as taken:
        time.sleep(4.5)
        assert change(fleet, taken.changer.epochs) == list(NODES)


def operator(fleet, tmp_path, ttl_s):
    """An operator in a separate process: takes the lease, prints so, and then makes a change for every input line."""
    program = f"""
import sys
from types import SimpleNamespace
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.runtime import lease as module

class Elsewhere(LocalHost):
    def __init__(self, name, home):
        super().__init__(name)
        self.home = home
    def run(self, argv, *, stdin=b"", timeout_s=30):
        return super().run(["env", f"HOME={{self.home}}", *argv], stdin=stdin, timeout_s=timeout_s)
    def stream(self, argv, *, stdin=b""):
        return super().stream(["env", f"HOME={{self.home}}", *argv], stdin=stdin)

module.TTL_S, module.HEARTBEAT_S = {ttl_s}, {ttl_s} / 5
fleet = Fleet({{name: Elsewhere(name, f"{tmp_path}/{{name}}") for name in {NODES!r}}})
with module.Lease(fleet, SimpleNamespace(cluster="atlas", state_dir="~/s"), "up").acquire(list(fleet.names)) as taken:
    print(*taken.changer.epochs.values(), flush=True)
    for _ in sys.stdin:
        steps = {{name: [{{"do": "mkdir", "path": "~/s/of-ann"}}] for name in fleet.names}}
        try:
            taken.changer.apply(steps)
            print("changed", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout.readline() == "1 1\n"
    return process


def test_a_killed_operator_releases_the_lease_immediately(fleet, homes, tmp_path):
    with operator(fleet, tmp_path, ttl_s=600) as ann:
        with pytest.raises(LeaseHeld):
            lease(fleet).acquire(list(NODES))
        os.kill(ann.pid, signal.SIGKILL)
        ann.wait()
        until = time.monotonic() + 60
        while not free(homes) and time.monotonic() < until:
            time.sleep(0.02)
        with lease(fleet).acquire(list(NODES)) as taken:
            assert taken.changer.epochs == {"alpha": 2, "beta": 2}


def test_a_resumed_operator_is_refused_by_every_node(fleet, homes, tmp_path):
    with operator(fleet, tmp_path, ttl_s=1) as ann:
        os.kill(ann.pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + 60
            while not free(homes) and time.monotonic() < until:
                time.sleep(0.05)
            with lease(fleet).acquire(list(NODES)) as taken:
                os.kill(ann.pid, signal.SIGCONT)
                ann.stdin.write("change\n")
                ann.stdin.flush()
                assert ann.stdout.readline() == "LeaseLost\n"
                assert not any((home / "s/of-ann").exists() for home in homes.values())
                assert change(fleet, taken.changer.epochs) == list(NODES)
        finally:
            os.kill(ann.pid, signal.SIGKILL)


def test_a_change_that_outlives_its_operator_is_waited_for_and_then_reported(fleet, homes):
    lock = common.try_lock(str(homes["beta"] / "s/clusters/atlas/lease-change.lock"))
    threading.Timer(0.5, lock.close).start()
    with lease(fleet).acquire(list(NODES)) as taken:
        assert change(fleet, taken.changer.epochs) == list(NODES)


class Scripted(FakeHost):
    """A node with a scripted lease program."""

    def __init__(self, name, *lines):
        super().__init__(name)
        self.made = []
        self.program("lease", list(lines))

    def stream(self, argv, *, stdin=b""):
        self.made.append(FakeStream(self.run(argv, stdin=stdin), self.name))
        return self.made[-1]


def test_an_unfinished_change_keeps_the_lease():
    alpha = Scripted("alpha", {"epoch": 1}, {"granted": 2})
    beta = Scripted("beta", {"epoch": 1}, {"busy": "another change is still in progress after 15 s"})
    with pytest.raises(LeaseHeld, match="on beta another change is still in progress") as caught:
        lease(Fleet({"alpha": alpha, "beta": beta})).acquire(list(NODES))
    assert (caught.value.exit_code, bool(caught.value.hint)) == (3, True)
    assert all(stream.closed for stream in (*alpha.made, *beta.made))


def test_starts_on_the_same_nodes_are_serialized_whatever_the_inventories_are_named(homes, monkeypatch):
    """No operator holds a node while it waits for another, so there is no deadlock."""
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    for home in homes.values():
        home.mkdir()
    first, second = homes.values()
    fleets = {
        "atlas": Fleet({name: SeparateNode(name, home) for name, home in (("a", first), ("b", second))}),
        "embed": Fleet({name: SeparateNode(name, home) for name, home in (("a", second), ("b", first))}),
    }
    inside, most, told = [], [], RecordingReport()
    begin = threading.Barrier(2)

    def start(cluster):
        begin.wait()
        for _ in range(3):
            inventory = SimpleNamespace(cluster=cluster, state_dir="~/s")
            make = functools.partial(Lease, fleets[cluster], inventory, "up", "start")
            with wait_for(make, ["a", "b"], told, 120):
                inside.append(cluster)
                most.append(len(inside))
                time.sleep(0.1)
                inside.remove(cluster)

    threads = [threading.Thread(target=start, args=(cluster,)) for cluster in fleets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert most == [1] * 6
    assert any("another start or stop is running: " in text and " is running up on " in text for text in told.waits)


def test_a_timed_out_wait_for_the_start_lock_names_its_holder(fleet):
    other = SimpleNamespace(cluster="embed", state_dir="~/s")
    with Lease(fleet, other, "up", "start").acquire(["beta"]):
        with pytest.raises(LeaseHeld, match=r"another start or stop is running: .* is running up on embed") as caught:
            wait_for(lambda: Lease(fleet, INVENTORY, "up", "start"), NODES, RecordingReport(), 0)
        assert caught.value.node == "beta"


class RecordingReport(Report):
    def __init__(self):
        self.waits = []

    def progress(self, node, text):
        self.waits.append(f"{node}: {text}")
