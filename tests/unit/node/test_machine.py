"""The machine itself: netlink, the Docker engine's socket, and the reasons of failures."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.node import machine as module
from sparkcluster.node import network
from sparkcluster.node.machine import Machine, Unreadable, because


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (108 bytes)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def serve(path: Path, answers: list[bytes | None]) -> threading.Thread:
    """An engine on ``path`` that gives each answer once; None is a connection without one."""
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
                        # held until the client has given up
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
    assert machine.docker("/info") == (200, long)
    assert machine.docker("/images/x/json") == (404, {"message": "no"})
    thread.join(5)


def test_docker_host_may_name_another_socket(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    thread = serve(short_dir / "run/user/1000/docker.sock", [http("200 OK", {})])
    assert Machine(str(short_dir)).docker("/info") == (200, {})
    thread.join(5)
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    with pytest.raises(Unreadable, match=r"^DOCKER_HOST is tcp://10\.0\.0\.1:2375, and only unix:// can be read$"):
        Machine(str(short_dir)).docker("/info")


def test_a_hanging_engine_is_reported_within_the_limit(short_dir: Path) -> None:
    thread = serve(short_dir / "var/run/docker.sock", [None])
    with pytest.raises(Unreadable, match=r"^no answer within 0\.05 s: /var/run/docker\.sock$"):
        Machine(str(short_dir), docker_limit_s=0.05).docker("/info")
    thread.join(5)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.0 200 OK\r\n\r\n{"])
def test_other_servers_are_reported(short_dir: Path, answer: bytes) -> None:
    thread = serve(short_dir / "var/run/docker.sock", [answer])
    with pytest.raises(Unreadable, match=r"not a Docker engine: /var/run/docker\.sock"):
        Machine(str(short_dir)).docker("/info")
    thread.join(5)


def test_a_missing_and_a_stopped_engine_are_distinguished(short_dir: Path) -> None:
    with pytest.raises(Unreadable, match=r"no such file: /var/run/docker\.sock"):
        Machine(str(short_dir)).docker("/info")
    (short_dir / "var/run").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_dir / "var/run/docker.sock"))
    with pytest.raises(Unreadable, match=r"connection refused: /var/run/docker\.sock"):
        Machine(str(short_dir)).docker("/info")


def test_reasons_are_short_and_exact() -> None:
    assert because(PermissionError(13, "Permission denied"), "/var/run/docker.sock") == (
        "permission denied: /var/run/docker.sock"
    )
    assert because(OSError(22, "Invalid argument", "/sys/x")) == "invalid argument: /sys/x"
    assert because(ValueError("odd")) == "ValueError: odd"
    assert because(subprocess.TimeoutExpired("nvidia-smi", 3.0), "nvidia-smi") == "no answer within 3 s: nvidia-smi"


def test_a_hanging_program_is_killed() -> None:
    with pytest.raises(Unreadable, match=r"no answer within 0\.05 s: sleep"):
        Machine().run(["sleep", "60"], limit_s=0.05)


def test_output_of_a_failed_program() -> None:
    assert Machine().run(["sh", "-c", "echo broken >&2; exit 6"]) == (6, "broken\n")
    with pytest.raises(Unreadable, match=r"^no-such-program is not installed$"):
        Machine().run(["no-such-program"])


def test_addresses_agree_with_ip() -> None:
    if not shutil.which("ip"):
        pytest.skip("iproute2 is not installed here")
    listed = json.loads(subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True, check=True).stdout)
    expected = {
        each["ifname"]: [f"{info['local']}/{info['prefixlen']}" for info in each["addr_info"]]
        for each in listed
        if each.get("addr_info")
    }
    assert Machine().addresses() == expected


def test_listening_sockets_agree_with_proc_net() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as ipv4,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as ipv6,
    ):
        ports = {ipv4.getsockname()[1], ipv6.getsockname()[1]}
        netlink = {each for each in Machine().listening() if each[1] in ports}
        read = {each for each in network._listening(Machine()) if each[1] in ports}
        assert netlink == read
        assert {each[1] for each in netlink} == ports
        found = {each["port"]: each for each in network.listeners(Machine()) if each["port"] in ports}
    assert {each["address"] for each in found.values()} == {"127.0.0.1", "::1"}
    assert all(each["process"] for each in found.values())


def test_a_kernel_without_sock_diag_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NETLINK_SOCK_DIAG", 63)
    with pytest.raises(Unreadable, match=r": netlink$"):
        Machine().listening()


def test_identity_names_the_groups_of_this_process() -> None:
    identity = Machine().identity()
    assert identity["uid"] == os.getuid()
    assert len(identity["groups"]) == len({os.getgid(), *os.getgroups()})


def test_netlink_messages_that_end_early_end_the_reading() -> None:
    assert module._records(b"\0" * 40, "=LH", 16) == []
    assert module._records(b"\1\0\0\0rest", "=HH", 4) == []
