"""Who is no worker of the job, or one that lies, gets nothing and changes nothing; what leaves the rail is encrypted."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest

from sparkcluster.node import pieces, wire
from sparkcluster.staging.keys import new_key
from tests.unit.staging.workers import ADDRESS, chain, content, eventually, written

MB = 1_000_000


@pytest.fixture
def pair(workers):
    """A worker that has a file, one that lacks it, and the list."""
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 3 * MB, "two.txt": 70_000})
    for each in (a, b):
        each.begin(files)
    return a, b, files


def read_all(sock):
    found = bytearray()
    sock.settimeout(20)
    with contextlib.suppress(OSError):
        while data := sock.recv(1 << 16):
            found += data
    return bytes(found)


def test_without_the_token_there_is_nothing(pair):
    a, b, _ = pair
    port = a.way()["port"]
    with pytest.raises(wire.Failed):
        wire.dial(ADDRESS, port, "0" * 32)
    with socket.create_connection((ADDRESS, port), 20) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n".ljust(64))
        assert len(read_all(sock)) == 32, "the nonce alone"
    chain((a, b))
    b.wait("done")


def test_idle_connections_do_not_delay_a_copy(pair):
    a, b, _ = pair
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((ADDRESS, a.way()["port"]), 20))
        chain((a, b))
        b.wait("done")
    assert content(b.root) == content(a.root)


def test_what_was_sent_before_opens_no_connection(pair, proxy):
    a, b, files = pair
    between = proxy(a.way()["port"], keep=True)
    b.order(**{"from": [{"node": "a", "ways": [{**a.way(), "port": between.port}]}]})
    b.wait("done")
    assert a.token.encode() not in between.seen
    # the source says what it served a moment later
    before = {"b": sum(entry["size"] for entry in files)}
    assert eventually(lambda: a.said["served"] == before)
    with socket.create_connection((ADDRESS, a.way()["port"]), 20) as sock:
        nonce = sock.recv(32)
        answers = [between.seen[at : at + 64] for at in range(32, 97, 32)]
        assert nonce not in between.seen
        sock.sendall(answers[0])
        assert read_all(sock) == b""
    assert a.said["served"] == before


@pytest.mark.parametrize(
    "frame",
    [
        b"w" + pieces._WANT.pack(7, 0),
        b"w" + pieces._WANT.pack(0, 1 << 63),
        b"w" + bytes(12 * 513),
        b"../../etc/passwd",
    ],
)
def test_a_node_that_wants_nonsense_is_cut_off_and_gets_nothing(pair, frame):
    a, b, _ = pair
    line = pieces.Follower(wire.dial(ADDRESS, a.way()["port"], a.token))
    line.introduce("x" * 200)
    line.send_frame(frame)
    assert read_all(line.sock) == b""
    line.close()
    chain((a, b))
    b.wait("done")
    assert set(eventually(lambda: a.said.get("served"))) == {"b"}


class Liar:
    """A worker that knows the token and answers each want with ``answer(wants)``."""

    def __init__(self, answer):
        self.token = "ab" * 16
        self.greeter = wire.Greeter(ADDRESS, self.token)
        self.answer = answer
        self.over = False
        threading.Thread(target=self._run, daemon=True).start()

    def source(self):
        return {"node": "liar", "ways": [{"address": ADDRESS, "port": self.greeter.port, "token": self.token}]}

    def _run(self):
        while not self.over:
            for sock in self.greeter.poll(0.1):
                threading.Thread(target=self._talk, args=(sock,), daemon=True).start()
        self.greeter.close()

    def _talk(self, sock):
        asked = pieces.Asked(sock)
        with contextlib.suppress(OSError, wire.Failed), sock:
            while asked.hear(20):
                if asked.wanted:
                    wants, asked.wanted = asked.wanted, []
                    sock.sendall(self.answer(wants))


@pytest.mark.parametrize(
    "answer",
    [
        lambda wants: pieces.header(99, 0, 5) + b"abcde",
        lambda wants: pieces.header(wants[0][0], wants[0][1], (1 << 20) + 1) + bytes(2 << 20),
        lambda wants: os.urandom(100_000),
        lambda wants: b"".join(pieces.header(*wants[0], 1 << 20) + bytes(1 << 20) for _ in range(9)),
    ],
)
def test_a_source_that_lies_changes_nothing_and_is_left(pair, answer):
    a, b, _ = pair
    liar = Liar(answer)
    b.order(**{"from": [liar.source(), a.source()]})
    b.wait("done")
    liar.over = True
    assert content(b.root) == content(a.root)
    assert {each["node"] for each in b.said["left"]} == {"liar"}


@pytest.mark.parametrize("path", ["../x", "/tmp/x"])
def test_a_list_with_a_path_to_elsewhere_writes_nothing(workers, path):
    """The controller sends none; the node does not count on that."""
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 70_000})
    a.begin(files)
    b.begin([{**files[0], "path": path}])
    b.wait("over")
    assert "not below" in b.said["failed"] or "invalid argument" in b.said["failed"]
    assert not b.root.parent.joinpath("x").exists()


@pytest.fixture
def keys():
    """Certificates and keys of three workers."""
    return [new_key() for _ in range(3)]


def encrypted(worker, files, own, known):
    listen = [{"address": ADDRESS, "tls": True}]
    worker.begin(files, listen=listen, cert=own.certificate, private_key=own.private)
    worker.order(certs=[each.certificate for each in known])
    worker.wait("ports")
    assert own.private not in "".join(path.read_text() for path in worker.directory.iterdir())


def test_what_is_encrypted_is_read_by_nobody_in_between(workers, keys, proxy):
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 3 * MB, "two.txt": 70_000})
    encrypted(a, files, keys[0], keys[:2])
    encrypted(b, files, keys[1], keys[:2])
    between = proxy(a.way()["port"], keep=True)
    way = {**a.way(cert=keys[0].certificate), "port": between.port}
    b.order(look=[{"node": "a", **way}], round=1)
    assert b.wait("reached") == {"a": [ADDRESS]}
    b.order(**{"from": [{"node": "a", "ways": [way]}]})
    b.wait("done")
    assert content(b.root) == content(a.root)
    assert len(between.seen) > 3 * MB
    for path in a.root.iterdir():
        data = path.read_bytes()
        assert not any(data[at : at + 64] in between.seen for at in range(0, len(data) - 64, 50_000))


@pytest.mark.parametrize("case", ["the source has another", "the receiver has another", "the receiver has none"])
def test_with_another_certificate_there_is_no_connection(workers, keys, case):
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 3 * MB})
    encrypted(a, files, keys[0], keys[:2])
    if case == "the receiver has none":
        b.begin(files)
    else:
        encrypted(b, files, keys[2 if case == "the receiver has another" else 1], keys)
    cert = keys[2 if case == "the source has another" else 0].certificate
    b.order(look=[{"node": "a", **a.way(cert=cert)}], round=1, **{"from": [a.source(cert=cert)]})
    eventually(lambda: b.said.get("left"))
    assert b.said["bytes"] == 0
    assert "served" not in a.said or a.said["served"] == {}
    assert not list(b.root.iterdir())
