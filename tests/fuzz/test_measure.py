"""Measurements of a link against a peer that knows the token and then sends anything."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.node import measure, wire

from .conftest import cases, limited


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "STALL_S", 1.0)
    monkeypatch.setattr(wire, "STALL_S", 1.0)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 5)
        return near, listener.accept()[0]


def ends(count: int, sent: list[bytes]) -> tuple[list[socket.socket], list[socket.socket]]:
    """Connections whose other ends have sent something and closed."""
    pairs = [connected() for _ in range(count)]
    for (_, far), data in zip(pairs, [*sent, *[b""] * count], strict=False):
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
    return [near for near, _ in pairs], [far for _, far in pairs]


@cases(80, 1000)
@given(sent=st.lists(st.binary(max_size=300), max_size=3), reset=st.booleans())
def test_a_receiver_counts_what_came_or_fails(monkeypatch: pytest.MonkeyPatch, sent: list[bytes], reset: bool) -> None:
    near, far = ends(3, sent)
    if reset:
        far[-1].close()
    monkeypatch.setattr(measure, "accept", lambda *_, **__: near)
    try:
        with limited():
            found = measure.receive({"address": "127.0.0.1", "token": "t", "streams": 2})
    except wire.Failed:
        assert not any(sent[1:]) or reset
    else:
        assert found["bytes"] == sum(map(len, sent[1:]))
        assert found["seconds"] >= 0
    for sock in (*near, *far):
        sock.close()


@cases(80, 1000)
@given(answer=st.binary(max_size=300), messages=st.integers(0, 6))
def test_a_sender_measures_or_fails(monkeypatch: pytest.MonkeyPatch, answer: bytes, messages: int) -> None:
    near, far = ends(2, [answer])
    waiting = iter(near)
    monkeypatch.setattr(measure, "dial", lambda *_: next(waiting))
    request: dict[str, Any] = {"address": "a", "port": 1, "token": "t", "source": "", "streams": 1,
                               "messages": messages + 1, "seconds": 0.0}  # fmt: skip
    reader = threading.Thread(target=drain, args=(far[1],))
    reader.start()
    try:
        with limited():
            found = measure.send(request)
    except wire.Failed:
        assert len(answer) < 64 * (messages + 1)
    else:
        assert found["latency_ms"] >= 0
    for sock in near:
        sock.close()
    reader.join(10)
    for sock in far:
        sock.close()


@pytest.mark.parametrize("role", ["receive", "send"])
def test_a_silent_peer_ends_a_measurement(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    near, far = zip(*(connected() for _ in range(2)), strict=True)
    waiting = iter(near)
    monkeypatch.setattr(measure, "accept", lambda *_, **__: list(near))
    monkeypatch.setattr(measure, "dial", lambda *_: next(waiting))
    request: dict[str, Any] = {
        "address": "a",
        "port": 1,
        "token": "t",
        "source": "",
        "streams": 1,
        "messages": 1,
        "seconds": 0.0,
    }
    closing = threading.Timer(10, lambda: [sock.close() for sock in far])
    closing.start()
    with pytest.raises(wire.Failed, match="no data was sent or received for 1 s"):
        getattr(measure, role)(request)
    closing.cancel()
    for sock in (*near, *far):
        sock.close()


def drain(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 16):
            continue
    except OSError:
        return
