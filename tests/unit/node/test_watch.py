"""Reports of the watch program about ranks, with a fake Docker engine, and real processes and files."""

import http.server
import json
import os
import queue
import socketserver
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.hosts.program import command
from sparkcluster.node import common, watch

LIMIT_S = 60


class Engine:
    """A Docker engine with one container, as reported by its API."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = {
            "Status": "running", "ExitCode": 0, "OOMKilled": False, "Error": "", "Pid": 1,
            "StartedAt": "2026-11-21T03:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z",
        }  # fmt: skip
        self.queries: list[str] = []
        self.log: queue.Queue[bytes | None] = queue.Queue()


def frame(text: bytes, number: int, stream: int = 1) -> bytes:
    """A log frame with a unique nanosecond."""
    text = b"2026-11-21T03:00:01.00000000%dZ " % number + text
    return struct.pack(">BxxxL", stream, len(text)) + text


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Engine, str]]:
    engine = Engine()

    class Handler(http.server.BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if engine.state is None:
                body = b'{"message":"No such container"}'
                self.send_response(404)
            elif "/logs" in self.path:
                engine.queries.append(self.path)
                self.send_response(200)
                self.end_headers()
                while (piece := engine.log.get()) is not None:
                    self.wfile.write(piece)
                return
            else:
                box = {"Name": "/r0", "Image": "sha256:aa", "Config": {"Labels": None}, "State": engine.state}
                body = json.dumps({**box, "RestartCount": 0, "Path": "python3", "Args": []}).encode()
                self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    path = str(tmp_path / "docker.sock")
    server = Server(path, Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield engine, path
    engine.log.put(None)
    server.shutdown()
    server.server_close()


class WatchProgram:
    """The program as it runs on a node, and its events."""

    def __init__(self, request: dict[str, Any], **env: str) -> None:
        argv, sent = command("watch", request)
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env})
        assert self.process.stdin is not None
        self.process.stdin.write(sent)
        self.process.stdin.flush()
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put(None)

    def until(self, matches: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Events up to and including the first match."""
        seen = []
        limit = time.monotonic() + LIMIT_S
        while True:
            event = self.events.get(timeout=max(0.01, limit - time.monotonic()))
            assert event is not None, f"watch ended after {seen}"
            seen.append(event)
            if matches(event):
                return seen

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.reader.join(timeout=60)  # a pipe that is being read must not be closed
        self.process.stdout.close()
        return code


@pytest.fixture
def start_watch() -> Iterator[Callable[..., WatchProgram]]:
    programs: list[WatchProgram] = []

    def start(request: dict[str, Any], **env: str) -> WatchProgram:
        programs.append(WatchProgram(request, **env))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()
        program.reader.join(timeout=60)
        for pipe in (program.process.stdin, program.process.stdout):
            assert pipe is not None
            pipe.close()


def lines(events: list[dict[str, Any]]) -> list[str]:
    return [line for event in events for line in event.get("lines", [])]


