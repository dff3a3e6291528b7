"""The stub engine behaves as vLLM and Ray do where sparkcluster observes them: processes, ports, log lines, HTTP, deaths.

Two loopback addresses imitate two Sparks; STUB_IFACES gives each its interfaces.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.engines.vllm import ENGINE
from sparkcluster.lab.engine.stub import BIN
from sparkcluster.lab.engine.tiny_llama import write_tiny_model
from sparkcluster.node import engine_api

LIMIT_S = 60.0
HEAD, WORKER = "127.0.0.1", "127.0.0.2"


def free_port() -> int:
    """A port that is free on every address, and outside the range of outgoing connections."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("0.0.0.0", random.randint(15_000, 32_000)))  # below ip_local_port_range
            return int(s.getsockname()[1])


def until(done: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = done()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s} s: {what}")


def descendants(pid: int) -> dict[int, str]:
    """{pid: command line} of the running processes below ``pid``."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: dict[int, str] = {}
    for process in parents:
        above = process
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and process != pid:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ")
                found[process] = line.decode().strip()
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Process:
    """A stub command with its log."""

    def __init__(self, argv: list[str], env: dict[str, str], log: Path) -> None:
        self.log_path = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [str(BIN / argv[0]), *argv[1:]], env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def wait(self) -> int:
        return self.popen.wait(LIMIT_S)

    def child(self, title: str) -> int:
        return until(lambda: next((p for p, c in descendants(self.popen.pid).items() if c.startswith(title)), 0), title)

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


class Stage:
    """Everything that a test starts; ended with the test."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.model = write_tiny_model(tmp / "model")
        self.port = free_port()
        self.gcs_port = free_port()
        self.processes: list[Process] = []

    def env(self, address: str = HEAD, **more: str) -> dict[str, str]:
        name = {HEAD: "enA", WORKER: "enB"}[address]
        base = {
            "PATH": f"{BIN}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.tmp / address),
            "RAY_TMPDIR": str(self.tmp / address / "ray"),
            "VLLM_HOST_IP": address,
            "STUB_IFACES": f"{name}={address}",
            "GLOO_SOCKET_IFNAME": name,
            "NCCL_SOCKET_IFNAME": name,
        }
        return {**base, **more}

    def start(self, *argv: str, env: dict[str, str]) -> Process:
        self.processes.append(Process(list(argv), env, self.tmp / f"{len(self.processes)}.log"))
        return self.processes[-1]

    def serve(self, *flags: str, **env: str) -> Process:
        address = ("--host", HEAD, "--port", str(self.port), "--served-model-name", "m")
        return self.start("vllm", "serve", str(self.model), *address, *flags, env=self.env(**env))

    def ready(self, process: Process) -> Process:
        def up() -> bool:
            assert process.popen.poll() is None, process.log
            return "Application startup complete." in process.log

        until(up, "the server is up")
        return process

    def ray(self) -> Process:
        """Head and worker, both blocking and both registered; returns the worker."""
        head = f"{HEAD}:{self.gcs_port}"
        for address, words in (
            (HEAD, ("--head", f"--port={self.gcs_port}")),
            (WORKER, (f"--address={head}",)),
        ):
            started = self.start(
                "ray", "start", *words, f"--node-ip-address={address}", "--block", env=self.env(address)
            )
            until(lambda started=started: "Ray runtime started" in started.log, started.log)
        return self.processes[-1]

    def http(self, method: str, path: str, body: Any = None, *, key: str = "", timeout_s: float = LIMIT_S) -> Any:
        """Status and document of an answer."""
        connection = http.client.HTTPConnection(HEAD, self.port, timeout=timeout_s)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None

    def complete(self, **more: Any) -> Any:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        return self.http("POST", "/v1/chat/completions", body, **more)

    def text(self) -> str:
        status, answer = self.complete()
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for process in reversed(stage.processes):
        process.stop()


