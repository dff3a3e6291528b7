"""The door program that enable installs, and the guards of a model on demand, over real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from sparkcluster.hosts.program import standalone
from sparkcluster.node import common, enabled, group_guard, shared, unit, wire

from .test_guard import ADDRESSES, DOOR_TOKEN, Cluster, eventually


class Door:
    """The gateway's end of the door, with ``coder``, and ``lost``, whose node does not answer."""

    def __init__(self, cluster, token=DOOR_TOKEN):
        self.cluster = cluster
        # longer than an address of a Unix socket may be
        self.path = cluster.folder / ("gateway" * 12) / "run" / "door.sock"
        self.directory = cluster.folder / "gateway"
        place = {"node": "alpha", "address": ADDRESSES["alpha"], "port": cluster.port}
        place["token"] = token
        models = {"coder": place, "lost": {**place, "address": "127.0.0.9"}}
        self.directory.mkdir(exist_ok=True)
        (self.directory / shared.CONFIG_FILE).write_text(json.dumps({"socket": str(self.path), "models": models}))
        program = self.directory / shared.GUARD_FILE
        program.write_text(standalone("door"))
        self.process = subprocess.Popen([sys.executable, *unit.command(str(self.directory))[1:]])
        eventually(self.listens)

    def listens(self):
        """Whether it accepts connections, which is some time after its socket exists."""
        with socket.socket(socket.AF_UNIX) as sock:
            return self.path.exists() and self.connect(sock) == 0

    def connect(self, sock):
        handle = os.open(self.path.parent, os.O_PATH)
        code = sock.connect_ex(f"/proc/self/fd/{handle}/{self.path.name}")
        os.close(handle)
        return code

    def ask(self, **request):
        with socket.socket(socket.AF_UNIX) as sock:
            assert self.connect(sock) == 0
            sock.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(sock.makefile("rb").readline())

    def want(self, *, run=True):
        return self.ask(do="want", model="coder", run=run)["coder"]

    @property
    def state(self):
        return self.ask(do="states")["coder"]

    def becomes(self, state):
        eventually(lambda: self.state["state"] == state)

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    made.enable(on_demand=True)
    yield made
    for node in made.nodes:
        node.end()


@pytest.fixture
def door(cluster):
    made = Door(cluster)
    yield made
    made.end()


def booted(cluster, door):
    cluster.boot()
    door.becomes("stopped")


def pids(cluster):
    return [len(each) for each in pids_of(cluster)]


def pids_of(cluster):
    return [node.pids() for node in cluster.nodes]


def test_a_model_is_loaded_on_request_and_unloaded_on_request(cluster, door):
    booted(cluster, door)
    assert pids(cluster) == [0, 0]
    assert door.want() == {"state": "starting", "why": None}
    door.becomes("ready")
    assert pids(cluster) == [1, 1]
    assert door.want(run=False)["state"] == "stopping"
    door.becomes("stopped")
    assert pids(cluster) == [0, 0]
    assert cluster.alpha.acts == ["load", "serving"]
    assert cluster.alpha.waits is None
    lost = door.ask(do="states")["lost"]
    assert lost["state"] == "unreachable"
    assert "cannot connect to 127.0.0.9" in lost["why"]


def test_running_ranks_that_were_not_requested_are_stopped(cluster, door):
    """As after ``up`` has verified such a model."""
    booted(cluster, door)
    door.want()
    door.becomes("ready")
    for node in cluster.nodes:
        node.guard.kill()
        node.guard.wait()
        node.record(1, 4)
    cluster.boot()
    eventually(lambda: pids(cluster) == [0, 0])
    door.becomes("stopped")


def test_a_failed_load_is_not_retried_without_a_new_request(cluster, door):
    booted(cluster, door)
    cluster.alpha.record(program="raise SystemExit(7)")
    for count in (1, 2):
        door.want()
        door.becomes("failed")
        assert "not running: atlas-1-alpha" in door.state["why"]
        time.sleep(1)
        assert cluster.alpha.acts == ["load", "load failed"] * count
    assert pids(cluster) == [0, 0]


def test_a_model_killed_for_memory_is_loaded_by_a_new_request_and_the_log_of_its_rank_is_kept(cluster, door):
    booted(cluster, door)
    words, full = "killed to protect the machine: MemAvailable was 4.2 GiB, below 5.0 GiB", cluster.folder / "full"
    waits = f"import os, time\nwhile not os.path.exists({str(full)!r}): time.sleep(0.05)\n"
    says = f"print('[sparkcluster] phase=victim {words}')\nraise SystemExit({shared.VICTIM})"
    cluster.beta.record(program=waits + says)
    door.want()
    door.becomes("ready")
    full.touch()
    eventually(lambda: pids(cluster) == [0, 0])
    door.becomes("failed")
    assert door.state["why"] == f"atlas-1-beta: {words}"
    assert words in (cluster.beta.directory / "ranks/atlas-1-beta/log").read_text()
    full.unlink()
    door.want()
    door.becomes("ready")
    assert cluster.alpha.acts == ["load", "serving", "victim", "load", "serving"]


