"""Faults between a Spark and the operator, some with a duration."""

import socket
import threading
from pathlib import Path

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.lab import faults
from sparkcluster.lab.faults import flip_byte
from sparkcluster.lab.sparks import Spark
from sparkcluster.lab.spec import plain
from sparkcluster.lab.state import State


@pytest.fixture
def ran(monkeypatch):
    """Commands that were run on a Spark."""
    commands = []
    monkeypatch.setattr(Spark, "run", lambda _, argv, **more: commands.append(list(argv)))
    return commands


@pytest.fixture
def spark():
    return Spark(State("id", "lab", Path("/nowhere"), 7, "stub", plain(2)), 0)


@pytest.mark.parametrize(("kind", "text"), [("silence", "soon"), ("ssh-hang", "0")])
def test_a_duration_that_is_not_a_number_changes_nothing(spark, ran, kind, text):
    with pytest.raises(UsageError, match="a time in seconds must be a number from 1"):
        faults.put(spark, kind, [text])
    assert ran == []


def sent_through(flips, payload):
    """The part of ``payload`` that arrives on a connection forwarded with ``flips``; real sockets."""
    (server, entry), (leave, client) = socket.socketpair(), socket.socketpair()
    ends = [
        threading.Thread(target=flip_byte.pass_on, args=(entry, leave, flips)),
        threading.Thread(target=lambda: (server.sendall(payload), server.close())),
    ]
    for each in ends:
        each.start()
    found = b"".join(iter(lambda: client.recv(1 << 20), b""))
    for each in ends:
        each.join(10)
    for each in (entry, leave, client):
        each.close()
    return found


def differing(found, payload):
    assert len(found) == len(payload)
    return [at for at, (one, other) in enumerate(zip(found, payload, strict=True)) if one != other]


def test_a_byte_is_flipped_once_in_the_first_connection_that_is_long_enough():
    flips, long = flip_byte.Flips(700_001, every=False), bytes(range(256)) * 4000
    assert differing(sent_through(flips, long[:700_001]), long[:700_001]) == []
    assert differing(sent_through(flips, long), long) == [700_001]
    assert differing(sent_through(flips, long), long) == []


def test_every_nth_byte_is_flipped_in_every_connection_independent_of_block_boundaries():
    flips, long = flip_byte.Flips(300_000, every=True), bytes(range(256)) * 4000
    for _ in range(2):
        assert differing(sent_through(flips, long), long) == [299_999, 599_999, 899_999]
    block = bytearray(10)
    flip_byte.Flips(3, every=True).change(block, 4)  # bytes 5 to 14: 6, 9 and 12 are third ones
    assert [at for at, byte in enumerate(block) if byte] == [1, 4, 7]


@pytest.mark.parametrize(
    ("words", "typed"),
    [(["mtu"], "mtu 1500"), (["disk-full", "x"], "disk-full")],
)
def test_a_hint_shows_the_argument_of_a_fault(spark, ran, words, typed):
    with pytest.raises(UsageError) as caught:
        faults.put(spark, words[0], words[1:])
    assert caught.value.hint == f"sparkcluster lab fault spark-0001 {typed}"
    assert ran == []
