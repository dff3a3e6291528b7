"""What is read of ranks and engines on a node: secrets are redacted, and every wait has a limit."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import text

from sparkcluster.engines.vllm import ENGINE
from sparkcluster.facts.base import Unread
from sparkcluster.facts.running import Observation
from sparkcluster.node import engine_metrics, gpu, observe, vitals
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.readings import Readings

METRICS = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a{b}"} 120.0
vllm:generation_tokens_total{engine="1",model_name="a{b}"} 3.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.7e+03
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:odd{engine="0"} NaN
garbage line
"""
REQUEST: dict[str, Any] = {
    "cluster": "pair", "state_dir": "/state", "runtime": "docker", "interval_s": 3, "limit_s": 5,
    "head_lines": 100, "tail_lines": 10, "secrets_file": "secrets.env",
    "api_flags": dict(ENGINE.api_flags), "counters": dict(ENGINE.counters),
}  # fmt: skip


class Node(Machine):
    """A machine whose files, programs and Docker engine a test describes."""

    def __init__(self, root: str = "/nowhere", *, smi: Any = (0, "96, 24.30, 2405, 61\n"), docker: Any = None) -> None:
        super().__init__(root)
        self.smi, self.engine = smi, docker or {}

    def run(self, argv: list[str], limit_s: float = 3) -> tuple[int, str]:
        if isinstance(self.smi, Exception):
            raise self.smi
        return self.smi

    def docker(self, path: str) -> tuple[int, Any]:
        if isinstance(self.engine, Exception):
            raise self.engine
        return next((answer for start, answer in self.engine.items() if path.startswith(start)), (404, None))


def test_counters_are_summed_over_engines_and_old_names_are_supported():
    read = engine_metrics.metrics(METRICS, ENGINE.counters)
    assert read == {"generated": 123.0, "prompted": 1700.0, "running": 2.0, "waiting": 0.0, "kv_cache": 0.25}
    assert engine_metrics.metrics("", ENGINE.counters) == dict.fromkeys(read)


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        (["vllm", "serve", "m"], ("127.0.0.1", 8000)),
        (["vllm", "serve", "m", "--host", "0.0.0.0", "--port", "9000"], ("127.0.0.1", 9000)),
        (["vllm", "serve", "m", "--host=192.168.177.11", "--port=8001"], ("192.168.177.11", 8001)),
        (["vllm", "serve", "m", "--port"], ("127.0.0.1", 8000)),
    ],
)
def test_address_of_an_engine_from_its_command(engine, where):
    assert vitals.api(engine, ENGINE.api_flags) == where


def test_unsupported_gpu_values_are_none():
    assert gpu.query(Node(), vitals.SAMPLED)[0]["power_w"] == 24.3
    assert (
        gpu.query(Node(smi=(0, "[N/A], 4.1, 208, [Not Supported]\n")), vitals.SAMPLED)[0]["utilization_percent"] is None
    )
    with pytest.raises(Unreadable, match="nvidia-smi exit 6: No devices were found"):
        gpu.query(Node(smi=(6, "No devices were found\n")), vitals.SAMPLED)[0]


def test_traffic_distinguishes_rdma_and_sockets(tmp_path):
    port = tmp_path / "sys/class/infiniband/rocep1s0f0/ports/1/counters"
    port.mkdir(parents=True)
    (port / "port_xmit_data").write_text("250\n")
    (tmp_path / "sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0").mkdir(parents=True)
    statistics = tmp_path / "sys/class/net/enp1s0f0np0/statistics"
    statistics.mkdir(parents=True)
    (statistics / "tx_bytes").write_text("77\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 5\npswpin 3\npswpout 4\n")
    assert vitals.traffic(Node(str(tmp_path))) == {
        "rdma_bytes": {"rocep1s0f0": 1000},
        "socket_bytes": {"enp1s0f0np0": 77},
        "swapped_pages": 7,
    }


def test_secrets_and_serial_numbers_are_redacted(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/dgx-release").write_text('DGX_NAME="DGX Spark"\nDGX_SERIAL_NUMBER="1423025012345"\n')
    dmi = tmp_path / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "board_serial").write_text("PF4ABCDE\n")
    folder = tmp_path / "rank"
    folder.mkdir()
    (folder / "secrets.env").write_text("VLLM_API_KEY=open=sesame\nSHORT=abc\n")
    rank = {"rank_dir": str(folder)}
    secret = observe.texts_to_redact(Node(str(tmp_path)), [rank], "secrets.env")
    assert set(secret) == {"1423025012345", "PF4ABCDE", "open=sesame"}
    log = {"first": ["key open=sesame of 1423025012345", "abc"], "last": ["board PF4ABCDE"]}
    assert observe.redacted(log, secret) == {
        "first": ["key (removed) of (removed)", "abc"],
        "last": ["board (removed)"],
    }


