"""The start lock of a node: one cluster at a time, and the next one when memory is stable."""

from __future__ import annotations

import os
import signal
import time

import pytest

from sparkcluster.node import common, start_lock

from .test_lease import Holder

GIB = 1 << 30


@pytest.fixture
def state(tmp_path):
    # its parents may belong to any user: only the directory itself counts
    tmp_path.chmod(0o777)
    return tmp_path / "state"


@pytest.fixture
def starter(state):
    held = []

    def make(cluster, operation="up"):
        held.append(Holder(state, f"who starts {cluster}", cluster=cluster, kind="start", operation=operation))
        return held[-1]

    yield make
    for holder in held:
        holder.stream.close()


def test_of_two_clusters_the_second_gets_the_name_of_the_first_and_the_lock_when_the_first_is_killed(state, starter):
    first = starter("atlas")
    assert first.grant(1) == {"granted": 1}
    held = starter("embed").first["held"]
    assert (held["cluster"], held["operator"], held["operation"]) == ("atlas", "who starts atlas", "up")
    assert start_lock.held_by({"state_dir": str(state), "cluster": "embed"}) == "atlas is starting"
    os.kill(first.pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while common.is_locked(str(state / "start.lock")) and time.monotonic() < until:
        time.sleep(0.02)
    second = starter("embed", "down")
    assert second.grant(2) == {"granted": 2}
    assert start_lock.held_by({"state_dir": str(state), "cluster": "atlas"}) == "embed is stopping"


class Clock:
    """Time that advances with every pause, and memory that is ``free`` by then."""

    def __init__(self, monkeypatch, free):
        self.now = 0.0
        monkeypatch.setattr(start_lock, "available", lambda: free(self.now))

    def pause(self, seconds):
        self.now += seconds

    def settle(self, state, cluster="atlas"):
        request = {"state_dir": str(state), "cluster": cluster}
        start_lock.settle(request, clock=lambda: self.now, pause=self.pause)
        return self.now


def test_with_ranks_of_another_cluster_memory_must_be_stable_for_five_seconds(state, monkeypatch):
    for rank, file in (("atlas-gateway/ranks/gateway", "config.json"), ("embed/ranks/embed-1", "launcher.json")):
        (state / "clusters" / rank).mkdir(parents=True)
        if file == "launcher.json":  # the memory of a gateway does not change
            assert Clock(monkeypatch, lambda at: int((60 - 2 * min(at, 4)) * GIB)).settle(state) == 0
        (state / "clusters" / rank / file).touch()
    loading = Clock(monkeypatch, lambda at: int((60 - 2 * min(at, 4)) * GIB))
    assert loading.settle(state) == 9
    endless = Clock(monkeypatch, lambda at: int((60 - 2 * at) * GIB))
    with pytest.raises(common.Busy, match="its memory is still changing"):
        endless.settle(state)
    # alone on its node, no cluster waits
    assert Clock(monkeypatch, lambda at: int((60 - 2 * at) * GIB)).settle(state, "embed") == 0
