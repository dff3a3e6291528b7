"""The parts of the program by which nodes reach each other, and what all programs between nodes may be written in."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

import pytest

from sparkcluster.hosts.program import source
from sparkcluster.node import reach, reach_probes

REQUEST = {
    "addresses": ["127.0.0.1"],
    "fixed": [],
    "token": "5a" * 16,
    "state_dir": "/nonexistent",
    "cluster": "atlas",
    "epoch": None,
    "limit_s": 0.3,
}


@pytest.fixture
def node():
    made = reach.Node(REQUEST)
    yield made
    for key in tuple(made.selector.get_map().values()):
        key.fileobj.close()
    made.selector.close()


def test_all_programs_are_written_in_what_an_old_python_understands():
    for path in Path(reach.__file__).parent.glob("*.py"):
        ast.parse(source(path.stem), feature_version=(3, 10))


def test_it_ends_by_itself_when_nobody_asks_it_any_more(node, monkeypatch):
    monkeypatch.setattr(reach, "LIFE_S", 0.05)
    node.listen()
    silent, never = socket.socketpair()
    with silent, never, silent.makefile("rb") as lines:
        node.serve(lines)
        never.shutdown(socket.SHUT_RDWR)


def test_a_port_whose_connection_was_tried_can_be_listened_on_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        tried = socket.create_connection(("127.0.0.1", port))
        taken, _ = listener.accept()
        reach_probes.drop(tried)
        taken.close()
    again = socket.socket()
    with again:
        again.bind(("127.0.0.1", port))
        again.listen()
