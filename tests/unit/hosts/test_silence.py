"""Connections that fall silent, break, and are made anew: a real sshd that is stopped, killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkcluster.errors import HostTimeout, LeaseLost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node import common
from sparkcluster.runtime import lease as leases
from sparkcluster.runtime.lease import Lease
from sparkcluster.runtime.watching import Gone, Lines, Tick, Watching


@pytest.fixture
def sshd(start_sshd):
    server = start_sshd()
    server.trust()
    return server


@pytest.fixture
def host(sshd):
    made = sshd.host(connect_timeout_s=2)
    yield made
    made.close()


# ------------------------------------------------------------------------------------------- the connection


def test_a_failure_to_connect_is_kept_until_it_is_renewed(sshd, host):
    sshd.send(signal.SIGSTOP)
    with pytest.raises(HostTimeout):
        host.run(["true"])
    sshd.send(signal.SIGCONT)
    with pytest.raises(HostTimeout):
        host.run(["true"])
    host.renew()
    assert host.run(["true"]).ok


# ------------------------------------------------------------------------------------------- the watch


@pytest.fixture
def counting(tmp_path):
    """A rank that counts in its log, and the request that watches it."""
    script = "import itertools, time\nfor at in itertools.count():\n print(at, flush=True)\n time.sleep(0.01)"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=log)
    record = {"name": "r0", "pid": process.pid, "start_ticks": common.start_ticks(process.pid)}
    (tmp_path / "rank.json").write_text(json.dumps(record))
    ranks = [{"name": "r0", "runtime": "process", "rank_dir": str(tmp_path)}]
    yield {"ranks": ranks, "tail": 10_000, "follow": True, "interval_s": 0.4}
    process.kill()
    process.wait()


class Log:
    """What a watch says of ``counting``."""

    def __init__(self, watch):
        self.watch = watch
        self.numbers = []
        self.ticks = 0
        self.gone = None

    def until(self, condition, limit_s=60):
        limit = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < limit, (self.numbers[-5:], self.ticks, self.gone)
            event = self.watch.next(0.1)
            if isinstance(event, Lines):
                self.numbers += map(int, event.lines)
            elif isinstance(event, Tick):
                self.ticks += 1
            elif isinstance(event, Gone):
                self.gone = event.error

    def goes_on(self):
        """Wait for a hundred more lines; none is missing, and none comes twice."""
        before = len(self.numbers)
        self.until(lambda: len(self.numbers) > before + 100)
        assert self.numbers == list(range(len(self.numbers)))
        assert self.gone is None


def test_a_watch_goes_on_where_it_was_after_sshd_was_restarted(sshd, host, counting):
    with Watching(Fleet({"spark-1": host}), {"spark-1": counting}) as watch:
        log = Log(watch)
        log.goes_on()
        sshd.stop()
        sshd.start()
        log.goes_on()


# ------------------------------------------------------------------------------------------- the lease


@pytest.fixture
def lease(host, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "TTL_S", 2.0)
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.3)
    return Lease(Fleet({"spark-1": host}), cluster="atlas", state_dir=str(tmp_path / "s"), operation="up")


def until(condition):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def lapse(tmp_path):
    """Wait until nobody holds the lease."""
    until(lambda: not common.is_locked(str(tmp_path / "s/clusters/atlas/lease.lock")))


def changed(taken, path: Path):
    taken.changer.apply({"spark-1": [{"do": "mkdir", "path": str(path)}]})
    return path.is_dir()


def test_a_lease_that_lapsed_in_a_silence_goes_on_with_its_epoch(sshd, lease, tmp_path):
    with lease.acquire(["spark-1"]) as taken:
        sshd.stop()
        lapse(tmp_path)
        sshd.start()
        assert changed(taken, tmp_path / "s/x")
        assert taken.epochs == {"spark-1": 1}
        assert json.loads((tmp_path / "s/clusters/atlas/lease.json").read_text())["epoch"] == 1
        until(lambda: common.is_locked(str(tmp_path / "s/clusters/atlas/lease.lock")))


def test_a_lease_that_another_operator_took_in_the_silence_is_lost(sshd, lease, start_sshd, tmp_path):
    other = start_sshd("other")
    other.trust()
    with lease.acquire(["spark-1"]) as taken, other.host() as connection:
        sshd.stop()
        lapse(tmp_path)
        bob = Lease(
            Fleet({"spark-1": connection}),
            cluster="atlas",
            state_dir=str(tmp_path / "s"),
            operation="up",
            operator="bob",
        )
        with bob.acquire(["spark-1"]):
            sshd.start()
            with pytest.raises(LeaseLost, match="bob has the lease on spark-1 now"):
                changed(taken, tmp_path / "s/x")
            assert not (tmp_path / "s/x").exists()
            assert changed(bob, tmp_path / "s/of-bob")
        with pytest.raises(LeaseLost, match="bob has the lease"):
            changed(taken, tmp_path / "s/x")
