"""Certificates of workers, in real handshakes as the nodes' standard library makes them."""

from __future__ import annotations

import os
import socket
import ssl
import threading

import pytest

from sparkcluster.staging.keys import Key, new_key
from sparkcluster.staging.order import Begin


def context(side: int, own: Key, *trusted: Key) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_verify_locations(cadata="".join(key.certificate for key in trusted))
    file = os.memfd_create("key")
    os.write(file, (own.private + own.certificate).encode())
    made.load_cert_chain(f"/proc/self/fd/{file}")
    os.close(file)
    return made


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """What the client reads once both have proved their keys."""
    near, far = socket.socketpair()
    errors: list[Exception] = []

    def listen() -> None:
        try:
            with server.wrap_socket(near, server_side=True) as sock:
                sock.sendall(b"hello")
        except (OSError, ssl.SSLError) as error:
            errors.append(error)
            near.close()

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        with client.wrap_socket(far) as sock:
            return sock.recv(5)
    finally:
        far.close()
        thread.join(10)
        if errors and isinstance(errors[0], ssl.SSLError):
            raise errors[0]


def test_two_nodes_of_a_job_know_each_other_among_all_its_nodes():
    keys = [new_key() for _ in range(8)]
    server = context(ssl.PROTOCOL_TLS_SERVER, keys[0], *keys)
    assert shaken(server, context(ssl.PROTOCOL_TLS_CLIENT, keys[7], keys[0])) == b"hello"


@pytest.mark.parametrize("stranger", ["server", "client"])
def test_a_stranger_is_known_to_nobody(stranger):
    first, second, other = new_key(), new_key(), new_key()
    server = context(ssl.PROTOCOL_TLS_SERVER, other if stranger == "server" else first, second)
    client = context(ssl.PROTOCOL_TLS_CLIENT, other if stranger == "client" else second, first)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        assert shaken(server, client) == b"hello"


def test_a_certificate_passes_as_one_between_controller_and_worker_and_its_key_is_not_shown():
    key = new_key()
    begin = Begin(node="a", key="0" * 16, listen=(), token="ab" * 16, cert=key.certificate, private_key=key.private)
    assert begin.cert == key.certificate
    assert "PRIVATE" not in repr(key)
    assert key.private != new_key().private
