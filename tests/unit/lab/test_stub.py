"""The stub engine behaves as vLLM and Ray do where sparkcluster looks: processes, ports, log lines, HTTP, deaths.

Two Sparks are played by two loopback addresses; STUB_IFACES gives each its interfaces.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.lab.engine.stub import BIN, SITE

LIMIT_S = 15.0
HEAD, WORKER = "127.0.0.1", "127.0.0.2"


def free_port() -> int:
    """A port that is free on every address, and that no outgoing connection takes before it is used."""
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


def write_model(directory: Path, fill: int = 1) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024})
    )
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for number, name in enumerate(shards):
        header = json.dumps({f"w{number}": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
        (directory / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes([fill] * 8))
    index = {"weight_map": {f"w{n}": name for n, name in enumerate(shards)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def descendants(pid: int) -> dict[int, str]:
    """{pid: command line} of the living processes below ``pid``."""
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

    def wait(self, limit_s: float = LIMIT_S) -> int:
        return self.popen.wait(limit_s)

    def child(self, title: str) -> int:
        return until(lambda: next((p for p, c in descendants(self.popen.pid).items() if c.startswith(title)), 0), title)

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


class Stage:
    """Everything one test starts, ended with it."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.model = write_model(tmp / "model")
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
            "STUB_IFACES": f"{name}={address}/24,wifi={address.replace('127.0.0', '127.0.9')}/24",
            "GLOO_SOCKET_IFNAME": name,
            "NCCL_SOCKET_IFNAME": name,
            "STUB_RENDEZVOUS_S": "10",
        }
        return {**base, **more}

    def start(self, *argv: str, env: dict[str, str] | None = None) -> Process:
        log = self.tmp / f"{len(self.processes)}.log"
        process = Process(list(argv), env if env is not None else self.env(), log)
        self.processes.append(process)
        return process

    def serve(self, *flags: str, **env: str) -> Process:
        return self.start(
            "vllm",
            "serve",
            str(self.model),
            "--host",
            HEAD,
            "--port",
            str(self.port),
            "--served-model-name",
            "m",
            *flags,
            env=self.env(**env),
        )

    def ready(self, process: Process) -> Process:
        def up() -> bool:
            assert process.popen.poll() is None, process.log
            return "Application startup complete." in process.log

        until(up, "the server is up")
        return process

    def ray(self, **env: str) -> tuple[Process, Process]:
        """Head and worker, both blocking and both registered."""
        head = self.start(
            "ray",
            "start",
            "--head",
            f"--node-ip-address={HEAD}",
            f"--port={self.gcs_port}",
            "--num-gpus=1",
            "--disable-usage-stats",
            "--include-dashboard=false",
            "--block",
            env=self.env(**env),
        )
        until(lambda: "Ray runtime started" in head.log, head.log)
        worker = self.start(
            "ray",
            "start",
            f"--address={HEAD}:{self.gcs_port}",
            f"--node-ip-address={WORKER}",
            "--block",
            env=self.env(WORKER, **env),
        )
        until(lambda: "Ray runtime started" in worker.log, worker.log)
        return head, worker

    def http(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str = "",
        timeout_s: float = LIMIT_S,
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection(HEAD, self.port, timeout=timeout_s)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def complete(self, prompt: str = "hello", **more: Any) -> tuple[int, Any]:
        status, text = self.http("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8, **more})
        return status, json.loads(text)

    def text(self, prompt: str = "hello", **more: Any) -> str:
        status, answer = self.complete(prompt, **more)
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    def chat(self, **more: Any) -> dict[str, Any]:
        status, text = self.http(
            "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **more}
        )
        assert status == 200, text
        return dict(json.loads(text)["choices"][0])

    def generated(self) -> float:
        metrics = self.http("GET", "/metrics")[1]
        line = next(x for x in metrics.splitlines() if x.startswith("vllm:generation_tokens_total"))
        return float(line.split()[-1])


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for process in reversed(stage.processes):
        process.stop()


def python(stage: Stage, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**stage.env(**env), "PYTHONPATH": str(SITE)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def command(*argv: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / argv[0]), *argv[1:]], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


class TestCommandLine:
    def test_versions_say_that_they_are_a_stub(self, stage: Stage) -> None:
        assert command("vllm", "--version", env=stage.env()).stdout.strip() == "0.32.0+stub"
        assert command("ray", "--version", env=stage.env()).stdout.strip() == "ray, version 2.52.0+stub"
        code = (
            "import ray, vllm, importlib.metadata as m;"
            "print(ray.__version__, vllm.__version__, m.version('vllm'), m.version('ray'))"
        )
        assert python(stage, code).stdout.split() == [
            "2.52.0+stub",
            "0.32.0+stub",
            "0.32.0+stub",
            "2.52.0+stub",
        ]

    def test_an_unknown_flag_is_refused_as_vllm_refuses_it(self, stage: Stage) -> None:
        process = stage.serve("--swap-spice", "4")
        assert process.wait() == 2
        assert "vllm: error: unrecognized arguments: --swap-spice 4" in process.log

    def test_a_second_serve_is_refused(self, stage: Stage) -> None:
        result = command("vllm", "serve", "vllm", "serve", "m", env=stage.env())
        assert (result.returncode, "unrecognized arguments: serve m" in result.stderr) == (2, True)

    def test_a_value_of_the_wrong_kind_is_refused(self, stage: Stage) -> None:
        process = stage.serve("--max-num-seqs", "many")
        assert process.wait() == 2
        assert "argument --max-num-seqs: invalid int value: 'many'" in process.log

    def test_the_flags_of_real_playbooks_are_known(self, stage: Stage) -> None:
        process = stage.ready(
            stage.serve(
                "--gpu-memory-utilization",
                "0.82",
                "--max_model_len",
                "1k",
                "--moe-backend",
                "marlin",
                "-q",
                "modelopt",
                "--enable-auto-tool-choice",
                "--tool-call-parser",
                "hermes",
                "--trust-remote-code",
                "--enforce-eager",
                "--kv-cache-dtype",
                "fp8",
                "--attention-backend",
                "FLASHINFER",
                "--no-enable-prefix-caching",
                "-O3",
                "--speculative-config",
                '{"method": "mtp", "num_speculative_tokens": 2}',
                "--load-format",
                "safetensors",
                "--compilation-config.mode",
                "3",
                "--limit-mm-per-prompt",
                '{"image": 2}',
                "--async-scheduling",
                "--default-chat-template-kwargs",
                '{"enable_thinking": false}',
                "--max-num-batched-tokens",
                "8192",
            )
        )
        assert json.loads(stage.http("GET", "/v1/models")[1])["data"][0]["max_model_len"] == 1000
        assert "Graph capturing finished" not in process.log


class TestLoading:
    @pytest.mark.parametrize(
        ("damage", "file"),
        [
            (lambda m: (m / "config.json").unlink(), "config.json"),
            (lambda m: (m / "model-00002-of-00002.safetensors").unlink(), "model-00002-of-00002.safetensors"),
            (
                lambda m: os.truncate(m / "model-00001-of-00002.safetensors", 30),
                "model-00001-of-00002.safetensors",
            ),
            (
                lambda m: os.truncate(
                    m / "model-00002-of-00002.safetensors",
                    (m / "model-00002-of-00002.safetensors").stat().st_size - 1,
                ),
                "model-00002-of-00002.safetensors",
            ),
        ],
        ids=["no config", "no shard", "header cut", "tail cut"],
    )
    def test_a_damaged_model_fails_with_its_path(self, stage: Stage, damage: Callable[[Path], None], file: str) -> None:
        damage(stage.model)
        process = stage.serve()
        assert process.wait() == 1
        assert str(stage.model / file) in process.log

    def test_a_model_that_is_nowhere_fails(self, stage: Stage) -> None:
        result = command("vllm", "serve", "no/such", env=stage.env())
        assert result.returncode == 1
        assert "Invalid repository ID or local directory specified: 'no/such'" in result.stderr

    def test_a_taken_port_fails_before_the_engine_starts(self, stage: Stage) -> None:
        with socket.socket() as holder:
            holder.bind((HEAD, stage.port))
            holder.listen()
            process = stage.serve()
            assert process.wait() == 1
        assert "Address already in use" in process.log
        assert "EngineCore" not in process.log

    def test_the_log_has_the_phases_of_the_real_one(self, stage: Stage) -> None:
        log = stage.ready(stage.serve()).log
        phases = [
            "non-default args",
            "Initializing a V1 LLM engine (v0.32.0+stub)",
            "Starting to load model",
            "Loading safetensors checkpoint shards:  50% Completed | 1/2",
            "Loading safetensors checkpoint shards: 100% Completed | 2/2",
            "GPU KV cache size:",
            "Graph capturing finished",
            "init engine",
            "Starting vLLM server on",
            "Application startup complete.",
        ]
        places = [log.index(p) for p in phases]
        assert places == sorted(places)


class TestServing:
    def test_endpoints(self, stage: Stage) -> None:
        stage.ready(stage.serve())
        assert stage.http("GET", "/health") == (200, "")
        assert [m["id"] for m in json.loads(stage.http("GET", "/v1/models")[1])["data"]] == ["m"]
        assert stage.http("GET", "/nowhere")[0] == 404
        assert stage.complete(model="other")[0] == 404
        assert stage.complete(max_tokens=5000)[0] == 400
        assert stage.http("POST", "/v1/completions", [1])[0] == 400
        status, answer = stage.complete(max_tokens=5)
        assert (status, answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (
            200,
            5,
            "length",
        )
        assert stage.complete(max_tokens=90, ignore_eos=True)[1]["usage"]["completion_tokens"] == 90
        assert stage.chat()["finish_reason"] == "stop"
        assert stage.generated() >= 95

    def test_a_stream_says_what_the_whole_answer_says(self, stage: Stage) -> None:
        stage.ready(stage.serve())
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        events = [e.removeprefix("data: ") for e in stage.http("POST", "/v1/chat/completions", body)[1].split("\n\n")]
        assert events[-2:] == ["[DONE]", ""]
        chunks = [json.loads(e) for e in events[:-2]]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
        assert text == stage.chat()["message"]["content"]
        assert chunks[-1]["usage"]["completion_tokens"] == len(text.split())

    @pytest.mark.parametrize("by", ["flag", "environment"])
    def test_the_key_guards_v1_and_leaves_health_open(self, stage: Stage, by: str) -> None:
        stage.ready(stage.serve("--api-key", "k") if by == "flag" else stage.serve(VLLM_API_KEY="k"))
        assert stage.http("GET", "/health")[0] == 200
        assert stage.http("GET", "/v1/models")[0] == 401
        assert stage.http("GET", "/v1/models", key="wrong")[0] == 401
        assert stage.http("GET", "/v1/models", key="k")[0] == 200

    def test_other_weights_answer_otherwise(self, stage: Stage) -> None:
        stage.ready(stage.serve())
        first = stage.text()
        stage.processes[0].stop()
        stage.model = write_model(stage.tmp / "other", fill=2)
        stage.ready(stage.serve())
        assert stage.text() != first

    def test_reasoning_eats_a_small_budget(self, stage: Stage) -> None:
        stage.ready(stage.serve("--reasoning-parser", "qwen3"))
        short = stage.chat(max_tokens=20)
        assert (short["message"]["content"], short["finish_reason"]) == (None, "length")
        assert short["message"]["reasoning"]
        assert stage.chat(max_tokens=512)["message"]["content"]
        assert stage.chat(max_tokens=60, chat_template_kwargs={"enable_thinking": False})["message"]["content"]

    def test_tools_need_their_flags(self, stage: Stage) -> None:
        stage.ready(stage.serve())
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}
        status, text = stage.http("POST", "/v1/chat/completions", body)
        assert (status, "--enable-auto-tool-choice" in text) == (400, True)

    @pytest.mark.parametrize("stream", [False, True])
    def test_an_offered_tool_is_called_after_the_reasoning(self, stage: Stage, stream: bool) -> None:
        flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
        stage.ready(stage.serve(*flags))
        function = {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
            "stream": stream,
        }
        status, text = stage.http("POST", "/v1/chat/completions", body)
        assert status == 200
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")] if stream else [text]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        parts = [choice["delta" if stream else "message"] for choice in choices]
        (call,) = [call for part in parts for call in part.get("tool_calls") or ()]
        assert (call["function"]["name"], set(json.loads(call["function"]["arguments"]))) == ("f", {"city"})
        assert choices[-1]["finish_reason"] == "tool_calls"
        assert any(part.get("reasoning") for part in parts)
        assert not any(part.get("content") for part in parts)
        _, text = stage.http("POST", "/v1/chat/completions", {**body, "stream": False, "tool_choice": "none"})
        message = json.loads(text)["choices"][0]["message"]
        assert (message["tool_calls"], bool(message["content"])) == ([], True)

    def test_sigterm_ends_with_zero_and_leaves_nobody(self, stage: Stage) -> None:
        process = stage.ready(stage.serve())
        below = descendants(process.popen.pid)
        assert any(c.startswith("VLLM::EngineCore") for c in below.values())
        process.popen.terminate()
        assert process.wait(2.0) == 0
        until(lambda: not any(map(alive, below)), "the engine core is gone")

    def begin(self, stage: Stage, **body: Any) -> tuple[threading.Thread, list[Any]]:
        """A request under way."""
        answers: list[Any] = []

        def complete() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                answers.append(stage.complete(ignore_eos=True, **body))

        thread = threading.Thread(target=complete)
        thread.start()
        until(lambda: stage.generated() > 0, "it is under way")
        return thread, answers

    def test_what_is_in_flight_finishes_and_new_requests_are_aborted(self, stage: Stage) -> None:
        process = stage.ready(stage.serve("--shutdown-timeout", "10", STUB_FAULT="slow=8"))
        thread, answers = self.begin(stage, max_tokens=16)
        process.popen.terminate()
        until(lambda: "mode=drain timeout=10s" in process.log, "it drains")
        status, answer = stage.complete()
        (choice,) = answer["choices"]
        assert (status, choice["text"], choice["finish_reason"]) == (200, "", "abort")
        thread.join(LIMIT_S)
        ((status, answer),) = answers
        assert (status, answer["usage"]["completion_tokens"]) == (200, 16)
        assert process.wait(2.0) == 0

    def test_it_waits_no_longer_than_it_was_told(self, stage: Stage) -> None:
        process = stage.ready(stage.serve("--shutdown-timeout", "1", STUB_FAULT="slow=1"))
        thread, answers = self.begin(stage, prompt="x", max_tokens=60)
        began = time.monotonic()
        process.popen.terminate()
        assert process.wait(5.0) == 0
        assert 1 <= time.monotonic() - began < 4
        thread.join(LIMIT_S)
        assert not answers

    def test_a_killed_server_leaves_nobody(self, stage: Stage) -> None:
        process = stage.ready(stage.serve("-tp", "2", STUB_GPUS="2"))
        below = descendants(process.popen.pid)
        assert sum(c.startswith("VLLM::Worker_TP") for c in below.values()) == 2
        process.stop()
        until(lambda: not any(map(alive, below)), "core and ranks are gone")


class TestDeaths:
    def test_a_killed_engine_core_leaves_a_server_that_says_it_is_well(self, stage: Stage) -> None:
        process = stage.ready(stage.serve())
        os.kill(process.child("VLLM::EngineCore"), signal.SIGKILL)
        until(lambda: stage.complete()[0] == 500, "completions fail")
        assert stage.http("GET", "/health")[0] == 200
        assert stage.http("GET", "/v1/models")[0] == 200
        assert process.popen.poll() is None

    def test_a_killed_worker_ends_the_server_with_zero(self, stage: Stage) -> None:
        _, worker = stage.ray()
        process = stage.ready(stage.serve("-tp", "2", "--distributed-executor-backend", "ray"))
        os.kill(worker.child("VLLM::Worker_TP1"), signal.SIGKILL)
        until(lambda: "AsyncLLM output_handler failed" in process.log, "the driver noticed")
        with contextlib.suppress(OSError):  # the server may be gone by now
            assert stage.complete()[0] == 500
        assert process.wait() == 0
        assert "RayWorkerProc rank=[1] died unexpectedly, shutting down executor." in process.log
        assert "RayActorError: The actor died unexpectedly before finishing this task" in process.log
        assert "EngineDeadError" in process.log

    def test_a_silent_rank_stops_the_tokens_and_nothing_else(self, stage: Stage) -> None:
        _, worker = stage.ray()
        stage.ready(stage.serve("-tp", "2", "--distributed-executor-backend", "ray"))
        stage.text()
        rank = worker.child("VLLM::Worker_TP1")
        os.kill(rank, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            stage.http("POST", "/v1/completions", {"prompt": "x", "max_tokens": 8}, timeout_s=0.5)
        stuck = stage.generated()
        assert stage.http("GET", "/health")[0] == 200
        assert stage.generated() == stuck
        os.kill(rank, signal.SIGCONT)
        assert stage.text()


class TestRay:
    def test_the_command_is_a_module_too(self, stage: Stage) -> None:
        code = "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('ray.scripts.scripts', run_name='__main__')"
        assert python(stage, code).stdout.strip() == "ray, version 2.52.0+stub"

    LIST = (
        "import ray, json; ray.init(address='{a}:{p}', logging_level='ERROR');"
        "print(json.dumps({{n['NodeManagerAddress']: n['Alive'] for n in ray.nodes()}}));"
        "print(ray.cluster_resources()['GPU']); ray.shutdown()"
    )

    def nodes(self, stage: Stage, **env: str) -> dict[str, bool]:
        result = python(stage, self.LIST.format(a=HEAD, p=stage.gcs_port), **env)
        assert result.returncode == 0, result.stderr
        return dict(json.loads(result.stdout.splitlines()[0]))

    def test_a_dead_worker_is_not_alive_at_once(self, stage: Stage) -> None:
        _, worker = stage.ray()
        assert self.nodes(stage) == {HEAD: True, WORKER: True}
        worker.stop()
        until(lambda: self.nodes(stage) == {HEAD: True, WORKER: False}, "the worker is marked", 3.0)

    def test_a_stopped_worker_is_dead_after_the_silence(self, stage: Stage) -> None:
        _, worker = stage.ray(STUB_RAY_SILENCE_S="2")
        time.sleep(2.5)
        assert self.nodes(stage) == {HEAD: True, WORKER: True}
        worker.popen.send_signal(signal.SIGSTOP)
        until(lambda: self.nodes(stage) == {HEAD: True, WORKER: False}, "the worker is marked", 5.0)
        worker.popen.send_signal(signal.SIGCONT)
        assert worker.wait(5.0) == 1

    def test_a_stopped_head_ends_the_worker_with_an_error(self, stage: Stage) -> None:
        head, worker = stage.ray(STUB_RAY_SILENCE_S="2")
        head.popen.send_signal(signal.SIGSTOP)
        assert worker.wait(5.0) == 1
        assert "lost its connection to GCS" in worker.log

    def test_a_dead_head_ends_the_worker_with_an_error(self, stage: Stage) -> None:
        head, worker = stage.ray()
        head.stop()
        assert worker.wait(2.0) == 1
        assert "lost its connection to GCS" in worker.log

    def test_the_head_daemonises_and_listens_on_its_address_alone(self, stage: Stage) -> None:
        start = command(
            "ray", "start", "--head", f"--node-ip-address={HEAD}", f"--port={stage.gcs_port}", env=stage.env()
        )
        try:
            assert start.returncode == 0, start.stderr
            assert self.nodes(stage) == {HEAD: True}
            with socket.socket() as other:
                other.bind((WORKER, stage.gcs_port))  # would fail beside a wildcard
                other.listen()
        finally:
            stopped = command("ray", "stop", env=stage.env())
        assert stopped.stdout.strip() == "Stopped all 1 Ray processes."
        assert command("ray", "stop", env=stage.env()).stdout.strip() == "Did not find any active Ray processes."
        assert command("ray", "status", env=stage.env()).returncode == 1

    def test_a_token_is_asked_for(self, stage: Stage) -> None:
        (stage.tmp / "token").write_text("secret\n")
        stage.ray(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(stage.tmp / "token"))
        assert self.nodes(stage, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret") == {HEAD: True, WORKER: True}
        for env in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guess"}):
            refused = python(stage, self.LIST.format(a=HEAD, p=stage.gcs_port), **env)
            assert "Unauthenticated" in refused.stderr
        missing = command("ray", "start", "--head", f"--node-ip-address={HEAD}", env=stage.env(RAY_AUTH_MODE="token"))
        assert (missing.returncode, "no authentication token was found" in missing.stderr) == (1, True)

    def test_another_version_is_refused(self, stage: Stage) -> None:
        stage.ray()
        late = stage.start(
            "ray",
            "start",
            f"--address={HEAD}:{stage.gcs_port}",
            "--node-ip-address=127.0.0.3",
            "--block",
            env=stage.env(STUB_RAY_VERSION="2.40.0"),
        )
        assert late.wait() == 1
        assert "Version mismatch" in late.log

    def test_a_worker_without_a_head_gives_up(self, stage: Stage) -> None:
        worker = stage.start(
            "ray",
            "start",
            f"--address={HEAD}:{stage.gcs_port}",
            f"--node-ip-address={WORKER}",
            "--block",
            env=stage.env(WORKER, STUB_GCS_WAIT_S="0.3"),
        )
        assert worker.wait() == 1
        assert f"Unable to connect to GCS at {HEAD}:{stage.gcs_port}" in worker.log

    def test_a_worker_may_die_before_it_has_joined_and_its_head_does_not(self, stage: Stage) -> None:
        environment = stage.env(STUB_FAULT="die-ray=0.1")
        head = ["ray", "start", "--head", f"--node-ip-address={HEAD}", f"--port={stage.gcs_port}"]
        assert stage.start(*head, env=environment).wait() == 0
        worker = ["ray", "start", f"--address={HEAD}:{stage.gcs_port}", f"--node-ip-address={WORKER}", "--block"]
        joining = stage.start(*worker, env=stage.env(WORKER, STUB_FAULT="die-ray=0.1"))
        try:
            assert joining.wait() == 1
            assert "raylet [exit code=1]" in joining.log
            assert self.nodes(stage) == {HEAD: True}
        finally:
            stage.start("ray", "stop", env=environment).wait()


class TestRanks:
    def dumps(self, stage: Stage) -> dict[str, dict[str, str]]:
        """{VLLM_HOST_IP: environment} of the two ranks."""
        found = [json.loads(p.read_text())["environ"] for p in (stage.tmp / "dump").glob("rank-*.json")]
        return {e["VLLM_HOST_IP"]: e for e in found}

    def up(self, stage: Stage, **env: str) -> Process:
        return stage.ready(
            stage.serve(
                "-tp",
                "2",
                "--distributed-executor-backend",
                "ray",
                SPARKCLUSTER_LAB_DUMP_ENV=str(stage.tmp / "dump"),
                **env,
            )
        )

    def test_two_nodes_answer_as_one(self, stage: Stage) -> None:
        stage.ready(stage.serve())
        alone = stage.text()
        stage.processes[0].stop()
        stage.ray()
        process = self.up(stage)
        assert stage.text() == alone
        assert f"ip={WORKER})" in process.log

    def test_pipeline_parallel_answers_too(self, stage: Stage) -> None:
        _, worker = stage.ray()
        stage.ready(stage.serve("-pp", "2", "--distributed-executor-backend", "ray"))
        assert stage.text()
        assert worker.child("VLLM::Worker_PP1")

    def test_the_drivers_environment_fills_in_and_never_overwrites(self, stage: Stage) -> None:
        stage.ray()
        self.up(stage, NCCL_IB_GID_INDEX="3")
        ranks = self.dumps(stage)
        assert (ranks[HEAD]["GLOO_SOCKET_IFNAME"], ranks[WORKER]["GLOO_SOCKET_IFNAME"]) == ("enA", "enB")
        assert ranks[WORKER]["NCCL_IB_GID_INDEX"] == "3"

    def test_names_in_the_file_are_not_carried(self, stage: Stage) -> None:
        stage.ray()
        config = stage.tmp / "cfg"
        config.mkdir()
        (config / "ray_non_carry_over_env_vars.json").write_text('["NCCL_IB_GID_INDEX"]')
        self.up(stage, NCCL_IB_GID_INDEX="3", VLLM_CONFIG_ROOT=str(config))
        assert "NCCL_IB_GID_INDEX" not in self.dumps(stage)[WORKER]

    def test_a_worker_on_another_network_hangs_and_then_fails(self, stage: Stage) -> None:
        head = stage.start(
            "ray",
            "start",
            "--head",
            f"--node-ip-address={HEAD}",
            f"--port={stage.gcs_port}",
            "--block",
            env=stage.env(STUB_RENDEZVOUS_S="1"),
        )
        until(lambda: "Ray runtime started" in head.log, head.log)
        stage.start(
            "ray",
            "start",
            f"--address={HEAD}:{stage.gcs_port}",
            f"--node-ip-address={WORKER}",
            "--block",
            env=stage.env(WORKER, GLOO_SOCKET_IFNAME="wifi", STUB_RENDEZVOUS_S="1"),
        )
        process = stage.serve("-tp", "2", "--distributed-executor-backend", "ray", STUB_RENDEZVOUS_S="1")
        assert process.wait() == 1
        assert "Gloo connectFullMesh failed" in process.log
        assert "Engine core initialization failed" in process.log

    def test_an_interface_that_is_not_there_is_named(self, stage: Stage) -> None:
        stage.start("ray", "start", "--head", f"--node-ip-address={HEAD}", f"--port={stage.gcs_port}", "--block")
        stage.start(
            "ray",
            "start",
            f"--address={HEAD}:{stage.gcs_port}",
            f"--node-ip-address={WORKER}",
            "--block",
            env=stage.env(WORKER, GLOO_SOCKET_IFNAME="enA"),
        )
        until(lambda: "Ray runtime started" in stage.processes[0].log, "the head is up")
        process = stage.serve("-tp", "2", "--distributed-executor-backend", "ray")
        assert process.wait() == 1
        assert "Unable to find interface for: enA" in process.log

    def test_weights_that_differ_show_in_the_answer(self, stage: Stage) -> None:
        stage.ready(stage.serve())
        good = stage.text()
        stage.processes[0].stop()
        other = write_model(stage.tmp / "hub" / "models--a--m" / "snapshots" / "main", fill=3)
        stage.model.rename(stage.tmp / "good")
        on_head = stage.tmp / HEAD / ".cache/huggingface/hub/models--a--m/snapshots"
        on_worker = stage.tmp / WORKER / ".cache/huggingface/hub/models--a--m/snapshots"
        for place, source in ((on_head, stage.tmp / "good"), (on_worker, other)):
            place.mkdir(parents=True)
            (place / "main").symlink_to(source)
        stage.ray()
        stage.ready(
            stage.start(
                "vllm",
                "serve",
                "a/m",
                "--host",
                HEAD,
                "--port",
                str(stage.port),
                "-tp",
                "2",
                "--distributed-executor-backend",
                "ray",
            )
        )
        assert stage.text() != good

    def test_a_placement_that_cannot_be_had_is_waited_for_and_named(self, stage: Stage) -> None:
        stage.ray()
        process = stage.serve("-tp", "3", "--distributed-executor-backend", "ray", STUB_PG_WAIT_S="0.3")
        assert process.wait() == 1
        assert "Cannot provide a placement group requiring 3.0 GPUs" in process.log

    def test_more_ranks_than_gpus_without_ray_are_refused(self, stage: Stage) -> None:
        process = stage.serve("-tp", "2")
        assert process.wait() == 1
        assert "World size (2) is larger than the number of available GPUs (1) in this node" in process.log


class TestNative:
    def flags(self, stage: Stage, rank: int) -> list[str]:
        return [
            "-tp",
            "2",
            "--nnodes",
            "2",
            "--node-rank",
            str(rank),
            "--master-addr",
            HEAD,
            "--master-port",
            str(stage.gcs_port),
            *(["--headless"] if rank else []),
        ]

    def test_two_nodes_answer_and_the_follower_outlives_the_head(self, stage: Stage) -> None:
        stage.ready(stage.serve())
        alone = stage.text()
        stage.processes[0].stop()
        follower = stage.start("vllm", "serve", str(stage.model), *self.flags(stage, 1), env=stage.env(WORKER))
        head = stage.ready(stage.serve(*self.flags(stage, 0)))
        assert stage.text() == alone
        rank = follower.child("VLLM::Worker_TP1")
        head.popen.terminate()
        assert head.wait() == 0
        assert alive(rank)
        assert follower.popen.poll() is None
        follower.popen.terminate()
        assert follower.wait(2.0) == 0
        until(lambda: not alive(rank), "its rank is gone")

    def test_a_head_without_followers_gives_up(self, stage: Stage) -> None:
        process = stage.serve(*self.flags(stage, 0), STUB_RENDEZVOUS_S="0.5")
        assert process.wait() == 1
        assert "1/2 clients joined" in process.log or "Gloo connectFullMesh failed" in process.log


class TestFaults:
    def test_garbage(self, stage: Stage) -> None:
        stage.ready(stage.serve(STUB_FAULT="garbage"))
        assert stage.text() == "!!!!!!!!"

    def test_null_content(self, stage: Stage) -> None:
        stage.ready(stage.serve(STUB_FAULT="null-content"))
        assert stage.chat()["message"]["content"] is None

    def test_a_fault_of_another_host_is_not_ours(self, stage: Stage) -> None:
        stage.ready(stage.serve(STUB_FAULT=f"garbage@elsewhere,null-content@{socket.gethostname()}"))
        assert "!" not in stage.text()
        assert stage.chat()["message"]["content"] is None

    def test_an_unknown_fault_is_refused(self, stage: Stage) -> None:
        process = stage.serve(STUB_FAULT="gremlins")
        assert process.wait() == 1
        assert "unknown fault 'gremlins'" in process.log

    def test_health_lies(self, stage: Stage) -> None:
        process = stage.ready(stage.serve(STUB_FAULT="lie-health"))
        assert (stage.http("GET", "/health")[0], stage.complete()[0]) == (200, 500)
        assert process.popen.poll() is None

    def test_a_crash_is_called_success(self, stage: Stage) -> None:
        process = stage.ready(stage.serve(STUB_FAULT="exit0"))
        assert stage.complete()[0] == 500
        assert process.wait() == 0

    @pytest.mark.parametrize(
        ("fault", "line"),
        [
            ("oom", "CUDA out of memory"),
            ("die-load=0.1", "Engine core initialization failed"),
            ("nccl-memlock", "ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
            ("nccl-gid", "local GID ::"),
        ],
    )
    def test_deaths_while_loading(self, stage: Stage, fault: str, line: str) -> None:
        process = stage.serve(STUB_FAULT=fault)
        assert process.wait() == 1
        assert line in process.log

    def test_a_fallback_to_tcp_shows_in_the_log(self, stage: Stage) -> None:
        assert "NCCL INFO Using network Socket" in stage.ready(stage.serve(STUB_FAULT="tcp-fallback")).log

    def test_a_first_request_that_compiles_for_longer_than_a_step_may_take_ends_the_engine(self, stage: Stage) -> None:
        limit = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800"}
        process = stage.ready(stage.serve(STUB_FAULT="slow-first=900", **limit))
        assert stage.text()
        process.stop()
        process = stage.ready(stage.serve(STUB_FAULT="slow-first=900"))
        assert stage.http("POST", "/v1/completions", {"prompt": "x"})[0] == 500
        process.wait()
        assert "TimeoutError: RPC call to sample_tokens timed out" in process.log

    def test_slow_is_slow(self, stage: Stage) -> None:
        stage.ready(stage.serve(STUB_FAULT="slow=20"))
        begin = time.monotonic()
        stage.text(max_tokens=8)
        assert 0.3 < time.monotonic() - begin < 5

    def test_the_control_file_hangs_and_heals_a_server_that_runs(self, stage: Stage) -> None:
        control = stage.tmp / "control"
        process = stage.ready(stage.serve(STUB_CONTROL=str(control)))
        stage.text()
        control.write_text("hang-serve\n")
        with pytest.raises(TimeoutError):
            stage.http("POST", "/v1/completions", {"prompt": "x"}, timeout_s=0.4)
        assert stage.http("GET", "/health")[0] == 200
        control.write_text("hang-serve\nclear\n")
        assert stage.text()
        control.write_text("die-serve\n")
        assert process.wait() == 1

    def test_a_load_that_hangs_goes_on_when_healed(self, stage: Stage) -> None:
        control = stage.tmp / "control"
        control.write_text("hang-load\n")
        process = stage.serve(STUB_CONTROL=str(control))
        until(lambda: "50% Completed" in process.log, "the first shard is loaded")
        assert "100% Completed" not in process.log
        with pytest.raises(ConnectionRefusedError):
            stage.http("GET", "/health")
        control.write_text("")
        stage.ready(process)