def test_a_server_requires_its_key_and_leaves_no_process(stage: Stage) -> None:
    process = stage.ready(stage.serve("--api-key", "k"))
    assert stage.http("GET", "/health")[0] == 200
    assert stage.http("GET", "/v1/models")[0] == 401
    assert stage.http("GET", "/v1/models", key="k")[1]["data"][0]["id"] == "m"
    assert stage.complete(key="k")[1]["usage"]["completion_tokens"] == 8
    below = descendants(process.popen.pid)
    assert any(c.startswith("VLLM::EngineCore") for c in below.values())
    process.popen.terminate()
    assert process.wait() == 0
    until(lambda: not any(map(alive, below)), "the engine core is gone")


def test_the_server_answers_to_each_of_its_names_as_to_the_first(stage: Stage) -> None:
    stage.ready(stage.serve("--served-model-name", "m", "other"))
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    for name in ("m", "other"):
        status, answer = stage.http("POST", "/v1/chat/completions", {**body, "model": name})
        assert (status, answer["model"]) == (200, "m")
    assert stage.http("POST", "/v1/chat/completions", {**body, "model": "n"})[0] == 404


def test_the_server_counts_as_the_engine_does_and_honours_min_tokens(stage: Stage) -> None:
    stage.ready(stage.serve())
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 400, "min_tokens": 300}
    answer = stage.http("POST", "/v1/chat/completions", body)[1]
    assert answer["usage"]["completion_tokens"] == 300
    with urllib.request.urlopen(f"http://{HEAD}:{stage.port}/metrics") as page:
        text = page.read().decode()
    read = engine_api.metrics(text, {**ENGINE.counters, **ENGINE.statistics})
    assert (read["hits"], read["queries"], read["preemptions"]) == (0, answer["usage"]["prompt_tokens"], 0)
    ttft = read["ttft"]
    assert (ttft["2560.0"], ttft["+Inf"], len(ttft)) == (1, 1, 23)


@pytest.mark.parametrize(
    ("flags", "fault", "code", "line"),
    [
        (["--swap-spice", "4"], "", 2, "unrecognized arguments: --swap-spice 4"),
        ([], "gremlins", 1, "unknown fault 'gremlins'"),
        ([], "oom", 1, "CUDA out of memory"),
    ],
)
def test_the_cause_of_a_failed_start_is_in_its_log(
    stage: Stage, flags: list[str], fault: str, code: int, line: str
) -> None:
    process = stage.serve(*flags, STUB_FAULT=fault)
    assert process.wait() == code
    assert line in process.log


def test_a_killed_engine_core_leaves_a_server_that_reports_healthy(stage: Stage) -> None:
    process = stage.ready(stage.serve())
    os.kill(process.child("VLLM::EngineCore"), signal.SIGKILL)
    until(lambda: stage.complete()[0] == 500, "completions fail")
    assert stage.http("GET", "/health")[0] == 200
    assert process.popen.poll() is None


def test_two_nodes_answer_as_one_and_exit_with_0_after_a_rank_is_killed(stage: Stage) -> None:
    stage.ready(stage.serve())
    alone = stage.text()
    stage.processes[0].stop()
    worker = stage.ray()
    process = stage.ready(
        stage.serve("-tp", "2", "--distributed-executor-backend", "ray", RAY_ADDRESS=f"{HEAD}:{stage.gcs_port}")
    )
    assert stage.text() == alone
    os.kill(worker.child("VLLM::Worker_TP1"), signal.SIGKILL)
    assert process.wait() == 0
    assert "EngineDeadError" in process.log


def test_the_control_file_hangs_and_heals_a_running_server(stage: Stage) -> None:
    control = stage.tmp / "control"
    stage.ready(stage.serve(STUB_CONTROL=str(control)))
    control.write_text("hang-serve\n")
    with pytest.raises(TimeoutError):
        stage.complete(timeout_s=0.4)
    assert stage.http("GET", "/health")[0] == 200
    control.write_text("hang-serve\nclear\n")
    assert stage.text()
