"""One address for all models: requested models are loaded; idle ones, or ones that must free memory, are unloaded. Stub engine.

The tests share a cluster; each continues in the state that the previous one left. ``base`` serves on both Sparks and
``embed`` on the first; the second has memory for either ``coder`` or ``writer``.
"""

from __future__ import annotations

import time

import pytest

from tests.lab.gateway import Asking, Gateway, backends, running
from tests.lab.test_serving import until

KEYS = {"ALL_KEY": "kEy-of-all-models", "EMBED_KEY": "kEy-of-one-model"}
CONTROL = "/tmp/stub-control"
STREAMS = """
import json, re, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor

def text(url, number):
    messages = [{"role": "user", "content": "tell me of %d" % number}]
    body = {"model": "base", "messages": messages, "max_tokens": 100, "ignore_eos": True, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[1]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as stream:
        return re.sub(rb'"(id|created)": [^,]+,', b"", stream.read())

with ThreadPoolExecutor(64) as pool:
    direct, through = (list(pool.map(lambda number: text(url, number), range(64))) for url in sys.argv[2:])
print(direct == through, len(set(through)), min(map(len, through)))
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(2)


@pytest.fixture(scope="module")
def inventory(shared_lab, module_variant):
    first, second = (spark.name for spark in shared_lab.sparks)

    def model(served_name, share, **more):
        env = {"STUB_CONTROL": CONTROL, **more.pop("env", {})}
        args = {"gpu-memory-utilization": share, **more.pop("args", {})}
        return {"playbook": {"served_name": served_name, "args": args, "env": env, "verify": {"pause_s": 0}}, **more}

    groups = [{"name": name, "nodes": [name]} for name in (first, second)]
    models = [
        model("base", 0.1, groups=groups, aliases=["gpt"]),
        model("embed", 0.1, name="embed", nodes=[first], args={"runner": "pooling"}),
        model("coder", 0.5, name="coder", nodes=[second], on_demand={"idle_s": 10}),
        model("writer", 0.4, name="writer", nodes=[second], on_demand={}, env={"STUB_FAULT": "slow-start=3"}),
    ]
    keys = {"embedder": {"env": "EMBED_KEY", "models": ["embed"]}}
    return module_variant(shared_lab, models=models, gateway={"keys": keys}, api={"key": {"env": "ALL_KEY"}})


@pytest.fixture(scope="module")
def run(inventory, module_cli):
    """``run(command, …)``: the document of a command on the inventory, which must succeed."""

    def do(command, *words):
        return module_cli(command, inventory, *words, "--json", env=KEYS).ok().json

    return do


@pytest.fixture(scope="module")
def gateway(shared_lab, run, clean):
    clean(shared_lab)
    run("up")
    yield Gateway(shared_lab.sparks[0].host, KEYS["ALL_KEY"])
    clean(shared_lab)


@pytest.fixture(scope="module")
def first(shared_lab):
    return shared_lab.sparks[0]


@pytest.fixture(scope="module")
def second(shared_lab):
    return shared_lab.sparks[1]


def test_names_aliases_and_auto_reach_their_model_with_a_key_that_may_use_it(gateway, shared_lab, second):
    for name in ("base", "gpt", "auto"):
        assert gateway.chat(name).json["model"] == "base"
    assert gateway.chat("base", header="x-api-key").status == 200
    embeddings = {"model": "embed", "input": "hello"}
    for key in (None, KEYS["EMBED_KEY"]):
        assert gateway.send("/v1/embeddings", embeddings, key=key).json["model"] == "embed"

    refused = [gateway.chat("base", key=key).status for key in ("", "another", KEYS["EMBED_KEY"])]
    assert (refused, gateway.chat("nobody").status) == ([401, 401, 404], 404)
    assert gateway.send("/collective_rpc", {}).status == 404

    states = {name: each.get("state") for name, each in gateway.models().items()}
    serve = {"base": "ready", "gpt": "ready", "embed": "ready", "auto": None}
    assert states == {**serve, "coder": "stopped", "writer": "stopped"}
    assert running(shared_lab, second).keys() == {"base"}


def test_64_concurrent_streams_equal_the_engines_streams_byte_for_byte(gateway, shared_lab, first):
    direct = backends(shared_lab)["base"][0]
    argv = ["python3", "-c", STREAMS, KEYS["ALL_KEY"], direct, f"http://{gateway.host}:{gateway.port}"]
    equal, different, least = first.run(argv, timeout_s=150).stdout.split()
    assert (equal, different) == ("True", "64")
    assert int(least) > 100 * 100


def test_a_streamed_request_loads_the_model_and_gets_comments_during_the_load(gateway, shared_lab, second):
    answer = Asking(gateway, "writer", stream=True)
    waits = Asking(gateway, "writer")
    until(lambda: gateway.state("writer") == "starting")
    assert gateway.chat("base").status == 200
    stream = answer.answer()
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
    assert len(stream.comments) >= 2
    assert all(": loading" in comment for _, comment in stream.comments)
    assert stream.comments[0][0] < 2
    assert {event["model"] for event in stream.events} == {"writer"}
    assert stream.lines[-2][1] == "data: [DONE]"
    assert waits.answer().json["model"] == "writer"
    assert gateway.chat("auto").json["model"] == "writer"
    assert running(shared_lab, second).keys() == {"base", "writer"}


def test_running_models_survive_a_kill_of_the_gateway_and_all_guards(gateway, shared_lab, first, second):
    before = running(shared_lab, second)
    for spark, program in (
        (first, "gateway/[g]ateway.py"),
        (first, "[e]nabled/guard.py"),
        (second, "[e]nabled/guard.py"),
    ):
        spark.run(["pkill", "-KILL", "-f", program])

    def answers():
        try:
            return gateway.chat("writer").status == 200 and gateway.state("writer") == "ready"
        except OSError:
            return False

    until(answers)
    assert running(shared_lab, second) == before


def test_an_unload_waits_for_requests_in_flight(gateway, shared_lab, second, run):
    container = running(shared_lab, second)["writer"]
    second.run(["docker", "exec", container, "sh", "-c", f"echo slow=5 > {CONTROL}"])
    stream = Asking(gateway, "writer", stream=True, max_tokens=30, ignore_eos=True)
    time.sleep(1)
    run("unload", "writer")
    assert gateway.state("writer") == "draining"
    answer = stream.answer()
    assert answer.lines[-2][1] == "data: [DONE]"
    assert len([event for event in answer.events if event["choices"][0]["delta"].get("content")]) == 30
    until(lambda: "writer" not in running(shared_lab, second))


def test_an_engine_that_dies_during_a_load_ends_the_wait_with_the_reason(gateway, shared_lab, second, run):
    stream = Asking(gateway, "writer", stream=True)
    container = until(lambda: running(shared_lab, second).get("writer"))
    second.run(["docker", "kill", container])
    (error,) = stream.answer().events
    assert "error" in error
    refused = gateway.chat("writer")
    assert (refused.status, refused.json["error"]["message"]) == (503, error["error"]["message"])
    assert int(refused.headers["retry-after"]) > 0
    assert "loaded: base" in refused.json["error"]["message"]
    assert gateway.state("writer") == "failed"
    assert gateway.chat("base").status == 200


@pytest.mark.full
def test_a_manually_loaded_model_is_unloaded_when_idle(gateway, shared_lab, second, run):
    run("load", "coder")
    until(lambda: gateway.state("coder") == "ready")
    until(lambda: "coder" not in running(shared_lab, second), limit_s=60)
    until(lambda: gateway.state("coder") == "stopped")


@pytest.mark.full
def test_if_only_one_of_two_models_fits_the_idle_one_is_unloaded_after_a_minute(gateway, shared_lab, second, run):
    run("load", "writer")
    until(lambda: gateway.state("writer") == "ready")
    asks, seen = Asking(gateway, "coder"), []
    while asks.is_alive():
        seen.append(running(shared_lab, second).keys() & {"coder", "writer"})
        assert gateway.chat("base").status == 200
        time.sleep(0.5)
    assert asks.answer().json["model"] == "coder"
    assert seen[0] == {"writer"}
    assert {"coder", "writer"} not in seen
    assert (gateway.state("coder"), gateway.state("writer")) == ("ready", "stopped")


@pytest.mark.full
def test_a_lost_node_stops_only_the_models_on_it(gateway, shared_lab, second, run):
    second.kill()
    for _ in range(4):
        assert gateway.chat("base").json["model"] == "base"
    until(lambda: gateway.state("coder") == "unreachable")
    refused = gateway.chat("coder")
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    second.boot()
    second.wait()
    until(lambda: gateway.state("coder") == "stopped")
    assert gateway.chat("coder").json["model"] == "coder"


def test_down_removes_all_models_their_guards_and_the_gateway(gateway, shared_lab, run, ranks):
    run("down")
    assert not any(ranks(shared_lab).values())
    with pytest.raises(ConnectionRefusedError):
        gateway.send("/health")
