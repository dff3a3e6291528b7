"""Observations of ranks and engines on a node: secrets are redacted, and every wait has a limit."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sparkcluster.engines.vllm import ENGINE
from sparkcluster.facts.base import Unread
from sparkcluster.facts.running import Observation
from sparkcluster.node import engine_api, observe, ranks, shared
from sparkcluster.node.machine import Machine, Unreadable

METRICS = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a{b}"} 120.0
vllm:generation_tokens_total{engine="1",model_name="a{b}"} 3.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.7e+03
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:odd{engine="0"} NaN
garbage line
"""
REQUEST: dict[str, Any] = {
    "cluster": "pair", "state_dir": "/state", "runtime": "docker", "interval_s": 3, "limit_s": 5,
    "head_lines": 100, "tail_lines": 10, "api_key": "ENGINE_KEY",
    "api_flags": dict(ENGINE.api_flags), "counters": dict(ENGINE.counters),
}  # fmt: skip


class Node(Machine):
    """A machine with files, programs and a Docker engine that a test describes."""

    def __init__(self, root: str = "/nowhere", *, smi: Any = (0, "96, 24.30, 2405\n"), docker: Any = None) -> None:
        super().__init__(root)
        self.smi, self.engine = smi, docker or {}

    def run(self, argv: list[str], limit_s: float = 3) -> tuple[int, str]:
        if isinstance(self.smi, Exception):
            raise self.smi
        return self.smi

    def docker_document(self, path: str, kind: type = dict) -> Any:
        if isinstance(self.engine, Exception):
            raise self.engine
        return next((answer for start, answer in self.engine.items() if path.startswith(start)), None)


def test_counters_are_summed_over_engines():
    read = engine_api.metrics(METRICS, ENGINE.counters)
    assert read == {"generated": 123.0, "prompted": 1700.0, "running": 2.0, "waiting": 0.0, "kv_cache": 0.25}
    assert engine_api.metrics("", ENGINE.counters) == dict.fromkeys(read)


def test_secrets_are_redacted(tmp_path):
    (tmp_path / "secrets.env").write_text("VLLM_API_KEY=open=sesame\nSHORT=abc\n")
    (tmp_path / "log").write_text("key open=sesame\nabc\n")
    rank = {"rank_dir": str(tmp_path), "name": "r"}
    assert observe.log(Node(), rank, {**REQUEST, "runtime": "process"}) == ["key (removed)", "abc"]


def test_the_gpu_is_read_while_docker_does_not_answer():
    document = observe.observe(
        REQUEST, Node(docker=Unreadable("permission denied: /var/run/docker.sock")), lambda _: None
    )
    seen = Observation.model_validate(document)
    assert isinstance(seen.ranks, Unread)
    assert isinstance(seen.gpus, tuple)
    assert [gpu.utilization_percent for gpu in seen.gpus] == [96.0, 96.0]
    assert (seen.counters, seen.health, seen.ray) == (None, None, None)


@pytest.fixture
def engine():
    """An engine whose counters change with every reading."""

    class Handler(BaseHTTPRequestHandler):
        made = 0

        def do_GET(self) -> None:
            Handler.made += 5
            body = f"vllm:generation_tokens_total {Handler.made}\n".encode() if self.path == "/metrics" else b""
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


KEYED = {"salt": "5a", "hashes": {"VLLM_API_KEY": "c0ffee"}}