def test_a_load_that_cannot_begin_fails_with_the_reason_unless_another_model_is_starting(cluster, door):
    for node in cluster.nodes:
        node.install(on_demand=True, load_s=1.0)
    lock = cluster.beta.start_lock("embed")
    booted(cluster, door)
    cluster.beta.record(planned_bytes=1 << 60)
    door.want()
    eventually(lambda: door.state == {"state": "starting", "why": "embed is starting on beta"})
    time.sleep(2)
    assert door.state["state"] == "starting"
    lock.close()
    door.becomes("failed")
    assert "beta: its rank needs 1152921504.6 GB, but only " in door.state["why"]
    assert cluster.alpha.acts == ["load failed"]


def test_a_loaded_model_whose_rank_dies_is_restarted_like_others(cluster, door):
    booted(cluster, door)
    door.want()
    door.becomes("ready")
    os.killpg(cluster.beta.pids()[0], signal.SIGKILL)
    eventually(lambda: cluster.alpha.acts == ["load", "serving", "restart", "serving"])
    door.becomes("ready")


def test_a_model_stopped_by_an_operator_fails_with_the_reason_until_the_next_release(cluster, door):
    booted(cluster, door)
    for node in cluster.nodes:
        enabled.stop(node.lease(3), {})
    door.want()
    eventually(lambda: "stopped by an operator" in (door.state["why"] or ""))
    assert door.state["state"] == "failed"
    for node in cluster.nodes:
        node.record(2, 4)
    door.becomes("stopped")  # a model that could not be loaded is no longer requested
    door.want()
    door.becomes("ready")


def test_a_model_counts_as_starting_while_an_operator_is_at_work(cluster, door):
    booted(cluster, door)
    lock = common.try_lock(str(cluster.alpha.directory / "lease.lock"))
    door.becomes("starting")
    assert door.state["why"] == "ann is changing the cluster"
    lock.close()
    door.becomes("stopped")


def test_a_load_is_acknowledged_and_cancelled_if_no_longer_requested(cluster, door):
    cluster.control.touch()  # so that it does not answer
    booted(cluster, door)
    door.want()
    eventually(lambda: pids(cluster) == [1, 1])
    assert door.state["state"] == "starting"
    assert door.want(run=False)["state"] == "stopping"
    door.becomes("stopped")
    assert pids(cluster) == [0, 0]
    assert cluster.alpha.acts == ["load"]


def killed_and_started_again(node, door):
    node.guard.kill()
    node.guard.wait()
    door.becomes("unreachable")
    node.boot()


def test_after_a_guard_is_killed_its_loaded_model_keeps_serving_and_its_unfinished_load_is_stopped(cluster, door):
    booted(cluster, door)
    door.want()
    door.becomes("ready")
    before = pids_of(cluster)
    killed_and_started_again(cluster.alpha, door)
    door.becomes("ready")
    assert pids_of(cluster) == before
    door.want(run=False)
    door.becomes("stopped")
    cluster.control.touch()
    door.want()
    eventually(lambda: pids(cluster) == [1, 1])
    killed_and_started_again(cluster.alpha, door)
    door.becomes("stopped")
    assert pids(cluster) == [0, 0]
    assert cluster.alpha.acts == ["load", "serving", "load"]


def test_a_model_loaded_before_a_reboot_is_not_loaded_without_a_new_request(cluster, door):
    """Its memory may belong to another model now."""
    booted(cluster, door)
    door.want()
    door.becomes("ready")
    for node in cluster.nodes:
        node.end()
    booted(cluster, door)
    assert cluster.alpha.acts == ["load", "serving"]
    door.want()
    door.becomes("ready")
    assert cluster.alpha.acts == ["load", "serving"] * 2


def test_the_socket_is_accessible_to_its_user_only(cluster, door):
    assert stat.S_IMODE(door.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(door.path.parent.stat().st_mode) == 0o700
    with pytest.raises(ValueError, match="Expecting value"):
        door.ask(do="want", model="other", run=True)
    assert door.state["state"] == "unreachable"


def test_a_wrong_token_loads_nothing(cluster):
    cluster.boot()
    door = Door(cluster, token="00" * 32)
    eventually(lambda: "another program answers" in door.state["why"])
    assert door.state["state"] == "unreachable"
    assert "another program answers" in door.want()["why"]
    assert cluster.alpha.acts == []
    door.end()


def answer_to(node, word, token):
    """The answer of the guard of ``node`` to a caller with ``token``."""
    peer = group_guard.Peer(node.name, ADDRESSES[node.name], node.cluster.port, token)
    try:
        return peer.ask(word, run=True)
    finally:
        peer.close()


def test_the_gateways_token_cannot_start_or_stop_ranks(cluster, door):
    """The door's token cannot stop a rank, and the guard of an always-on model does not listen."""
    booted(cluster, door)
    door.want()
    door.becomes("ready")
    before = pids_of(cluster)
    for word in ("hello", "take", "stop", "start"):
        assert answer_to(cluster.alpha, word, DOOR_TOKEN) == {"state": "ready", "why": None}
    assert (pids_of(cluster), cluster.alpha.acts) == (before, ["load", "serving"])
    with pytest.raises(wire.Failed):
        wire.dial(ADDRESSES["beta"], cluster.port, group_guard.secret(DOOR_TOKEN, "beta"))
    cluster.alpha.end()
    cluster.alpha.install()
    cluster.alpha.boot()
    eventually(lambda: "not reachable" in door.want()["why"])
