"""The guards of two nodes, as the programs that enable installs, over real sockets; their ranks are processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sparkcluster.facts.model import EnabledFact
from sparkcluster.hosts.program import standalone
from sparkcluster.node import agent, common, enabled, group_guard, own_rank, shared, start_lock, storage, unit, wire
from sparkcluster.node.group_guard import problem
from sparkcluster.node.machine import Machine
from sparkcluster.node.programs import Failed

ADDRESSES = {"alpha": "127.0.0.2", "beta": "127.0.0.3"}
TOKEN, DOOR_TOKEN = "5e" * 32, "d0" * 32
ENGINE = """
import http.server, json, os, sys, threading, time

port, control = int(sys.argv[1]), sys.argv[2]

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send(self, status, document, kind="application/json"):
        body = document.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/metrics":
            return self.send(200, "generated 5\\n", "text/plain")
        self.send(200, json.dumps({"data": [{"id": "m", "max_model_len": 100}]}))

    def do_POST(self):
        if os.path.exists(control):
            return self.send(500, json.dumps({"error": {"message": "EngineDeadError"}}))
        chunk = {"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}
        self.send(200, "data: %s\\n\\ndata: [DONE]\\n\\n" % json.dumps(chunk), "text/event-stream")

http.server.ThreadingHTTPServer(("127.0.0.2", port), Handler).serve_forever()
"""
SLEEP = "import time; time.sleep(600)"


def free_port():
    with socket.create_server(("127.0.0.2", 0)) as one:
        return one.getsockname()[1]


def eventually(true, limit_s=60.0):
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, true
        time.sleep(0.05)


class Node:
    """A node with a separate state directory, on a loopback address."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.state = cluster.folder / name
        self.directory = Path(common.cluster_dir(str(self.state), "atlas"))
        self.enabled = self.directory / shared.ENABLED_DIR
        self.guard = None
        self.log = cluster.folder / f"{name}.log"

    def record(self, number=1, epoch=3, *, program=None, ready_timeout_s=15, **changes):
        """The files of the agent's step record, under ``epoch``."""
        head = self.name == "alpha"
        rank_dir = str(self.directory / "ranks" / f"atlas-{number}-{self.name}")
        words = [ENGINE, str(self.cluster.api), str(self.cluster.control)] if head else [SLEEP]
        labels = {
            shared.LABEL_CLUSTER: "atlas",
            shared.LABEL_STATE_DIR: str(self.state),
            shared.LABEL_RANK_DIR: rank_dir,
            shared.LABEL_RUNTIME: "process",
            shared.LABEL_PLAN: "p",
        }
        start = {
            "group": "default",
            "head": head,
            "address": ADDRESSES[self.name],
            "peers": {name: at for name, at in ADDRESSES.items() if name != self.name},
            "ranks": [f"atlas-{number}-{self.name}"],
            "steps": [
                {
                    "do": "restore-secrets",
                    "number": 0,
                    "path": f"{rank_dir}/secrets.env",
                    "names": ["KEY"],
                    "values": {},
                },
                {
                    "do": "start-process",
                    "name": f"atlas-{number}-{self.name}",
                    "argv": [sys.executable, "-c", *([program] if program else words)],
                    "rank_dir": rank_dir,
                    "env": {},
                    "env_file": f"{rank_dir}/secrets.env",
                    "labels": labels,
                },
            ],
            "ask": {
                "endpoint": f"http://127.0.0.2:{self.cluster.api}/v1", "model": "m", "messages": [], "max_tokens": 1,
                "stream": True, "counters": {"generated": ["generated"]},
            } if head else None,
            "ready_timeout_s": ready_timeout_s,
        }  # fmt: skip
        common.write_atomically(str(self.directory / f"releases/{number:06d}.env"), b"KEY=1\n")
        enabled.recorded(self.lease(epoch), {"number": number, "start": {**start, **changes}})

    def lease(self, epoch, operator="ann"):
        """A finished operator's lease, as in a request."""
        document = {"epoch": epoch, "operator": operator, "granted": True}
        common.write_atomically(str(self.directory / "lease.json"), json.dumps(document).encode())
        return {"state_dir": str(self.state), "cluster": "atlas", "epoch": epoch}

    def start_lock(self, cluster):
        """The node's start lock, held by another cluster."""
        lock, record, _ = common.lease_files({"state_dir": str(self.state), "cluster": cluster, "kind": "start"})
        common.write_atomically(record, json.dumps({"epoch": 1, "cluster": cluster, "operation": "up"}).encode())
        return common.try_lock(lock, state_dir=str(self.state))

    def install(self, token=TOKEN, on_event=None, on_demand=False, **limits):
        """The files that enable installs."""
        config = {
            "cluster": "atlas", "node": self.name, "state_dir": str(self.state), "runtime": "process",
            "port": self.cluster.port,
            "token": token, "limits": {"starts": 3, "pause_s": 0.1, "probe_s": 0.2, "look_s": 0.3, **limits},
        }  # fmt: skip
        config |= {"on_event": on_event} if on_event else {}
        config |= {"on_demand": True, "door_token": DOOR_TOKEN} if on_demand else {}
        files = {"guard.py": self.cluster.program, "config.json": json.dumps(config)}
        for name, text in files.items():
            common.write_atomically(str(self.enabled / name), text.encode())

    def boot(self, **environment):
        """Start the guard as ExecStart does, with additional variables in its ``environment``."""
        argv = unit.command(str(self.enabled))
        argv[0] = sys.executable
        with self.log.open("ab") as log:
            self.guard = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, **environment})

    def end(self):
        """End guard and rank, like a power loss."""
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def pids(self):
        """The running ranks."""
        found = [json.loads(path.read_bytes()) for path in self.directory.glob("ranks/*/rank.json")]
        return [rank["pid"] for rank in found if common.start_ticks(rank["pid"]) == rank["start_ticks"]]

    @property
    def journal(self):
        path = self.enabled / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def acts(self):
        return [entry["act"] for entry in self.journal if entry["act"] != "on_event failed"]

    @property
    def waits(self):
        document = common.read_json(str(self.enabled / "waits.json"))
        return document.get("why")


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.api, self.port = free_port(), free_port()
        self.control = folder / "engine-is-dead"
        self.program = standalone("guard", "vllm")
        self.alpha, self.beta = self.nodes = [Node(self, name) for name in ADDRESSES]

    def enable(self, **limits):
        for node in self.nodes:
            node.install(**limits)
            node.record()

    def boot(self, **environment):
        for node in self.nodes:
            node.boot(**environment)

    def serves(self):
        eventually(lambda: self.alpha.acts[-1:] == ["serving"] and all(node.pids() for node in self.nodes))

    def starts_nothing(self, why):
        """The head's guard reports the reason, and does not start anything."""
        eventually(lambda: why in (self.alpha.waits or ""))
        time.sleep(1)
        assert [node.pids() for node in self.nodes] == [[], []]
        assert self.alpha.acts == []


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    for node in made.nodes:
        node.end()


