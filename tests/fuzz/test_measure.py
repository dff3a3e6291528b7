"""Measurements of a link against a peer that knows the token and then sends anything."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.node import measure, wire

from .conftest import cases


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


@cases(30, 1000)
@given(sent=st.lists(st.binary(max_size=300), min_size=3, max_size=3))
def test_a_receiver_counts_what_came_or_fails(monkeypatch: pytest.MonkeyPatch, sent: list[bytes]) -> None:
    """The first connection is for round trips."""
    pairs = [connected() for _ in sent]
    for (_, far), data in zip(pairs, sent, strict=True):
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(measure, "accept", lambda *_, **__: [near for near, _ in pairs])
    try:
        found = measure.receive({"address": "127.0.0.1", "token": "t", "streams": 2})
    except wire.Failed:
        assert not any(sent[1:])
    else:
        assert found["bytes"] == sum(map(len, sent[1:]))
    for near, far in pairs:
        near.close()
        far.close()
