"""The process that holds the lease on a node, run as on a node."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import call, stream
from sparkcluster.node import common


class Holder:
    """One lease program and what it says."""

    def __init__(self, state, operator, ttl_s=15.0):
        request = {"state_dir": str(state), "cluster": "atlas", "operator": operator, "operation": "up", "ttl_s": ttl_s}
        self.stream = stream(LocalHost("spark-1"), "lease", request)
        self._lines = self.stream.lines(20)
        self.first = self.answer()

    def answer(self):
        return json.loads(next(self._lines))

    def send(self, **document):
        self.stream.send(json.dumps(document).encode() + b"\n")

    def grant(self, epoch):
        self.send(grant=epoch)
        return self.answer()

    @property
    def pid(self):
        return self.stream._process.pid

    def ended(self, limit_s=10):
        until = time.monotonic() + limit_s
        while self.stream._process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        return self.stream._process.poll() is not None


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def hold(state):
    held = []

    def make(operator, **kwargs):
        held.append(Holder(state, operator, **kwargs))
        return held[-1]

    yield make
    for holder in held:
        holder.stream.close()


@pytest.fixture
def change(state):
    """Tries a change under an epoch, by the agent as on a node."""

    def do(epoch):
        path = state / f"changed-{epoch}"
        request = {"state_dir": str(state), "cluster": "atlas", "epoch": epoch}
        answer = call(LocalHost("spark-1"), "agent", {**request, "steps": [{"do": "mkdir", "path": str(path)}]})
        assert path.exists() == ("results" in answer)
        if path.exists():
            path.rmdir()
        return answer.get("refused", "changed")

    return do


def test_epochs_increase_and_outlive_their_holders(hold):
    ann = hold("ann")
    assert ann.first == {"epoch": 0}
    assert ann.grant(1) == {"granted": 1}
    ann.stream.close()
    bob = hold("bob")
    assert bob.first == {"epoch": 1}


def test_the_second_operator_learns_the_holder(hold):
    ann = hold("ann@desk (pid 7)")
    taken = hold("bob").first["held"]
    assert (taken["operator"], taken["operation"], taken["epoch"]) == ("ann@desk (pid 7)", "up", 0)
    ann.grant(4)
    held = hold("bob").first["held"]
    assert (held["operator"], held["epoch"]) == ("ann@desk (pid 7)", 4)
    assert abs(held["since"] - time.time()) < 60


def test_the_lease_lasts_as_long_as_heartbeats_come(hold, change):
    ann = hold("ann", ttl_s=2)
    ann.grant(1)
    for _ in range(6):
        time.sleep(0.5)
        ann.send()
    assert change(1) == "changed"
    assert ann.ended()
    assert change(1) == "epoch 1 is over: the lease expired and has no holder"
    assert hold("bob").first == {"epoch": 1}


def test_the_lease_is_released_at_once_when_the_connection_ends(hold, change):
    ann = hold("ann", ttl_s=600)
    ann.grant(1)
    ann.stream._in.close()
    assert ann.ended(5)
    assert change(1).endswith("has no holder")


def test_a_holder_that_is_killed_leaves_nothing_locked(hold):
    ann = hold("ann", ttl_s=600)
    ann.grant(1)
    os.kill(ann.pid, signal.SIGKILL)
    assert ann.ended(5)
    assert hold("bob").first == {"epoch": 1}


def test_an_old_epoch_is_refused_as_soon_as_another_operator_takes_over(hold, change):
    ann = hold("ann")
    ann.grant(1)
    assert change(1) == "changed"
    ann.stream.close()
    bob = hold("bob")
    assert change(1) == "epoch 1 is over: bob is acquiring the lease"
    bob.grant(2)
    assert change(1) == "epoch 1 is over: the lease went to bob with epoch 2"
    assert change(2) == "changed"
    assert change(3).startswith("epoch 3 is over")


def test_a_new_holder_waits_for_a_change_that_outlived_its_operator(hold, state):
    bob = hold("bob")
    lock = common.try_lock(str(Path(common.cluster_dir(str(state), "atlas")) / "change.lock"))
    bob.send(grant=1)
    time.sleep(0.5)
    assert json.loads((state / "clusters/atlas/lease.json").read_text())["granted"] is False
    lock.close()
    assert bob.answer() == {"granted": 1}


@pytest.mark.parametrize("noise", [b"\n", b"not json\n", b"{}\n", b'{"grant": null}\n', b"[]\n", b"7\n", b"\xff\xfe\n"])
def test_all_lines_other_than_grants_are_heartbeats(hold, noise):
    ann = hold("ann")
    ann.stream.send(noise)
    assert ann.grant(1) == {"granted": 1}


def test_an_invalid_lease_document_counts_as_none(hold, state):
    directory = state / "clusters" / "atlas"
    directory.mkdir(parents=True)
    (directory / "lease.json").write_text("{broken")
    assert hold("ann").first == {"epoch": 0}


def test_clusters_do_not_share_a_lease(hold, state):
    hold("ann")
    request = {"state_dir": str(state), "cluster": "borea", "operator": "bob", "operation": "up", "ttl_s": 15}
    with stream(LocalHost("spark-1"), "lease", request) as other:
        assert json.loads(next(other.lines(20))) == {"epoch": 0}
