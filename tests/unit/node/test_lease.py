"""The process that holds the lease on a node, run as on a node."""

from __future__ import annotations

import json
import os
import time

import pytest

from sparkcluster.errors import CommandFailed
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import Conversation, call, stream
from sparkcluster.node import storage
from sparkcluster.node.machine import Machine


class Holder:
    """One lease program and its output."""

    def __init__(self, state, operator, ttl_s=15.0, **more):
        request = {"state_dir": str(state), "cluster": "atlas", "operator": operator, "operation": "up", "ttl_s": ttl_s}
        request |= more
        self.stream = stream(LocalHost("spark-1"), "lease", request)
        self._lines = self.stream.lines(60)
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

    def ended(self, limit_s=60):
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
    """Attempts a change under an epoch, by the agent as on a node."""

    def do(epoch):
        path = state / f"changed-{epoch}"
        request = {"state_dir": str(state), "cluster": "atlas", "epoch": epoch}
        answer = call(
            LocalHost("spark-1"), "agent", {**request, "steps": [{"do": "mkdir", "path": str(path)}]}, answer=dict
        )
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


def test_the_second_operator_gets_the_name_of_the_holder(hold):
    ann = hold("ann@desk (pid 7)")
    taken = hold("bob").first["held"]
    assert (taken["operator"], taken["operation"], taken["epoch"]) == ("ann@desk (pid 7)", "up", 0)
    ann.grant(4)
    held = hold("bob").first["held"]
    assert (held["operator"], held["epoch"]) == ("ann@desk (pid 7)", 4)
    assert abs(held["since"] - time.time()) < 60


def test_the_lease_lasts_while_heartbeats_arrive(hold, change):
    ann = hold("ann", ttl_s=3)
    ann.grant(1)
    for _ in range(35):
        time.sleep(0.1)
        ann.send()
    assert change(1) == "changed"
    assert ann.ended()
    assert change(1) == "epoch 1 is over: the lease expired"
    assert hold("bob").first == {"epoch": 1}


def test_the_lease_is_released_immediately_when_the_connection_ends(hold, change):
    ann = hold("ann", ttl_s=600)
    ann.grant(1)
    ann.stream._in.close()
    assert ann.ended()
    assert change(1).endswith("the lease expired")


def test_an_old_epoch_is_refused_as_soon_as_another_operator_takes_over(hold, change):
    ann = hold("ann")
    ann.grant(1)
    assert change(1) == "changed"
    ann.stream.close()
    bob = hold("bob")
    assert change(1) == "epoch 1 is over: the lease was last requested by bob"
    bob.grant(2)
    assert change(1) == "epoch 1 is over: the lease was last requested by bob"
    assert change(2) == "changed"
    assert change(3).startswith("epoch 3 is over")


@pytest.mark.parametrize("noise", [b"not json\n", b'{"grant": null}\n', b"\xff\xfe\n"])
def test_all_lines_other_than_grants_are_heartbeats(hold, noise):
    ann = hold("ann")
    ann.stream.send(noise)
    assert ann.grant(1) == {"granted": 1}


def refused(state, text):
    request = {"state_dir": str(state), "cluster": "atlas", "operator": "a", "operation": "up", "ttl_s": 15}
    with pytest.raises(CommandFailed, match=text) as caught:
        Conversation(LocalHost("spark-1"), "lease", request, silence_s=20).answer(dict)
    assert "set state_dir in the inventory" in caught.value.message
    machine = Machine()
    for reader in (storage.lease, storage.release):
        with pytest.raises(PermissionError, match=text):
            reader(machine, str(state), "atlas")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a directory of another user")
@pytest.mark.parametrize("theirs", ["directory", "link", "target of a link"])
def test_a_state_directory_of_another_user_is_rejected(state, tmp_path, theirs):
    (state / "clusters" / "atlas").mkdir(parents=True, mode=0o700)
    if theirs != "directory":
        state.rename(tmp_path / "moved")
        state.symlink_to(tmp_path / "moved")
    os.chown(state, 4321, -1, follow_symlinks=theirs != "link")
    refused(state, f"{state} belongs to another user or is writable by others")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a directory of another group")
@pytest.mark.parametrize(("mode", "group"), [(0o777, -1), (0o770, 4321)])
def test_a_state_directory_writable_by_others_is_rejected(state, mode, group):
    state.mkdir(exist_ok=True)
    os.chown(state, -1, group)
    state.chmod(mode)
    refused(state, "belongs to another user or is writable by others")
