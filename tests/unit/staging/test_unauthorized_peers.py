"""Unauthorized peers, or workers that lie, get nothing and change nothing; traffic off the rails is encrypted."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import socket
import threading

import pytest

from sparkcluster.node import receive, sources, wire
from sparkcluster.staging.copy_request import new_key
from tests.unit.staging.workers import ADDRESS, chain, content, eventually, written

MB = 1_000_000


@pytest.fixture
def pair(workers):
    """A worker with a file, a worker without it, and the list."""
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 3 * MB, "two.txt": 70_000})
    for each in (a, b):
        each.begin(files)
    return a, b, files


@pytest.mark.parametrize("said", [None, "Bearer ", "Bearer " + "0" * 64, "é"])
def test_a_request_without_the_token_gets_nothing(pair, said):
    a, b, _ = pair
    with contextlib.closing(http.client.HTTPConnection(ADDRESS, a.way()["port"], timeout=20)) as line:
        line.request("GET", "/0", headers={"Range": "bytes=0-", **({"Authorization": said} if said else {})})
        answer = line.getresponse()
        assert (answer.status, answer.read()) == (401, b"")
    chain((a, b))
    b.wait("done")


def test_a_peer_with_the_address_of_another_node_is_not_mistaken_for_it(pair):
    a, b, _ = pair
    b.order(look=[{"node": "c", **a.way(), "token": "0" * 32}, {"node": "a", **a.way()}])
    assert b.wait("reached") == {"a": [ADDRESS], "c": []}


def test_idle_connections_do_not_delay_a_copy(pair):
    a, b, _ = pair
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((ADDRESS, a.way()["port"]), 20))
        chain((a, b))
        b.wait("done")
    assert content(b.root) == content(a.root)


@pytest.mark.parametrize("path", ["/7", "/0,99999999999", "/../../etc/passwd", "/one.bin", "/0"])
def test_an_invalid_request_of_a_node_gets_nothing(pair, path):
    a, b, _ = pair
    line = receive.Line(sources.way("a", a.way()))
    with contextlib.suppress(wire.Failed):
        assert line.get(path, Range=f"bytes={1 << 60}-").length == 0
    line.close()
    chain((a, b))
    b.wait("done")


class LyingWorker(http.server.BaseHTTPRequestHandler):
    """A worker that knows the token, and answers with its server's attribute ``lie``."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/":
            self.send_response(204)
            nonce = self.headers["Nonce"].encode()
            self.send_header("Proof", wire.proof(self.server.token, b"listener", nonce).hex())
        else:
            status, headers, body = self.server.lie
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
        self.end_headers()
        if self.path != "/":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    "lie",
    [
        (206, {"Content-Length": "5"}, b"abcde"),  # and then repeatedly, without end
        (206, {"Content-Length": str(1 << 40)}, bytes(2 << 20)),
        (206, {"ETag": '"0"'}, os.urandom(100_000)),
        (200, {"Content-Length": "5", "Files": "99,x"}, b"abcde"),
        (200, {"Content-Length": "70000", "Files": "1"}, bytes(70_000)),
        (412, {"Content-Length": "0"}, b""),
        (302, {"Content-Length": "0", "Location": "http://127.0.0.1/"}, b""),
        (503, {"Content-Length": "3", "Age": "-1e300"}, b"abc"),
    ],
)
def test_a_source_with_false_data_changes_nothing_and_is_abandoned(pair, lie):
    a, b, _ = pair
    with http.server.ThreadingHTTPServer((ADDRESS, 0), LyingWorker) as server:
        server.lie, server.token, server.daemon_threads = lie, "ab" * 16, True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        way = {"address": ADDRESS, "port": server.server_port, "token": server.token}
        b.order(**{"from": [{"node": "liar", "ways": [way]}, a.source()]})
        b.wait("done")
        server.shutdown()
    assert content(b.root) == content(a.root)
    assert {each["node"] for each in b.said["left"]} == {"liar"}


@pytest.mark.parametrize("path", ["../x", "/tmp/x"])
def test_a_list_with_a_path_outside_writes_nothing(workers, path):
    """The controller sends none; the node does not rely on that."""
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


def encrypted(worker, files, own):
    certificate, private_key = own
    worker.begin(files, listen={ADDRESS: True}, cert=certificate, private_key=private_key)
    worker.wait("ports")
    assert private_key not in "".join(path.read_text() for path in worker.directory.iterdir())


def test_encrypted_data_cannot_be_read_in_transit(workers, keys, proxy):
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 3 * MB, "two.txt": 70_000})
    encrypted(a, files, keys[0])
    encrypted(b, files, keys[1])
    between = proxy(a.way()["port"], keep=True)
    way = {**a.way(cert=keys[0][0]), "port": between.port}
    b.order(look=[{"node": "a", **way}])
    assert b.wait("reached") == {"a": [ADDRESS]}
    b.order(**{"from": [{"node": "a", "ways": [way]}]})
    b.wait("done")
    assert content(b.root) == content(a.root)
    assert len(between.seen) > 3 * MB
    for path in a.root.iterdir():
        data = path.read_bytes()
        assert not any(data[at : at + 64] in between.seen for at in range(0, len(data) - 64, 50_000))


def test_a_different_certificate_gets_no_connection(workers, keys):
    a, b = workers(*"ab")
    files = written(a.root, {"one.bin": 3 * MB})
    encrypted(a, files, keys[0])
    encrypted(b, files, keys[1])
    cert, _ = keys[2]
    b.order(look=[{"node": "a", **a.way(cert=cert)}], **{"from": [a.source(cert=cert)]})
    eventually(lambda: b.said.get("left"))
    assert b.said["bytes"] == 0
    assert b.said["reached"] == {"a": []}
    assert not list(b.root.iterdir())