def test_after_a_reboot_of_both_nodes_the_release_is_started(cluster):
    cluster.enable()
    cluster.boot()
    cluster.serves()
    assert cluster.alpha.acts == ["restart", "serving"]
    counted = {event: count for event, count in reported(cluster.alpha).events.items() if count}
    assert counted == {"restart": 1, "serving": 1}
    assert "not running: atlas-1-alpha, atlas-1-beta" in cluster.alpha.journal[0]["why"]
    assert cluster.beta.acts == []
    # its secrets are the release's kept ones
    assert (cluster.beta.directory / "ranks/atlas-1-beta/secrets.env").read_text() == "KEY=1\n"


def test_after_a_reboot_of_one_node_the_complete_group_is_restarted(cluster):
    cluster.enable()
    cluster.boot()
    cluster.serves()
    before = cluster.alpha.pids()
    cluster.beta.end()
    eventually(lambda: "beta: not reachable" in (cluster.alpha.waits or ""))
    assert cluster.alpha.pids() == before
    cluster.beta.boot()
    eventually(lambda: cluster.alpha.acts == ["restart", "serving", "restart", "serving"])
    assert cluster.alpha.pids() != before


def test_nothing_starts_after_down_until_the_next_release_is_recorded(cluster):
    cluster.enable()
    enabled.stop(cluster.beta.lease(3), {})
    cluster.boot()
    cluster.starts_nothing("stopped by an operator")
    for node in cluster.nodes:
        node.record(2, 4)
    cluster.serves()
    assert cluster.alpha.journal[-1]["release"] == 2


