"""Connections that are silent, break, and are reopened: a real sshd that is paused, killed and restarted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from sparkcluster.errors import HostSilent, HostTimeout, LeaseLost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node import common
from sparkcluster.runtime import watching
from sparkcluster.runtime.lease import Lease
from sparkcluster.runtime.watching import Watching


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


def test_a_connection_failure_is_remembered_until_it_is_reset(sshd, host):
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
    """A rank that counts in its log, and the watch request for it."""
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
    """The output of a watch on ``counting``."""

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
            if event is not None:
                self.numbers += map(int, event.report.lines)
                self.ticks += event.report.states is not None
                self.gone = event.gone

    def goes_on(self):
        """Wait for a hundred more lines; none is missing or duplicate."""
        before = len(self.numbers)
        self.until(lambda: len(self.numbers) > before + 100)
        assert self.numbers == list(range(len(self.numbers)))
        assert self.gone is None


def test_a_watch_continues_at_its_position_after_a_restart_of_sshd(sshd, host, counting):
    with Watching(Fleet({"spark-1": host}), {"spark-1": counting}, reconnect=True) as watch:
        log = Log(watch)
        log.goes_on()
        sshd.stop()
        sshd.start()
        log.goes_on()


@pytest.mark.parametrize("send", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_with_a_broken_or_silent_connection_is_given_up(sshd, host, counting, monkeypatch, send):
    monkeypatch.setattr(watching, "SILENT_S", 8.0)
    with Watching(Fleet({"spark-1": host}), {"spark-1": counting}) as watch:
        log = Log(watch)
        log.goes_on()
        sshd.send(send)
        log.until(lambda: log.gone is not None)
        assert isinstance(log.gone, HostSilent)


# ------------------------------------------------------------------------------------------- the lease


def test_a_lease_is_lost_when_its_connection_breaks(sshd, host, tmp_path):
    fleet, directory = Fleet({"spark-1": host}), tmp_path / "s/clusters/atlas"
    with Lease(fleet, SimpleNamespace(cluster="atlas", state_dir=str(tmp_path / "s")), "up").acquire(
        ["spark-1"]
    ) as lease:
        sshd.stop()
        limit = time.monotonic() + 60
        while common.is_locked(str(directory / "lease.lock")):
            assert time.monotonic() < limit
            time.sleep(0.05)
        sshd.start()
        with pytest.raises(LeaseLost, match="epoch 1 is over: the lease expired"):
            lease.changer.apply({"spark-1": [{"do": "mkdir", "path": str(tmp_path / "x")}]})
        assert not (tmp_path / "x").exists()
