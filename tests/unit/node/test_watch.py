"""What the watch program reports of ranks, with a fake Docker engine, and real processes and files."""

import contextlib
import http.server
import json
import os
import queue
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.hosts.program import command
from sparkcluster.node import common, ranks, watch
from sparkcluster.node.machine import Machine
from sparkcluster.node.shared import BATCH_LINES

LIMIT_S = 10


class Engine:
    """A Docker engine with one container, as its API reports it."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = {"Status": "running", "Running": True, "StartedAt": "2026-11-21T03:00:00Z"}
        self.queries: list[str] = []
        self.log: queue.Queue[bytes | None] = queue.Queue()


def frame(text: bytes, stream: int = 1) -> bytes:
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
                body = json.dumps({"State": engine.state}).encode()
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
        argv, sent = command("watch", request, python=sys.executable)
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
        """Events up to and including the first that matches."""
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
        code = self.process.wait(timeout=5)
        assert self.process.stdout is not None
        self.reader.join(timeout=5)  # what is read must not be closed
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
        program.reader.join(timeout=5)
        for pipe in (program.process.stdin, program.process.stdout):
            assert pipe is not None
            pipe.close()


def lines(events: list[dict[str, Any]]) -> list[str]:
    return [line for event in events for line in event.get("lines", [])]


def state_is(name: str, state: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event.get("states", {}).get(name, {}).get("state") == state


def docker_request(**more: Any) -> dict[str, Any]:
    ranks = [{"name": "r0", "runtime": "docker", "rank_dir": "/nowhere"}]
    return {"ranks": ranks, "tail": 100, "follow": True, "interval_s": 0.4, **more}


def test_last_log_lines_come_before_the_exit_of_a_container(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    docker, path = engine
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{path}")
    docker.log.put(frame(b"one\ntw") + frame(b"o\n", 2))
    program.until(lambda event: "two" in event.get("lines", []))
    program.until(state_is("r0", "running"))
    docker.log.put(frame(b"last words"))
    docker.state = {"Status": "exited", "ExitCode": 137, "OOMKilled": True, "StartedAt": "2026-11-21T03:00:00Z"}
    docker.log.put(None)
    seen = program.until(state_is("r0", "exited"))
    assert lines(seen) == ["last words"]
    assert seen[-1]["states"]["r0"] == {"state": "exited", "exit_code": 137, "oom_killed": True}
    assert "tail=100" in docker.queries[0]
    assert program.close() == 0


def test_a_container_that_was_removed_is_gone(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    docker, path = engine
    docker.state = None
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{path}")
    assert program.until(state_is("r0", "gone"))[-1]["states"]["r0"] == {"state": "gone"}


def test_ticks_continue_while_docker_does_not_answer(start_watch: Callable[..., WatchProgram], tmp_path: Path) -> None:
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    seen = program.until(lambda event: event.get("tick") == 2)
    assert seen[-1]["states"]["r0"]["state"] == "unreadable"
    assert "no such file" in seen[-1]["states"]["r0"]["error"]


def test_log_of_a_restarted_container_is_not_repeated(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    docker, path = engine
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{path}")
    docker.log.put(frame(b"first life\n"))
    docker.log.put(None)
    program.until(lambda event: "first life" in event.get("lines", []))
    docker.state = {"Status": "running", "Running": True, "StartedAt": "2026-11-21T04:00:00.123Z"}
    docker.log.put(frame(b"second life\n"))
    program.until(lambda event: "second life" in event.get("lines", []))
    assert "since=1795233600" in docker.queries[-1]


def process_rank(tmp_path: Path, script: str) -> tuple[dict[str, Any], subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(["sh", "-c", script], stdout=log, stdin=subprocess.PIPE)
    record = {"name": "r0", "pid": process.pid, "start_ticks": common.start_ticks(process.pid)}
    (tmp_path / "rank.json").write_text(json.dumps(record))
    ranks = [{"name": "r0", "runtime": "process", "rank_dir": str(tmp_path)}]
    return {"ranks": ranks, "tail": 3, "follow": True, "interval_s": 0.4}, process


def test_a_process_is_followed_to_its_end(tmp_path: Path, start_watch: Callable[..., WatchProgram]) -> None:
    request, process = process_rank(tmp_path, "printf 'a\\nb\\nc\\nd\\n'; read x; printf '10%%\\r20%%\\rend'; exit 7")
    while (tmp_path / "log").stat().st_size < 8:
        assert process.poll() is None
    program = start_watch(request)
    seen = program.until(state_is("r0", "running"))
    assert lines(seen) == ["b", "c", "d"]
    assert process.stdin is not None
    process.stdin.close()
    (tmp_path / "exit").write_text(f"{process.wait(5)}\n")
    seen = program.until(state_is("r0", "exited"))
    assert lines(seen) == ["10%", "20%", "end"]
    assert seen[-1]["states"]["r0"]["exit_code"] == 7


def test_a_reused_pid_is_not_the_rank(tmp_path: Path) -> None:
    (tmp_path / "rank.json").write_text(json.dumps({"pid": os.getpid(), "start_ticks": 1}))
    watching = watch.Watch({"ranks": []})

    def state(path: Path) -> dict[str, Any]:
        return watching.state({"name": "r0", "runtime": "process", "rank_dir": str(path)})

    assert state(tmp_path) == {"state": "exited", "exit_code": None, "oom_killed": False}
    assert state(tmp_path / "none") == {"state": "gone"}


def test_a_process_with_a_damaged_record_is_over(tmp_path: Path) -> None:
    watching = watch.Watch({"ranks": []})
    rank = {"name": "r0", "runtime": "process", "rank_dir": str(tmp_path)}
    (tmp_path / "rank.json").write_text('{"pid": ')
    assert ranks.process(watching.machine, str(tmp_path))["state"] == "unknown"
    assert watching.state(rank) == {"state": "gone"}
    (tmp_path / "exit").write_text("9\n")
    assert watching.state(rank) == {"state": "exited", "exit_code": 9, "oom_killed": False}


def test_the_exit_code_of_a_process_that_exits_while_it_is_read(tmp_path: Path) -> None:
    class ExitsMeanwhile(Machine):
        def line(self, path: str) -> str | None:
            if path.startswith("/proc/"):
                (tmp_path / "exit").write_text("7\n")
            return super().line(path)

    (tmp_path / "rank.json").write_text(json.dumps({"pid": 2**22, "start_ticks": 1}))
    found = ranks.process(ExitsMeanwhile(), str(tmp_path))
    assert (found["state"], found["exit_code"], found["pid"]) == ("exited", 7, None)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("created", {}),
        ("running", {}),
        ("paused", {"exit_code": None, "oom_killed": True}),
        ("restarting", {"exit_code": 137, "oom_killed": True}),
        ("removing", {"exit_code": 137, "oom_killed": True}),
        ("exited", {"exit_code": 137, "oom_killed": True}),
        ("dead", {"exit_code": 137, "oom_killed": True}),
    ],
)
def test_the_exit_code_of_a_container(
    engine: tuple[Engine, str], monkeypatch: pytest.MonkeyPatch, status: str, state: dict[str, Any]
) -> None:
    docker, path = engine
    docker.state = {"Status": status, "ExitCode": 137, "OOMKilled": True}
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    assert watch.Watch({"ranks": []}).state({"name": "r0"}) == {"state": status, **state}


def test_all_lines_of_a_container_that_was_created_are_read_once_it_starts(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    docker, path = engine
    docker.state = {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"}
    docker.log.put(None)
    program = start_watch(docker_request(tail=2), DOCKER_HOST=f"unix://{path}")
    program.until(lambda event: event.get("tick") == 5)
    assert len(docker.queries) == 1
    docker.log.put(frame(b"1\n2\n3\n"))
    docker.state = {"Status": "running", "StartedAt": "2026-11-21T04:00:00.123Z"}
    program.until(lambda event: "3" in event.get("lines", []))
    assert "tail=all&since=1795233600" in docker.queries[1]


def test_the_log_of_a_container_ends_at_its_limit(engine: tuple[Engine, str], monkeypatch: pytest.MonkeyPatch) -> None:
    docker, path = engine
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    for _ in range(10):
        docker.log.put(frame(b"12345678\n"))
    docker.log.put(None)
    assert len(list(ranks.log_lines(Machine(), "r0", "tail=all", 5, 20))) == 3


def test_it_ends_when_its_input_closes(start_watch: Callable[..., WatchProgram], tmp_path: Path) -> None:
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    program.until(lambda event: "tick" in event)
    began = time.monotonic()
    assert program.close() == 0
    assert time.monotonic() - began < 10


def test_without_follow_it_reports_once_and_ends(tmp_path: Path, start_watch: Callable[..., WatchProgram]) -> None:
    request, process = process_rank(tmp_path, "echo only")
    process.communicate()
    program = start_watch({**request, "follow": False})
    assert program.process.stdin is not None
    program.process.stdin.close()
    seen = program.until(lambda event: "tick" in event)
    assert lines(seen) == ["only"]
    assert program.events.get(timeout=LIMIT_S) is None
    assert program.process.wait(5) == 0


def test_links_and_listening_are_reported(start_watch: Callable[..., WatchProgram], tmp_path: Path) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        request = docker_request(
            interfaces=["lo", "nosuch0"], engine_host="0.0.0.0", engine_port=server.server_address[1]
        )
        program = start_watch(request, DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
        seen = program.until(lambda event: event.get("listening") is True)
        server.shutdown()
    assert seen[-1]["links"] == {"lo": True, "nosuch0": False}


def test_a_container_is_followed_from_where_its_log_was(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    """The Docker engine gives whole lines of one moment again, and two lines are never of the same nanosecond."""
    docker, path = engine
    program = start_watch(docker_request(), DOCKER_HOST=f"unix://{path}")
    stamp = b"2026-11-21T03:00:0%d.00000000%dZ "
    docker.log.put(frame(stamp % (1, 1) + b"one\n") + frame(stamp % (1, 2) + b"50%\r60%\n"))
    seen = program.until(lambda event: "60%" in event.get("lines", []))
    assert lines(seen) == ["one", "50%", "60%"]
    at = [event["at"] for event in seen if "at" in event][-1]
    assert at == "2026-11-21T03:00:01.000000002"
    program.close()
    docker.log.put(None)
    second = start_watch(docker_request(**{"from": {"r0": at}}), DOCKER_HOST=f"unix://{path}")
    docker.log.put(frame(stamp % (1, 2) + b"50%\r60%\n") + frame(stamp % (1, 3) + b"two\n"))
    assert lines(second.until(lambda event: "two" in event.get("lines", []))) == ["two"]
    assert "timestamps=1&follow=1&tail=all&since=1795230001.000000002" in docker.queries[-1]


def test_lines_have_their_times_and_begin_at_one_where_that_is_asked_for(
    engine: tuple[Engine, str], start_watch: Callable[..., WatchProgram]
) -> None:
    docker, path = engine
    program = start_watch(docker_request(times=True, since=1795230000.7), DOCKER_HOST=f"unix://{path}")
    stamp = b"2026-11-21T03:00:0%d.500000000Z "
    docker.log.put(frame(stamp % 1 + b"one\n") + frame(stamp % 2 + b"50%\r60%\n"))
    seen = program.until(lambda event: "60%" in event.get("lines", []))
    assert [time for event in seen for time in event.get("times", [])] == [1795230001.5, 1795230002.5, 1795230002.5]
    assert docker.queries[-1].endswith("&tail=100&since=1795230000")


def test_a_log_file_is_followed_from_where_it_was(tmp_path: Path, start_watch: Callable[..., WatchProgram]) -> None:
    request, process = process_rank(tmp_path, "read x")
    log = tmp_path / "log"
    log.write_bytes(b"one\r\ntwo\nthr")
    program = start_watch(request)
    seen = program.until(lambda event: "two" in event.get("lines", []))
    at = [event["at"] for event in seen if "at" in event][-1]
    assert at == f"{log.stat().st_ino}:9"
    program.close()
    with log.open("ab") as file:
        file.write(b"ee\nfour\n")
    second = start_watch({**request, "from": {"r0": at}})
    assert lines(second.until(lambda event: "four" in event.get("lines", []))) == ["three", "four"]
    third = start_watch({**request, "from": {"r0": "1:9"}})
    assert lines(third.until(lambda event: "four" in event.get("lines", []))) == ["two", "three", "four"]
    process.communicate()


def test_other_nodes_are_tried_and_one_that_refuses_is_up(
    start_watch: Callable[..., WatchProgram], tmp_path: Path
) -> None:
    request = docker_request(peers={"near": "127.0.0.1", "nowhere": "no-such-host.invalid"})
    program = start_watch(request, DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    seen = program.until(lambda event: event.get("peers", {}).get("near") is not None)
    assert 0 <= seen[-1]["peers"]["near"] < 5
    assert seen[-1]["peers"]["nowhere"] is None


def test_a_node_whose_sshd_hangs_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an sshd accepts no more than its backlog, and then no connection of ours."""
    with contextlib.ExitStack() as stack:
        hung = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = hung.getsockname()[1]
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(watch, "_PEER_LIMIT_S", 0.3)
        monkeypatch.setattr(watch, "_PEER_PORTS", (port,))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        assert not watch.is_up("127.0.0.1")
        monkeypatch.setattr(watch, "_PEER_PORTS", (closed.getsockname()[1], port))
        assert watch.is_up("127.0.0.1")


def test_a_document_has_so_many_lines_that_reading_them_takes_no_time() -> None:
    watching = watch.Watch(docker_request())
    for _ in range(3 * BATCH_LINES):
        watching.lines.put(("r0", "", ""))
    sizes = [len(batch["lines"]) for _ in range(3) for batch in watching.batch(0)]
    assert sizes == [BATCH_LINES] * 3


@pytest.mark.parametrize(
    ("buffer", "whole", "rest"),
    [
        (b"", [], b""),
        (b"a\nb", ["a"], b"b"),
        (b"1%\r2%\r\n\n", ["1%", "2%"], b""),
        (b"x" * 5000 + b"\n", ["x" * 4096], b""),
        (b"x" * 5000, ["x" * 4096], b""),
        (b"\xff\n", ["\ufffd"], b""),
    ],
)
def test_lines_are_split_and_cut(buffer: bytes, whole: list[str], rest: bytes) -> None:
    assert ranks.split(buffer) == (whole, rest)