def test_nothing_starts_while_an_operator_holds_the_lease(cluster):
    cluster.enable()
    lock = common.try_lock(str(cluster.beta.directory / "lease.lock"))
    cluster.boot()
    time.sleep(2)
    assert [node.pids() for node in cluster.nodes] == [[], []]
    assert cluster.alpha.waits is None  # the lease shows it, so `status` after `up` is immediately clean
    lock.close()
    cluster.serves()


@pytest.mark.parametrize("name", ["start.json", "lease.json", "switch.json"])
@pytest.mark.parametrize("odd", [b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_document_is_reported(cluster, name, odd):
    cluster.enable()
    (cluster.beta.directory / name).write_bytes(odd)
    assert f"{name} is damaged" in own_rank.OwnRank(str(cluster.beta.enabled)).ask("hello")["why"]


def failures(node):
    """Reasons of failed on_event commands."""
    return [entry["why"] for entry in node.journal if entry["act"] == "on_event failed"]


def trouble(node):
    """The problem that ``status`` shows about the guard of ``node``."""
    return reported(node).trouble


def reported(node):
    """The probe's reading of the guard of ``node``."""
    return EnabledFact.model_validate(storage.enabled(Machine(), str(node.state), "atlas"))


@pytest.mark.parametrize(
    ("number", "odd", "why"),
    [
        (0, b"{", "start.json is damaged: "),
        (1, b"{", "start.json is damaged: "),
        (0, {"peers": ["127.0.0.2"]}, "it cannot check the group: "),
        (
            0,
            {"ask": {"endpoint": "http://[", "model": "m", "counters": {"generated": ["tokens"]}}},
            "it cannot check the group: ",
        ),
    ],
)
def test_a_guard_reports_errors_of_its_document_and_continues_after_the_fix(cluster, number, odd, why):
    """In ``status`` of the node."""
    cluster.enable()
    cluster.boot()
    cluster.serves()
    node = cluster.nodes[number]
    start = node.directory / shared.START_FILE
    right = start.read_bytes()
    start.write_bytes(odd if isinstance(odd, bytes) else json.dumps({**json.loads(right), **odd}).encode())
    eventually(lambda: why in (trouble(node) or ""))
    start.write_bytes(right)
    eventually(lambda: trouble(node) is None)
    cluster.beta.end()
    cluster.beta.boot()
    eventually(lambda: cluster.alpha.acts == ["restart", "serving"] * 2)


def test_a_crash_loop_stops_at_its_limit_and_is_reported(cluster):
    cluster.enable(within_s=0.01)  # slow failures never reach the limit within one hour
    cluster.alpha.record(program="raise SystemExit(7)")
    cluster.boot()
    eventually(lambda: cluster.alpha.acts[-1:] == ["gave up"])
    assert cluster.alpha.acts == ["restart", "failed"] * 3 + ["gave up"]
    assert reported(cluster.alpha).events["gave-up"] == 1
    # not after the next boot either
    for node in cluster.nodes:
        node.end()
    cluster.boot()
    eventually(lambda: "it gave up" in (cluster.alpha.waits or ""))
    time.sleep(1)
    assert cluster.alpha.acts.count("restart") == 3
    for node in cluster.nodes:
        node.record(2, 5)
    cluster.serves()


def test_a_rank_killed_for_memory_stays_down_until_the_next_release(cluster):
    cluster.enable()
    words = "killed to protect the machine: MemAvailable was 4.2 GiB, below 5.0 GiB"
    cluster.alpha.record(program=f"print('[sparkcluster] phase=victim {words}'); raise SystemExit({shared.VICTIM})")
    cluster.boot()
    eventually(lambda: cluster.alpha.acts[-1:] == ["victim"])
    assert cluster.alpha.journal[-1]["why"] == f"atlas-1-alpha: {words}"
    eventually(lambda: words in (cluster.alpha.waits or ""))
    time.sleep(1)
    assert cluster.alpha.acts == ["restart", "failed", "victim"]
    for node in cluster.nodes:
        node.record(2, 5)
    cluster.serves()


def test_the_remaining_ranks_of_a_victims_group_are_stopped_and_its_log_is_kept(cluster):
    cluster.enable()
    words, full = "killed to protect the machine: MemAvailable was 4.2 GiB, below 5.0 GiB", cluster.folder / "full"
    waits = f"import os, time\nwhile not os.path.exists({str(full)!r}): time.sleep(0.05)\n"
    says = f"print('[sparkcluster] phase=victim {words}')\nraise SystemExit({shared.VICTIM})"
    cluster.beta.record(program=waits + says)
    cluster.boot()
    cluster.serves()
    full.touch()
    eventually(lambda: cluster.alpha.pids() == [])
    assert cluster.alpha.acts == ["restart", "serving", "victim"]
    assert words in (cluster.beta.directory / "ranks/atlas-1-beta/log").read_text()
    time.sleep(1)
    assert cluster.alpha.acts == ["restart", "serving", "victim"]


def test_a_missing_rank_restarts_the_complete_group(cluster):
    cluster.enable()
    cluster.boot()
    cluster.serves()
    before = [node.pids() for node in cluster.nodes]
    os.killpg(before[1][0], signal.SIGKILL)
    eventually(lambda: cluster.alpha.acts == ["restart", "serving"] * 2)
    after = [node.pids() for node in cluster.nodes]
    assert all(len(pids) == 1 for pids in after)
    assert not {pid for pids in after for pid in pids} & {pid for pids in before for pid in pids}
    assert "not running: atlas-1-beta" in cluster.alpha.journal[2]["why"]


def test_an_engine_that_returns_500_twice_is_restarted(cluster):
    cluster.enable()
    cluster.boot()
    cluster.serves()
    cluster.control.touch()
    eventually(lambda: cluster.alpha.acts[2:3] == ["restart"])
    cluster.control.unlink()
    eventually(lambda: cluster.alpha.acts == ["restart", "serving"] * 2)
    assert "EngineDeadError" in cluster.alpha.journal[2]["why"]


def wedge(cluster, then):
    """Make the engine fail until the guard's next action is ``then``."""
    acts = cluster.alpha.acts
    cluster.control.touch()
    eventually(lambda: cluster.alpha.acts[len(acts) :] == [then])
    cluster.control.unlink()


def test_a_model_that_hangs_after_its_restart_is_given_up_and_on_event_reports_everything(cluster):
    said = cluster.folder / "said"
    cluster.enable(on_event=["sh", "-c", f"env >> {said}; exit 3"])
    cluster.boot(HF_TOKEN="not-for-commands")
    cluster.serves()
    wedge(cluster, "restart")
    eventually(lambda: cluster.alpha.acts == ["restart", "serving"] * 2)
    wedge(cluster, "gave up")
    eventually(lambda: [node.pids() for node in cluster.nodes] == [[], []])
    eventually(lambda: "hung again" in (trouble(cluster.alpha) or ""))
    assert trouble(cluster.alpha).endswith("; sparkcluster up INVENTORY starts it")
    eventually(lambda: len(failures(cluster.alpha)) == 3)
    assert failures(cluster.alpha)[0] == "sh: it exited with code 3"
    found = said.read_text().splitlines()
    events = {line.partition("=")[2] for line in found if line.startswith("SPARKCLUSTER_EVENT=")}
    assert events == {"dead", "wedge", "gave-up"}
    assert {"SPARKCLUSTER_CLUSTER=atlas", "SPARKCLUSTER_GROUP=default", "SPARKCLUSTER_NODE=alpha"} <= set(found)
    assert not any("TOKEN" in line for line in found)


def test_a_group_waits_for_another_clusters_start_on_its_nodes_and_for_available_memory(cluster):
    cluster.enable()
    cluster.beta.record(planned_bytes=1 << 60)
    lock = cluster.beta.start_lock("embed")
    cluster.boot()
    cluster.starts_nothing("embed is starting on beta")
    lock.close()
    cluster.starts_nothing("beta: its rank needs 1152921504.6 GB, but only ")
    cluster.beta.record(planned_bytes=1 << 20)
    cluster.serves()


def test_a_guard_holds_the_start_lock_of_every_node_while_it_starts_its_group(cluster):
    cluster.enable()
    cluster.control.touch()  # so that it does not answer
    cluster.boot()
    eventually(lambda: all(node.pids() for node in cluster.nodes))
    for node in cluster.nodes:
        assert start_lock.held_by({"state_dir": str(node.state), "cluster": "embed"}) == "atlas is starting"
    cluster.control.unlink()
    cluster.serves()
    eventually(lambda: not any(common.is_locked(str(node.state / "start.lock")) for node in cluster.nodes))


def test_an_operator_finds_a_guards_lease_on_every_node_and_takes_it_when_released(cluster):
    cluster.enable()
    cluster.control.touch()  # so that it starts, and does not answer
    cluster.boot()
    eventually(lambda: all(node.pids() for node in cluster.nodes))
    for node in cluster.nodes:
        lock, record, _ = common.lease_files({"state_dir": str(node.state), "cluster": "atlas"})
        assert common.is_locked(lock)
        found = common.read_json(record)
        assert (found["operator"], found["operation"], found["epoch"]) == (f"the guard on {node.name}", "restart", 3)
    cluster.control.unlink()
    cluster.serves()
    eventually(lambda: not any(common.is_locked(str(node.directory / "lease.lock")) for node in cluster.nodes))
    # Leases of guards do not count as an operator's.
    assert [own_rank.OwnRank(str(node.enabled)).ask("hello")["leases"] for node in cluster.nodes] == [0, 0]


def test_the_lease_on_a_peer_ends_with_the_heads_guard(cluster):
    cluster.enable()
    cluster.control.touch()
    cluster.boot()
    eventually(lambda: common.is_locked(str(cluster.beta.directory / "lease.lock")))
    cluster.alpha.guard.kill()
    eventually(lambda: not common.is_locked(str(cluster.beta.directory / "lease.lock")))


def test_a_disabled_guard_ends_and_leaves_its_ranks_running(cluster):
    cluster.enable()
    cluster.boot()
    cluster.serves()
    for node in cluster.nodes:
        request = {**node.lease(9), "steps": [{"do": "disable"}]}
        lock = common.try_lock(str(node.directory / "lease.lock"))
        assert agent.main(request, None) == {"results": [{}]}
        lock.close()
        assert node.guard.wait(60) == -signal.SIGTERM
        assert not node.enabled.exists()
        assert node.pids()


def dialled(cluster, token=TOKEN, name="beta"):
    """A connection to the guard of beta, from the address of alpha."""
    secret = group_guard.secret(token, name)
    return wire.dial(ADDRESSES["beta"], cluster.port, secret, ADDRESSES["alpha"], 5)


def peer_of(cluster, address):
    """The guard of beta, as seen by the guard of alpha."""
    return group_guard.Peer("beta", address, cluster.port, TOKEN, ADDRESSES["alpha"])


def listens(cluster):
    with contextlib.suppress(Failed):
        dialled(cluster).close()
        return True
    return False


def test_a_forged_hello_starts_nothing(cluster):
    """Without the token, or with a proof for another node; silent ones and garbage delay no other."""
    cluster.enable()
    cluster.beta.boot()
    eventually(lambda: listens(cluster))
    garbage = [socket.create_connection((ADDRESSES["beta"], cluster.port), 5) for _ in range(3)]
    garbage[0].sendall(json.dumps({"do": "take"}).encode() * 100)
    for wrong in ({"token": "00" * 32}, {"name": "alpha"}):
        with pytest.raises(Failed):
            dialled(cluster, **wrong)
    assert listens(cluster)
    for each in garbage:
        each.close()
    assert cluster.beta.pids() == []
    assert common.read_json(str(cluster.beta.directory / "lease.json"))["epoch"] == 3


def test_a_message_between_guards_cannot_be_replayed(cluster):
    cluster.enable()
    cluster.beta.boot()
    eventually(lambda: listens(cluster))
    with socket.create_server(("127.0.0.4", cluster.port)) as server:
        sent = []

        def relay():
            """A relay that forwards and records what alpha's guard sends."""
            with server.accept()[0] as caller, socket.create_connection((ADDRESSES["beta"], cluster.port), 5) as to:
                caller.sendall(to.recv(1 << 16))
                while data := caller.recv(1 << 16):
                    sent.append(data)
                    to.sendall(data)
                    caller.sendall(to.recv(1 << 16))

        thread = threading.Thread(target=relay)
        thread.start()
        peer = peer_of(cluster, "127.0.0.4")
        peer.ask("take")
        peer.close()
        thread.join()
    eventually(lambda: not common.is_locked(str(cluster.beta.directory / "lease.lock")))
    assert common.read_json(str(cluster.beta.directory / "lease.json"))["granted"] is False
    with socket.create_connection((ADDRESSES["beta"], cluster.port), 5, (ADDRESSES["alpha"], 0)) as again:
        again.recv(1 << 16)  # another nonce
        again.sendall(b"".join(sent))
        with contextlib.suppress(ConnectionResetError):
            assert again.recv(1 << 16) == b""
    assert common.read_json(str(cluster.beta.directory / "lease.json"))["granted"] is False


def test_only_the_holder_of_the_lease_starts_or_stops(cluster):
    cluster.enable()
    cluster.beta.boot()
    eventually(lambda: listens(cluster))
    peer, other = (peer_of(cluster, ADDRESSES["beta"]) for _ in range(2))
    for word in ("start", "stop"):
        with pytest.raises(Failed):
            peer.ask(word)
    (cluster.beta.enabled / shared.STOPPED_FILE).write_text("1")
    with pytest.raises(Failed, match="stopped by an operator"):
        peer.ask("take")
    (cluster.beta.enabled / shared.STOPPED_FILE).unlink()
    peer.ask("take")
    for word in ("take", "start"):
        with pytest.raises(Failed):
            other.ask(word)
    assert cluster.beta.pids() == []
    peer.close()
    other.close()


def report(**changes):
    return {"release": 1, "leases": 0, "ranks": {"a": "running"}, "why": None, "busy": False, **changes}


def test_a_node_with_a_reason_to_wait_precedes_a_silent_one():
    found = {"alpha": report(), "beta": report(why="ann is changing the cluster")}
    assert problem(found, {"gamma": "gamma: no answer"}) == "ann is changing the cluster"
    assert problem({"alpha": report()}, {"gamma": "gamma: no answer"}) == "gamma: no answer"


@pytest.mark.parametrize("what", ["release", "leases"])
def test_nothing_starts_if_the_nodes_have_different_releases(what):
    differ = {"alpha": report(**{what: 1}), "beta": report(**{what: 2})}
    assert "the nodes are out of sync (alpha: " in problem(differ, {})