def state_is(name: str, state: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event.get("states", {}).get(name, {}).get("state") == state


def docker_request(**more: Any) -> dict[str, Any]:
    ranks = [{"name": "r0", "runtime": "docker", "rank_dir": "/nowhere"}]
    return {"ranks": ranks, "tail": 100, "interval_s": 0.4, "follow": True, "from": {}, **more}


def test_the_last_log_lines_precede_the_exit_of_a_container(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    docker, path = engine
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{path}")
    docker.log.put(frame(b"one\n", 1) + frame(b"two\n", 2, 2))
    program.until(lambda event: "two" in event.get("lines", []))
    program.until(state_is("r0", "running"))
    docker.log.put(frame(b"last words", 3))
    assert docker.state is not None
    docker.state = {**docker.state, "Status": "exited", "ExitCode": 137, "OOMKilled": True}
    docker.log.put(None)
    seen = program.until(state_is("r0", "exited"))
    assert lines(seen) == ["last words"]
    assert seen[-1]["states"]["r0"] == {"state": "exited", "exit_code": 137, "oom_killed": True, "error": ""}
    assert "tail=100" in docker.queries[0]


def test_a_log_that_docker_cannot_read_further_does_not_end_the_watch(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    """It reports so in a frame without a time, for a log damaged by a power loss."""
    docker, path = engine
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{path}")
    error = b"Error grabbing logs: invalid character"
    docker.log.put(struct.pack(">BxxxL", 2, len(error)) + error)
    docker.log.put(None)
    program.until(state_is("r0", "running"))
    docker.log.put(frame(b"goes on\n", 1))
    assert lines(program.until(lambda event: "lines" in event)) == ["goes on"]


def test_ticks_continue_while_docker_does_not_answer(start_watch: Callable[..., WatchProgram], tmp_path: Path) -> None:
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    for _ in range(3):
        seen = program.until(lambda event: "states" in event)
    assert seen[-1]["states"]["r0"]["state"] == "unreadable"
    assert "no such file" in seen[-1]["states"]["r0"]["error"]


def process_rank(tmp_path: Path, script: str) -> tuple[dict[str, Any], subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(["sh", "-c", script], stdout=log, stdin=subprocess.PIPE)
    ticks = common.start_ticks(process.pid)
    record = {"name": "r0", "pid": process.pid, "start_ticks": ticks, "labels": {}}
    (tmp_path / "rank.json").write_text(json.dumps(record))
    ranks = [{"name": "r0", "runtime": "process", "rank_dir": str(tmp_path)}]
    return {"ranks": ranks, "tail": 3, "interval_s": 0.4, "follow": True, "from": {}}, process


def test_a_process_is_followed_to_its_end(tmp_path: Path, start_watch: Callable[..., WatchProgram]) -> None:
    request, process = process_rank(tmp_path, "printf 'a\\nb\\nc\\nd\\n'; read x; printf '10%%\\r20%%\\rend'; exit 7")
    while (tmp_path / "log").stat().st_size < 8:
        assert process.poll() is None
    program = start_watch(request)
    assert lines(program.until(lambda event: "d" in event.get("lines", []))) == ["b", "c", "d"]
    program.until(state_is("r0", "running"))
    assert process.stdin is not None
    (tmp_path / "exit").write_text("7\n")  # before the end: the program may look in between
    process.stdin.close()
    assert process.wait(60) == 7
    seen = program.until(state_is("r0", "exited"))
    assert seen[-1]["states"]["r0"]["exit_code"] == 7
    if "end" not in lines(seen):
        seen += program.until(lambda event: "end" in event.get("lines", []))
    assert lines(seen) == ["10%", "20%", "end"]


def test_a_process_with_a_reused_pid_is_not_the_rank(tmp_path: Path) -> None:
    record = {"name": "r0", "pid": os.getpid(), "start_ticks": 1, "labels": {}}
    (tmp_path / "rank.json").write_text(json.dumps(record))
    watching = watch.Watch(docker_request())

    def state(path: Path) -> dict[str, Any]:
        return watching.state({"name": "r0", "runtime": "process", "rank_dir": str(path)})

    assert state(tmp_path) == {"state": "exited", "exit_code": None, "oom_killed": False, "error": ""}
    assert state(tmp_path / "none")["state"] == "gone"


def test_the_watch_ends_when_its_input_closes(start_watch: Callable[..., WatchProgram], tmp_path: Path) -> None:
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    program.until(lambda event: "states" in event)
    program.close()


def test_a_container_log_is_followed_from_its_last_position(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    """The Docker engine returns all lines of the same moment a second time."""
    docker, path = engine
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{path}")
    docker.log.put(frame(b"one\n", 1) + frame(b"50%\r60%\n", 2))
    seen = program.until(lambda event: "60%" in event.get("lines", []))
    assert lines(seen) == ["one", "50%", "60%"]
    at = [event["at"] for event in seen if "at" in event][-1]
    assert at == "1795230001.000000002"
    program.close()
    docker.log.put(None)
    second = start_watch(docker_request(**{"from": {"r0": at}}), DOCKER_HOST=f"unix://{path}")
    docker.log.put(frame(b"50%\r60%\n", 2) + frame(b"two\n", 3))
    assert lines(second.until(lambda event: "two" in event.get("lines", []))) == ["two"]
    assert "timestamps=1&follow=1&tail=all&since=1795230001.000000002" in docker.queries[-1]


def test_a_key_in_an_engines_log_is_not_sent(tmp_path: Path, start_watch: Callable[..., WatchProgram]) -> None:
    """SGLang logs its arguments."""
    (tmp_path / "secrets.env").write_text("KEY=open=sesame\n")
    request, process = process_rank(tmp_path, "read x")
    (tmp_path / "log").write_text("server_args={'api_key': 'open=sesame'}\n")
    seen = lines(start_watch(request).until(lambda event: "lines" in event))
    process.communicate()
    assert seen == ["server_args={'api_key': '(removed)'}"]


def test_a_log_file_is_followed_from_its_last_position(
    tmp_path: Path, start_watch: Callable[..., WatchProgram]
) -> None:
    request, process = process_rank(tmp_path, "read x")
    log = tmp_path / "log"
    log.write_bytes(b"one\r\ntwo\nthr")
    program = start_watch(request)
    seen = program.until(lambda event: "two" in event.get("lines", []))
    at = [event["at"] for event in seen if "at" in event][-1]
    assert at == "9"
    program.close()
    with log.open("ab") as file:
        file.write(b"ee\nfour\n")
    second = start_watch({**request, "from": {"r0": at}})
    assert lines(second.until(lambda event: "four" in event.get("lines", []))) == ["three", "four"]
    process.communicate()


def test_logs_without_follow_are_read_to_their_end(
    tmp_path: Path, engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    """Also lines that do not fit in the queue, and of a running rank."""
    request, process = process_rank(tmp_path, "read x")
    (tmp_path / "log").write_text("".join(f"{number}\n" for number in range(30_000)) + "cut")
    docker, path = engine
    docker.log.put(frame(b"of a container", 1))
    docker.log.put(None)
    both = {"ranks": [*request["ranks"], {"name": "r1", "runtime": "docker"}], "tail": 100_000, "follow": False}
    program = start_watch({**request, **both}, DOCKER_HOST=f"unix://{path}")
    seen = list(iter(lambda: program.events.get(timeout=LIMIT_S), None))
    assert program.process.wait(60) == 0
    assert sorted(lines(seen)) == sorted([*map(str, range(30_000)), "cut", "of a container"])
    assert "follow=0" in docker.queries[0]
    process.communicate()


def test_the_number_of_lines_per_document_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    watching = watch.Watch(docker_request())
    for _ in range(6000):
        watching.lines.put(("r0", "", "1", None))
    watching.emit_lines()
    sizes = [len(json.loads(line)["lines"]) for line in capsys.readouterr().out.splitlines()]
    assert sum(sizes) == 6000
    assert max(sizes) <= watch.BATCH_CHARACTERS / watch.PER_LINE + 1