def test_a_hanging_reader_affects_only_its_own_reading():
    readings = Readings(0.2)
    forever = threading.Event()
    readings.start("hangs", forever.wait)
    readings.start("fails", lambda: {}["nothing"])
    readings.start("reads", lambda: 7)
    began = time.monotonic()
    assert readings.value("hangs") == {"unread": "no answer within 0.2 s"}
    assert "KeyError" in readings.value("fails")["unread"]
    assert readings.value("reads") == 7
    assert readings.value("never") is None
    assert time.monotonic() - began < 10
    forever.set()


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
    """An engine whose counters move with every reading."""

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
            """Nothing."""

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
    }
    return {
        "/containers/json": (200, [{"Id": "c1", "Names": ["/pair-3-alpha"], "Labels": labels, "State": "running"}]),
        "/containers/c1/json": (200, {"State": state, "RestartCount": 2, "Path": "python3", "Args": ["/e.py"]}),
    }


def test_what_moves_is_read_twice_and_the_launcher_only_as_far_as_it_matters(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(observe, "container_log", lambda *_: ["first line"])
    monkeypatch.setattr(vitals, "gpu_inside", lambda _: "GPU 0: NVIDIA GB10")
    seen = Observation.model_validate(
        observe.observe(REQUEST, Node(docker=containers(tmp_path, engine)), lambda _: None)
    )
    assert isinstance(seen.ranks, tuple)
    rank = seen.ranks[0]
    assert (rank.name, rank.state, rank.exit_code, rank.restarts) == ("pair-3-alpha", "running", None, 2)
    assert rank.lines == ("first line",)
    assert "setup" not in rank.launcher
    assert rank.launcher["secrets"] == KEYED  # by which an `up` that goes on with these ranks records its key
    assert isinstance(seen.counters, tuple)
    assert seen.counters[0].generated < seen.counters[1].generated
    assert seen.health == 200
    assert seen.ray is None


def test_ranks_of_another_state_directory_are_another_clusters(tmp_path, engine):
    document = observe.observe(REQUEST, Node(docker=containers(tmp_path, engine, "/elsewhere")), lambda _: None)
    assert document["ranks"] == []


def test_of_a_long_log_the_first_and_the_last_lines_are_read(tmp_path):
    rank = {"runtime": "process", "rank_dir": str(tmp_path), "name": "r"}
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(500)))
    read = observe.log(Node(), rank, REQUEST)
    assert read == [f"line {number}" for number in (*range(100), *range(490, 500))]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('noise\n{"ray": {"192.168.177.11": true, "192.168.177.12": false}}\n', None),
        ('{"error": "ConnectionError: no GCS"}\n', "ConnectionError: no GCS"),
        ("Error response from daemon: no such container", "no such container"),
        ("", "no answer within"),
    ],
)
def test_ray_nodes_or_the_reason_why_not(output, expected, monkeypatch):
    monkeypatch.setattr(vitals, "_inside", lambda *_: (0, output))
    head = {"runtime": "docker", "name": "c", "python": "python3",
            "launcher": {"ray": {"address": "192.168.177.11:6379"}, "engine": ["vllm"]}}  # fmt: skip
    if expected is None:
        assert vitals.ray_nodes(head, 5) == {"192.168.177.11": True, "192.168.177.12": False}
        return
    with pytest.raises(Unreadable, match=expected):
        vitals.ray_nodes(head, 5)


def test_a_container_without_nvidia_smi_has_no_gpu_output(monkeypatch):
    monkeypatch.setattr(vitals, "_inside", lambda *_: (127, "exec failed"))
    with pytest.raises(Unreadable, match="no nvidia-smi"):
        vitals.gpu_inside("c")
    monkeypatch.setattr(vitals, "_inside", lambda *_: (0, "GPU 0: NVIDIA GB10 (UUID: GPU-6b1a0c55)\n"))
    assert vitals.gpu_inside("c") == "GPU 0: NVIDIA GB10"


@settings(max_examples=200, deadline=None)
@given(text())
def test_no_output_of_an_engine_raises(output):
    assert set(engine_metrics.metrics(output, ENGINE.counters)) == {
        "generated",
        "prompted",
        "running",
        "waiting",
        "kv_cache",
    }
    assert engine_metrics.metrics(f"vllm:generation_tokens_total{{{output}}} 3", ENGINE.counters) is not None
    assert vitals.api(["vllm", "serve", "m", "--host", output], ENGINE.api_flags)[1] == 8000
    with contextlib.suppress(Unreadable):
        gpu.query(Node(smi=(0, output)), vitals.SAMPLED)[0]
