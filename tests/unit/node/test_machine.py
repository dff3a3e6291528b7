"""The machine module: addresses, the Docker engine's socket, and reasons of failures."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.node import network
from sparkcluster.node.machine import Machine, Unreadable


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves space for a socket's name (108 bytes)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def serve(path: Path, answers: list[bytes | None]) -> threading.Thread:
    """An engine on ``path`` that sends each answer once; None closes the connection."""
    path.parent.mkdir(parents=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def work() -> None:
        with listening:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    if answer is None:
                        # kept open until the client has given up
                        connection.recv(1)
                    else:
                        connection.sendall(answer)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def http(status: str, document: Any) -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(document)}".encode()


@pytest.fixture(autouse=True)
def no_docker_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)


def test_docker_answers_are_read_to_their_end(short_dir: Path) -> None:
    long = {"Labels": {str(number): "x" * 100 for number in range(5000)}}
    thread = serve(short_dir / "var/run/docker.sock", [http("200 OK", long), http("404 Not Found", {"message": "no"})])
    machine = Machine(str(short_dir))
    assert machine.docker_document("/info") == long
    assert machine.docker_document("/images/x/json") is None
    thread.join(5)


def test_a_hanging_engine_is_reported_within_the_limit(short_dir: Path) -> None:
    thread = serve(short_dir / "var/run/docker.sock", [None])
    with pytest.raises(Unreadable, match=r"^no answer within 0\.05 s: /var/run/docker\.sock$"):
        Machine(str(short_dir), docker_limit_s=0.05).docker_document("/info")
    thread.join(5)


def test_a_hanging_program_is_killed() -> None:
    with pytest.raises(Unreadable, match=r"no answer within 0\.05 s: sleep"):
        Machine().run(["sleep", "60"], limit_s=0.05)


def test_listening_sockets_are_named_with_their_processes() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as ipv4,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as ipv6,
    ):
        ports = {ipv4.getsockname()[1], ipv6.getsockname()[1]}
        found = {each["port"]: each for each in network.listeners(Machine()) if each["port"] in ports}
    assert {each["address"] for each in found.values()} == {"127.0.0.1", "::1"}
    assert all(each["process"] for each in found.values())


def test_addresses_of_all_interfaces_are_read() -> None:
    assert "127.0.0.1/8" in Machine().addresses()["lo"]
