"""A worker whose newest record lies about the group's API: the key is sent where the head says, or not at all.

The ask program runs as on a node, and both APIs are real listeners.
"""

from __future__ import annotations

import http.server
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time

import pytest

from sparkcluster.facts.collect import Collected
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import command
from sparkcluster.inspect import ask as asking
from sparkcluster.inspect.cluster import assess, see
from sparkcluster.inspect.doctor import doctor
from sparkcluster.inspect.observing import begin_observing, observed, running_heads
from sparkcluster.inspect.releases import history
from sparkcluster.inspect.status import status
from sparkcluster.release.serving import survey
from sparkcluster.release.states import Action, Desired, Options, State
from sparkcluster.report import Report

ANSWER = b'data: {"choices": [{"delta": {"content": "204"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


class Api(http.server.ThreadingHTTPServer):
    """Answers every request, and records its path and key."""

    def __init__(self, address="127.0.0.1"):
        self.keys = keys = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                keys.append((self.path, self.headers.get("Authorization")))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(ANSWER)

            def do_GET(self):
                keys.append((self.path, self.headers.get("Authorization")))
                self.send_error(404)

            def log_message(self, *_):
                pass

        super().__init__((address, 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def api():
    made = Api()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def evil():
    made = Api()
    yield made
    made.shutdown()
    made.server_close()


def asked(request):
    """The ask program as a process; it exits when its input closes."""
    argv, stdin = command("ask", request)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(stdin)
        process.stdin.flush()
        lines = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    return lines


@pytest.fixture
def serving(world, api, tmp_path):
    """Release 3 serves on alpha and beta, with a key in alpha's file."""
    one = world(
        api={"port": api.server_port, "key": {"env": "KEY"}},
        state_dir=str(tmp_path),
        playbook={"verify": {"pause_s": 0}},
    )
    for name in one.facts:
        one.change(name, state_dir=str(tmp_path))
    plan = one.plan(3)
    one.run(plan).record(plan, 3)
    file = tmp_path / "clusters/atlas/ranks/sparkcluster-atlas-3-alpha/secrets.env"
    file.parent.mkdir(parents=True)
    file.touch(mode=0o600)
    file.write_text("VLLM_API_KEY=sk-of-the-cluster\n")
    return one


def fleet_of(one):
    hosts = {}
    for name, facts in one.facts.items():
        hosts[name] = FakeHost(name).program("probe", {**facts.model_dump(mode="json"), "clock_s": time.time()})
        hosts[name].program("ask", asked).program("observe", {"ranks": [], "gpus": [], "traffic": []})
        hosts[name].program("releases", {"records": []})
    return Fleet(hosts)


def moved(record, port):
    """The API on another port of the head."""
    engine = record["plan"]["nodes"]["alpha"]["containers"][0]["launcher"]["engine"]
    engine[engine.index("--port") + 1] = str(port)


def claimed(record, port):
    """The worker claims to be the head, with its own API, and runs another plan."""
    moved(record, port)
    nodes = record["plan"]["nodes"]
    nodes["alpha"]["role"], nodes["beta"]["role"] = "worker", "head"
    nodes["beta"]["containers"][0]["launcher"] = nodes["alpha"]["containers"][0]["launcher"]
    nodes["beta"]["secrets"] = nodes["alpha"]["secrets"]
    nodes["beta"]["env"]["A"] = "2"


def misread(record, port):
    """The key is an arbitrary file of the head."""
    moved(record, port)
    record["plan"]["nodes"]["alpha"]["containers"][0]["env_file"] = "/proc/self/environ"


@pytest.fixture(params=[claimed, misread])
def forged(request, serving, evil):
    """The cluster, where beta has a forged newer record."""
    document = json.loads(serving.facts["beta"].release.model_dump_json())["record"]
    request.param(document, evil.server_port)
    newest = 10**9 - 1  # the highest that there is
    fact = {"number": newest, "plan_hash": "f" * 64, "record": {**document, "number": newest}}
    assert isinstance(serving.change("beta", release=fact).facts["beta"].release, ReleaseFact)
    return serving


def test_a_workers_record_changes_neither_key_nor_endpoint(forged, api, evil):
    fleet = fleet_of(forged)
    document = status(fleet, see(fleet, forged.spec))
    assert (document["state"], document["release"]) == ("serving", 3)
    assert document["endpoint"] == f"http://127.0.0.1:{api.server_port}/v1"
    assert [group["nodes"] for group in document["groups"]] == [["alpha", "beta"]]
    reply = asking.Conversation(fleet, forged.spec, group=None, max_tokens=8).ask("Hello", lambda *_: None)
    assert reply.text == "204"
    found = doctor(fleet, forged.spec, 20.0, Report())
    assert [(name, reply.head, reply.text) for name, reply in found.running.replies.items()] == [
        ("default", "alpha", "204")
    ]
    assert history(fleet, forged.spec)["releases"] == []
    assert {key for path, key in api.keys if path.endswith("completions")} == {"Bearer sk-of-the-cluster"}
    assert evil.keys == []


def test_up_does_not_trust_a_worker_that_reports_another_running_plan(forged, api, evil):
    view = assess(forged.spec, Collected(forged.facts, {}), forged.facts)
    groups = survey(fleet_of(forged), view, Desired(forged.spec, Options()), Report(), {})
    assert {name: (group.state, group.action) for name, group in groups.items()} == {
        "default": (State.SERVING, Action.KEEP)
    }
    assert (groups["default"].planned, groups["default"].drift, view.newest.number) == ((), (), 3)
    assert len(api.keys) > 0
    assert evil.keys == []


def test_a_worker_that_claims_to_be_the_head_of_a_start_is_not_trusted(serving, api, evil):
    """Without a record the head is the node of rank 0, not a node that claims so in an answer; none gets the key."""
    for name in serving.facts:
        serving.change(name, release=None)
    other = serving.plan(3)
    serving.run(other, "beta", **{"io.sparkcluster.rank": "0"})
    fleet = fleet_of(serving)
    for name, port in (("alpha", api.server_port), ("beta", evil.server_port)):
        launcher = {"role": "head", "group": "default", "engine": ["vllm", "serve", "m", "--port", str(port)]}
        (rank, *_) = serving.facts[name].model_dump()["ranks"]
        fleet.hosts[name].program(
            "observe", {"ranks": [{**rank, "launcher": launcher, "log": []}], "gpus": [], "traffic": []}
        )
    seen = observed(begin_observing(fleet, serving.spec, serving.facts, 20.0), 20.0)
    assert [node for node, _ in running_heads(serving.spec, serving.facts, seen)] == ["alpha"]
    assert doctor(fleet, serving.spec, 20.0, Report()).running.replies == {}
    assert not any(path.endswith("completions") for path, _ in api.keys)
    assert evil.keys == []


@pytest.mark.parametrize("harm", ["link", "directory", "readable"])
def test_the_key_is_read_from_a_private_file_in_the_directory_of_the_rank(serving, api, tmp_path, harm):
    folder = tmp_path / "clusters/atlas/ranks/sparkcluster-atlas-3-alpha"
    file = folder / "secrets.env"
    other = tmp_path / "other"
    other.mkdir()
    if harm == "link":
        file.rename(other / "secrets.env")
        file.symlink_to(other / "secrets.env")
    elif harm == "directory":
        file.rename(other / "secrets.env")
        folder.rmdir()
        folder.symlink_to(other)
    else:
        file.chmod(0o644)
    document = status(fleet_of(serving), see(fleet_of(serving), serving.spec))
    assert document["state"] == "degraded"
    assert "cannot read the API key" in document["groups"][0]["why"]
    assert str(folder) in document["groups"][0]["why"]
    assert all(key is None for _, key in api.keys)


NETWORK = """
set -e
ip link set lo up
ip link add here type veth peer name there
unshare -n sh -c 'ip link set lo up; echo ready; exec sleep 60' > ready &
other=$!
trap 'kill $other' EXIT
until [ -s ready ]; do sleep 0.05; done
ip link set there netns $other
ip addr add 10.9.8.1/24 dev here; ip link set here up
nsenter -t $other -n ip addr add 10.9.8.2/24 dev there; nsenter -t $other -n ip link set there up
nsenter -t $other -n {python} -c '
import socket
server = socket.create_server(("10.9.8.2", 8000)); server.settimeout(20); print("listening", flush=True)
while True:
    peer, _ = server.accept(); peer.settimeout(5); open("got", "ab").write(peer.recv(4096) or b"nothing")
' > listening 2>/dev/null &
listener=$!
trap 'kill $other $listener' EXIT
until [ -s listening ]; do sleep 0.05; done
mkfifo input
(cat request; exec sleep 60) > input &
feeder=$!
trap 'kill $other $listener $feeder' EXIT
{ask} < input
{python} -c 'import socket; socket.create_connection(("10.9.8.2", 8000), 5).sendall(b"reached")'
until [ -s got ]; do sleep 0.05; done
"""


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("ip") is None, reason="needs root and ip for a network namespace")
@pytest.mark.parametrize("host", ["10.9.8.2", "there.example@10.9.8.2"])
def test_an_address_of_another_machine_gets_no_connection_and_no_key(tmp_path, host):
    """The other machine is a network namespace with a listener that the node reaches; a name may resolve differently next time."""
    key = tmp_path / "rank" / "secrets.env"
    key.parent.mkdir()
    key.touch(mode=0o600)
    key.write_text("KEY=sk-secret\n")
    request = {
        "endpoint": f"http://{host}:8000/v1", "model": "m", "prompt": "x", "first_s": 5, "token_s": 5, "key_file": str(key),
        "key_name": "KEY", "counters": {"generated": ["x"]},
    }  # fmt: skip
    argv, stdin = command("ask", request)
    (tmp_path / "request").write_bytes(stdin)
    words = shlex.join(argv)
    script = NETWORK.replace("{python}", sys.executable).replace("{ask}", words)
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error["kind"] == "lost"
    assert error["message"].endswith("10.9.8.2:8000: Cannot assign requested address")
    assert (tmp_path / "got").read_bytes() == b"reached"
