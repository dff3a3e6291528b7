"""The parts of the program by which nodes reach each other, and what all programs between nodes may be written in."""

from __future__ import annotations

import ast
import socket
import struct
import time
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


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(reach.__file__).parent.glob("*.py")))
def test_it_is_written_in_what_an_old_python_understands(name):
    ast.parse(source(name), feature_version=(3, 8))


def test_it_ends_by_itself_when_nobody_asks_it_any_more(node, monkeypatch):
    monkeypatch.setattr(reach, "LIFE_S", 0.05)
    node.listen()
    begin = time.monotonic()
    silent, never = socket.socketpair()
    with silent, never, silent.makefile("rb") as lines:
        node.serve(lines)
        assert time.monotonic() - begin < 10
        never.shutdown(socket.SHUT_RDWR)


def test_the_echo_answers_who_knows_the_token_with_the_size_alone(node):
    port = node.listen()["udp"]["127.0.0.1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(1)
        asking.sendto(b"who is there", ("127.0.0.1", port))
        node.turn(0.5)
        asking.sendto(reach_probes.HEAD.pack(bytes.fromhex("5a" * 16), 7, 0).ljust(4000, b"\0"), ("127.0.0.1", port))
        node.turn(0.5)
        data, _ = asking.recvfrom(1 << 16)
    assert reach_probes.HEAD.unpack(data) == (bytes.fromhex("5a" * 16), 7, 4000)
    assert node.heard_udp == {7}


def test_an_address_in_the_kernels_table():
    packed = struct.unpack("=I", socket.inet_aton("192.168.177.12"))[0]
    assert reach.endpoint(f"{packed:08X}:18EB") == ("192.168.177.12", 6379)


@pytest.mark.parametrize("data", [b"", b"\0", b"abc", bytes(range(256)), b"\xff" * 1473])
def test_the_checksum_of_a_packet_with_its_checksum_is_zero(data):
    head = struct.pack("!BBHHH", 8, 0, 0, 1, 2)
    whole = struct.pack("!BBHHH", 8, 0, reach_probes.checksum(head + data), 1, 2) + data
    assert reach_probes.checksum(whole) == 0


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
