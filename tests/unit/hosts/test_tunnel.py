"""A node's port on this machine, over a real sshd."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

import pytest

from sparkcluster.errors import HostError
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.tunnel import forwarded


@pytest.fixture
def engine():
    """The URL of a server that echoes each connection's first line."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer():
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(client,), daemon=True).start()

    def echo(client):
        with client:
            heard = b""
            while not heard.endswith(b"\n") and (chunk := client.recv(1 << 16)):
                heard += chunk
            client.sendall(heard)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


def connect(url):
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=20)


def test_both_directions_are_forwarded_until_the_node_closes(host, engine):
    document = bytes(range(11, 256)) * 20_000 + b"\n"  # more than the window of a channel and both sockets' buffers
    with forwarded(host, engine) as url:
        assert urlsplit(url).path == "/v1"
        for _ in range(2):
            with connect(url) as client:
                sender = threading.Thread(target=client.sendall, args=(document,))
                sender.start()
                sender.join(20)
                heard = b""
                while chunk := client.recv(1 << 16):
                    heard += chunk
            assert heard == document
    assert host.run(["true"]).ok


def test_connections_and_threads_end_with_the_with_block(host, engine):
    host.run(["true"])
    before = set(threading.enumerate())
    with forwarded(host, engine) as url:
        client = connect(url)
        client.sendall(b"a request that is never complete")
    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(url)
    ours = [each for each in set(threading.enumerate()) - before if "echo" not in each.name]
    for thread in ours:
        thread.join(10)
    assert not any(thread.is_alive() for thread in ours)


def test_an_sshd_that_forbids_forwarding_is_a_single_error_that_names_the_setting(start_sshd):
    server = start_sshd("sshd", "AllowTcpForwarding no")
    server.trust()
    refused = pytest.raises(HostError, match="dministratively prohibited")
    with server.host() as host, refused as caught, forwarded(host, "http://127.0.0.1:9/v1"):
        pass
    assert "AllowTcpForwarding yes" in caught.value.hint


def test_a_port_without_a_listener_is_an_error_before_any_request(host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(HostError, match=str(port)), forwarded(host, f"http://127.0.0.1:{port}/v1"):
        pass


def test_on_this_machine_the_url_is_used_without_a_tunnel():
    with forwarded(LocalHost("spark-1"), "http://10.0.0.1:8000/v1") as url:
        assert url == "http://10.0.0.1:8000/v1"