def containers(tmp_path, port: int, state_dir: str = "/state") -> dict[str, Any]:
    folder = tmp_path / "rank"
    folder.mkdir(exist_ok=True)
    launcher = {"role": "head", "executor": "native", "members": ["192.168.177.11"], "rank": 0, "group": "default",
                "engine": ["vllm", "serve", "m", "--port", str(port)], "setup": ["export SECRET=1"],
                "secrets": KEYED}  # fmt: skip
    (folder / "launcher.json").write_text(json.dumps(launcher))
    labels = {"io.sparkcluster.cluster": "pair", "io.sparkcluster.state_dir": state_dir,
              "io.sparkcluster.rank_dir": str(folder)}  # fmt: skip
    state = {
        "Status": "running",
        "Running": True,
        "ExitCode": 0,
        "OOMKilled": False,
        "StartedAt": "2026-11-21T06:00:00Z",
        "FinishedAt": "0001-01-01T00:00:00Z",
        "Pid": 4711,
        "Error": "",
    }
    document = {"Name": "/pair-3-alpha", "Image": "sha256:aa", "Config": {"Labels": labels}, "State": state}
    return {
        "/containers/json": [{"Id": "c1"}],
        "/containers/c1/json": {**document, "RestartCount": 2, "Path": "python3", "Args": ["/e.py"]},
    }


def test_a_container_that_cannot_be_inspected_does_not_hide_others():
    listed = [
        {"Id": name, "Names": ["/" + name], "Labels": {"a": "b"}, "ImageID": "sha256:aa", "State": state}
        for name, state in (("broken", "dead"), ("whole", "running"))
    ]
    state = {"Status": "running", "ExitCode": 0, "Pid": 1, "OOMKilled": False, "Error": ""}
    state |= {"StartedAt": "2026-11-21T03:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"}
    whole = {"Name": "/whole", "Image": "sha256:aa", "Config": {"Labels": {}}, "State": state}
    whole |= {"RestartCount": 0, "Path": "python3", "Args": []}

    class Broken(Node):
        def docker_document(self, path: str, kind: type = dict) -> Any:
            if "broken" in path:
                raise Unreadable("the Docker engine answers 500 to it")
            return super().docker_document(path, kind)

    node = Broken(docker={"/containers/json": listed, "/containers/whole/json": whole})
    assert [(rank["name"], rank["state"]) for rank in ranks.containers(node, "a")] == [
        ("broken", "dead"),
        ("whole", "running"),
    ]


def test_a_victim_without_a_stored_log_has_a_reason(tmp_path):
    document = containers(tmp_path, 1)["/containers/c1/json"]
    document["State"] |= {"Status": "exited", "ExitCode": shared.VICTIM, "Pid": 0}
    rank = ranks.container(Node(docker={"/containers/c1/json": document}), "c1")
    assert (rank["exit_code"], rank["error"]) == (shared.VICTIM, "killed to protect the machine")


def test_counters_are_read_twice_and_the_launchers_log_only_as_far_as_needed(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(observe, "container_log", lambda *_: ["first line"])
    monkeypatch.setattr(observe, "gpu_inside", lambda _: "GPU 0: NVIDIA GB10")
    seen = Observation.model_validate(
        observe.observe(REQUEST, Node(docker=containers(tmp_path, engine)), lambda _: None)
    )
    assert isinstance(seen.ranks, tuple)
    rank = seen.ranks[0]
    assert (rank.name, rank.state, rank.exit_code, rank.restarts) == ("pair-3-alpha", "running", None, 2)
    assert rank.lines == ("first line",)
    assert "setup" not in rank.launcher
    assert rank.launcher["secrets"] == KEYED  # with which an `up` that continues with these ranks records its key
    assert isinstance(seen.counters, tuple)
    assert seen.counters[0].generated < seen.counters[1].generated
    assert seen.health == 200
    assert seen.ray is None


def test_ranks_of_another_state_directory_belong_to_another_cluster(tmp_path, engine):
    document = observe.observe(REQUEST, Node(docker=containers(tmp_path, engine, "/elsewhere")), lambda _: None)
    assert document["ranks"] == []


def test_the_first_and_last_lines_of_a_long_log_are_read(tmp_path):
    rank = {"rank_dir": str(tmp_path), "name": "r"}
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(500)))
    read = observe.log(Node(), rank, {**REQUEST, "runtime": "process"})
    assert read == [f"line {number}" for number in (*range(100), *range(490, 500))]
