"""No socket on all addresses: tested with real sockets of a real program that tries every way."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkcluster.node import agent, bind
from sparkcluster.node.machine import Machine
from sparkcluster.node.network import wildcards

SOCKETS = """
import json, socket, sys
def name(family, address, port):
    one = socket.socket(family)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    one.bind((address, port))
    one.listen()
    return one.getsockname()[0]
print(json.dumps([
    name(socket.AF_INET, "0.0.0.0", 0), name(socket.AF_INET6, "::", 0), name(socket.AF_INET, "127.0.0.1", 0),
    name(socket.AF_INET6, "::1", 0), name(socket.AF_INET, "0.0.0.0", int(sys.argv[1])),
]))
"""

# Each way prints its port and waits, or "refused" if the kernel or the library refuses.
VICTIM = """
import ctypes, os, platform, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
BIND, LISTEN = {"x86_64": (49, 50), "aarch64": (200, 201)}[platform.machine()]
four, six = lambda: socket.socket(), lambda: socket.socket(socket.AF_INET6)
def unbound(s): s.listen()
def written(address):
    def way(s):
        s.bind((address, 0))
        s.listen()
    return way
def named(name):
    def way(s):
        if libc.bind(s.fileno(), name, len(name)):
            raise OSError(ctypes.get_errno(), "bind")
        s.listen()
    return way
def half_raw(s):
    libc.syscall(BIND, s.fileno(), bytes([2, 0]) + bytes(14), 16)
    s.listen()
def raw(name):
    def way(s):
        libc.syscall(BIND, s.fileno(), name, len(name))
        libc.syscall(LISTEN, s.fileno(), 5)
    return way
made, way = {
    "four": (four, written("")), "six": (six, written("::")), "mapped": (six, written("::ffff:0.0.0.0")),
    "unbound": (four, unbound), "unbound six": (six, unbound), "unspecified family": (four, named(bytes(16))),
    "short name": (six, named(bytes([10]) + bytes(23))), "bound by the kernel": (four, half_raw),
    "mptcp": (lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262), written("")),
    "raw": (four, raw(bytes([2, 0]) + bytes(14))), "raw six": (six, raw(bytes([10, 0]) + bytes(26))),
    "raw mapped": (six, raw(bytes([10, 0]) + bytes(16) + bytes([255, 255]) + bytes(8))),
}[sys.argv[1]]
try:
    s = made()
    way(s)
    print(s.getsockname()[1], flush=True)
except OSError as error:
    print("refused", error, flush=True)
sys.stdin.read()
"""


def names(env: dict[str, str], port: int = 0) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SOCKETS, str(port)], env=env, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a rank whose address is 127.0.0.5."""
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": "/lib/none.so"}
    folder = str(tmp_path_factory.mktemp("rank"))
    assert bind.confine(env, "127.0.0.5", [], folder, folder) == "127.0.0.5"
    return env


@contextlib.contextmanager
def victim(way: str, env: dict[str, str]) -> Iterator[str]:
    argv = [sys.executable, "-c", VICTIM, way]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def reached(address: str, port: str) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((address, int(port)), 5):
        return True
    return False


@pytest.mark.parametrize(
    "way", ["four", "six", "mapped", "unbound", "unbound six", "unspecified family", "short name", "mptcp"]
)
def test_every_way_to_bind_to_all_addresses_binds_to_the_nodes_address_only(way: str, env: dict[str, str]) -> None:
    with victim(way, env) as port:
        if way == "mptcp" and "not supported" in port:
            return  # a kernel without it lacks this way
        assert reached("127.0.0.5", port)
        elsewhere = reached("127.0.0.1", port)
    assert not elsewhere or reached("127.0.0.1", port), "not by another process, which has that port there"


def test_a_socket_bound_to_all_addresses_by_other_means_does_not_listen(env: dict[str, str]) -> None:
    with victim("bound by the kernel", env) as said:
        assert said.startswith("refused")


@pytest.mark.parametrize("way", ["raw", "raw six", "raw mapped"])
def test_a_socket_that_bypasses_the_library_is_reported_by_port_and_process(way: str, env: dict[str, str]) -> None:
    mark = "SPARKCLUSTER_RANK=1-abc"
    with victim(way, {**env, "SPARKCLUSTER_RANK": "1-abc"}) as port, victim(way, env) as other:
        assert reached("127.0.0.1", port)
        found = wildcards(Machine(), mark, [])
        assert list(found) == [int(port)]
        assert found[int(port)].startswith("python")
        assert wildcards(Machine(), mark, [int(port)]) == {}
        assert {int(port), int(other)} <= wildcards(Machine(), None, []).keys()


def test_explicit_addresses_are_unchanged(env: dict[str, str]) -> None:
    assert names(env) == ["127.0.0.5", "::ffff:127.0.0.5", "127.0.0.1", "::1", "127.0.0.5"]
    assert env["LD_PRELOAD"].split(":")[1] == "/lib/none.so"


def test_a_prebuilt_library_works_in_an_image_without_a_compiler(tmp_path: Path) -> None:
    agent.build_library({}, {"path": str(tmp_path / "bind.so")})
    assert (tmp_path / "bind.so").stat().st_mode & 0o777 == 0o644
    env = {"PATH": "/nowhere"}
    private = tmp_path / "private"
    private.mkdir()
    assert bind.confine(env, "127.0.0.6", [], str(tmp_path), str(private)) == "127.0.0.6"
    assert names({**env, "PATH": os.environ["PATH"]})[0] == "127.0.0.6"
    assert list(private.iterdir()) == []


def test_the_library_depends_on_no_c_library(tmp_path: Path) -> None:
    """A library built on Ubuntu is loaded in an image with musl or an older glibc."""
    assert bind.build(str(tmp_path / "bind.so"), os.environ) is None
    content = (tmp_path / "bind.so").read_bytes()
    assert b"libc.so" not in content
    assert b"GLIBC" not in content


def with_compiler(folder: Path, script: str) -> dict[str, str]:
    """An environment whose ``cc`` is a shell script in ``folder``."""
    compiler = folder / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_library_without_effect_is_not_used(tmp_path: Path) -> None:
    """The agent leaves an empty one if it has no compiler; the image's compiler may produce anything."""
    empty, private = tmp_path / "empty", tmp_path / "private"
    for folder in (empty, private):
        folder.mkdir()
    (empty / bind.BIND_FILE).touch()
    env = {"PATH": os.environ["PATH"]}
    assert bind.confine(env, "127.0.0.5", [], str(empty), str(private)) == "127.0.0.5"
    assert names(env)[0] == "127.0.0.5"
    env = with_compiler(tmp_path, 'while [ "$1" != -o ]; do shift; done\n: > "$2"')
    said = bind.confine(env, "127.0.0.5", [], str(empty), str(tmp_path))
    assert said == f"missing: {tmp_path / bind.BIND_FILE} was built but has no effect"
    assert "LD_PRELOAD" not in env
