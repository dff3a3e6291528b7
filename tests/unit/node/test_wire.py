"""Connections of a copy or a measurement: both ends prove the token, and others delay or learn nothing."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time

import pytest

from sparkcluster.node import common, wire

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def listening(monkeypatch):
    """Starts a listener for ``count`` connections in a thread; returns its port, and a function that returns the accepted ones."""
    threads = []

    def start(count=1, limit_s=30.0):
        ready, found = threading.Event(), {}

        def emit(document):
            found.update(document)
            ready.set()

        def run():
            try:
                found["socks"] = wire.accept("127.0.0.1", TOKEN, count=count, limit_s=limit_s)
            except wire.Failed as error:
                found["error"] = error

        monkeypatch.setattr(common, "emit", emit)
        threads.append(threading.Thread(target=run))
        threads[-1].start()
        assert ready.wait(20)

        def accepted():
            threads[-1].join(60)
            if "error" in found:
                raise found["error"]
            return found["socks"]

        return found["port"], accepted

    yield start
    for thread in threads:
        thread.join(60)


@pytest.fixture
def silent():
    """Opens connections, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))


def close(*socks):
    for sock in socks:
        sock.close()


def test_silent_connections_do_not_delay_one_with_the_token(listening, silent, monkeypatch):
    monkeypatch.setattr(wire, "GREETING_S", 600)
    port, accepted = listening()
    for _ in range(200):
        silent(port)
    close(wire.dial("127.0.0.1", port, TOKEN), *accepted())


def test_of_too_many_unauthenticated_connections_the_oldest_is_dropped(listening, silent, monkeypatch):
    """select supports at most 1024 files."""
    monkeypatch.setattr(wire, "_GREETERS", 4)
    monkeypatch.setattr(wire, "GREETING_S", 60)
    port, accepted = listening()
    waiting = [silent(port) for _ in range(6)]
    assert [len(sock.recv(100)) for sock in waiting] == [32] * 6
    assert waiting[0].recv(1) == b""
    close(wire.dial("127.0.0.1", port, TOKEN), *accepted())


def test_a_flood_of_connections_does_not_delay_one_with_the_token(listening):
    port, accepted = listening()
    done = threading.Event()

    def flood():
        held = []
        while not done.wait(0.005):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 5))
            close(*held[:-100])
            del held[:-100]
        close(*held)

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        close(wire.dial("127.0.0.1", port, TOKEN), *accepted())
    finally:
        done.set()
        for thread in threads:
            thread.join(20)


def test_a_handshake_has_two_seconds_in_total(listening, silent):
    """A byte now and then does not extend it."""
    port, accepted = listening()
    slow = silent(port)
    assert len(slow.recv(100)) == 32

    def talk():
        for _ in range(240):
            slow.sendall(b"x")
            time.sleep(0.25)

    with pytest.raises(OSError):
        talk()
    close(wire.dial("127.0.0.1", port, TOKEN), *accepted())


def relayed(port, silent):
    """A listener that forwards its connection to ``port``, and a function that returns what each end sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen = [b"", b""]

    def run():
        with listener:
            near = listener.accept()[0]
        far = silent(port)
        with near:
            for place, source, target, size in ((1, far, near, 32), (0, near, far, 64), (1, far, near, 32)):
                data = source.recv(size, socket.MSG_WAITALL)
                seen[place] += data
                target.sendall(data)

    thread = threading.Thread(target=run)
    thread.start()

    def recorded():
        thread.join(20)
        return seen

    return listener.getsockname()[1], recorded


def test_the_token_is_never_sent_and_a_recorded_handshake_opens_no_second_connection(listening, silent):
    port, accepted = listening(count=2)
    outer, recorded = relayed(port, silent)
    wire.dial("127.0.0.1", outer, TOKEN).close()
    sent, received = recorded()
    assert (len(sent), len(received)) == (64, 64)
    assert TOKEN.encode() not in sent + received
    assert bytes.fromhex(TOKEN) not in sent + received
    replay = silent(port)
    replay.recv(32)
    replay.sendall(sent)
    assert replay.recv(1) == b""
    close(wire.dial("127.0.0.1", port, TOKEN), *accepted())


@pytest.mark.parametrize("answer", ["echo", "its own proof", "another token", "short", "long", "nothing"])
def test_a_peer_without_the_token_is_not_connected(listening, silent, answer):
    port, accepted = listening()
    sock = silent(port)
    nonce = sock.recv(32)
    proof = hmac.new(b"wrong", b"sparkcluster dialer\0" + nonce + nonce, "sha256").digest()
    answers = {
        "echo": nonce + nonce,
        "its own proof": nonce + hmac.new(b"", nonce, "sha256").digest(),
        "another token": nonce + proof,
        "short": nonce,
        "long": nonce + proof + bytes(5000),
        "nothing": b"",
    }
    sock.sendall(answers[answer])
    with contextlib.suppress(OSError):  # it may have been closed by now
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
    close(wire.dial("127.0.0.1", port, TOKEN), *accepted())


def impostor(answer):
    """A listener without the token: it sends ``answer(received)`` after a nonce."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        with listener, listener.accept()[0] as sock, contextlib.suppress(OSError):
            sock.sendall(bytes(32))
            sock.sendall(answer(sock.recv(64)))
            sock.recv(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return listener.getsockname()[1]


@pytest.mark.parametrize(
    "answer", [lambda got: got[32:], lambda got: got[:32], lambda got: bytes(32), lambda got: got * 2]
)
def test_a_listener_that_reflects_or_guesses_is_rejected(answer):
    with pytest.raises(wire.Failed, match="another program answers at 127"):
        wire.dial("127.0.0.1", impostor(answer), TOKEN)
