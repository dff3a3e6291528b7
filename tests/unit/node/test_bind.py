"""No socket on all addresses: tried with real sockets of a real program."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.node import bind

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(compiler) for compiler in bind.COMPILERS), reason="no C compiler on this machine"
)

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


def names(env: dict[str, str], port: int = 0) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SOCKETS, str(port)], env=env, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


@needs_compiler
def test_any_address_becomes_the_nodes_own_and_named_ones_stay(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": "/lib/none.so"}
    assert bind.confine(env, "127.0.0.5", [], str(tmp_path)) == "127.0.0.5"
    assert names(env) == ["127.0.0.5", "::ffff:127.0.0.5", "127.0.0.1", "::1", "127.0.0.5"]
    assert env["LD_PRELOAD"].split(":")[1] == "/lib/none.so"


@needs_compiler
def test_an_open_port_may_listen_everywhere(tmp_path: Path, unused_tcp_port_number: int) -> None:
    port = unused_tcp_port_number
    env = {"PATH": os.environ["PATH"]}
    said = bind.confine(env, "127.0.0.5", [1, port], str(tmp_path))
    assert said == f"127.0.0.5, every address for port 1,{port}"
    assert names(env, port)[0] == "127.0.0.5"
    assert names(env, port)[4] == "0.0.0.0"


@pytest.fixture
def unused_tcp_port_number() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@needs_compiler
def test_the_second_rank_on_a_node_uses_what_the_first_built(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"]}
    bind.confine(env, "127.0.0.5", [], str(tmp_path))
    built = (tmp_path / "bind.so").stat().st_mtime_ns
    again = {"PATH": "/nowhere"}
    assert bind.confine(again, "127.0.0.6", [], str(tmp_path)) == "127.0.0.6"
    assert (tmp_path / "bind.so").stat().st_mtime_ns == built
    assert names({**again, "PATH": os.environ["PATH"]})[0] == "127.0.0.6"


def test_without_a_compiler_it_says_so_and_changes_nothing(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path)}
    said = bind.confine(env, "127.0.0.5", [], str(tmp_path))
    assert said.startswith("missing: no C compiler (cc, gcc, clang, tcc) in this image")
    assert env == {"PATH": str(tmp_path)}


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'cannot find as' >&2\nexit 3\n")
    compiler.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = bind.confine(env, "127.0.0.5", [], str(tmp_path))
    assert f"{compiler} exited with 3: cannot find as" in said
    assert "LD_PRELOAD" not in env
