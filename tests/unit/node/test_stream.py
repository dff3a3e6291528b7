"""A stream of unknown length, as an image is, from node to node through windows in memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time

import pytest

from sparkcluster.node import pieces, receive
from sparkcluster.node.growing_file import Store, Window, Writing
from sparkcluster.node.serve import Gate, Server

ADDRESS, TOKEN = "127.0.0.1", "ab" * 16
LIMIT = 2 << 20


class Stream(Store):
    """A store of one stream, of which a node that lacks it reads each byte itself as well, while ``reads`` is set."""

    streams = 1

    def __init__(self, *, lacks):
        self.window = Window(LIMIT)
        self.window.follow("own", 0)
        self.reads = threading.Event()
        self.reads.set()
        self.digest = hashlib.sha256()
        self.at = 0
        self.lacks = lacks
        if lacks:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while self.window.size != self.at:
            self.reads.wait()
            there = min(self.window.wait(self.at, 0.1), self.at + 300_000)
            self.digest.update(self.window.read(self.at, there - self.at))
            self.at = there
            self.window.free("own", self.at)

    def missing(self):
        return iter([0] if self.lacks else [])

    def size(self, number):
        return None

    def known(self, number):
        return number == 0

    def served(self, number):
        return self.window

    def write(self, number):
        return StreamWriting(self.window)

    def have(self):
        return self.window.at


class StreamWriting(Writing):
    def __init__(self, window):
        self.window, self.at, self.size = window, window.at, None

    def write(self, data):
        assert self.window.write(data, 60)
        self.at += len(data)

    def finish(self):
        self.window.end()
        return ""


@pytest.fixture
def nodes():
    """Makes nodes of a chain, each with its store, server and receiver."""
    gates = []

    def make(count):
        found = []
        for number in range(count):
            gates.append(Gate())
            store = Stream(lacks=number > 0)
            server = Server(store, gates[-1])
            server.listen(ADDRESS, TOKEN, tls=False)
            receiver = receive.Receiver(store, gates[-1], None, f"node{number}")
            receiver.start()
            found.append((store, server, receiver, gates[-1]))
        sources = [
            {"node": f"node{number}", "ways": [{"address": ADDRESS, "port": each[1].ports[ADDRESS], "token": TOKEN}]}
            for number, each in enumerate(found)
        ]
        for number, each in enumerate(found[1:], 1):
            each[2].sources.set(sources[:number][::-1])
        return found

    yield make
    for gate in gates:
        gate.end()


def feed(chain, data):
    window = chain[0][0].window

    def run():
        window.write(data[:100_000], 60)
        eventually(lambda: all(each[1].served for each in chain[:-1]))  # nobody comes after the first bytes are gone
        window.leave("own", 0)
        for at in range(100_000, len(data), 100_000):
            assert window.write(data[at : at + 100_000], 60)
        window.end()

    threading.Thread(target=run, daemon=True).start()


def eventually(condition, limit_s=90):
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def complete(node, data):
    store, _, receiver, _ = node
    eventually(lambda: receiver.error or store.at == len(data))
    assert receiver.error is None
    return store.digest.hexdigest() == hashlib.sha256(data).hexdigest()


def test_a_stream_longer_than_the_windows_reaches_every_node(nodes):
    chain, data = nodes(4), os.urandom(11 << 20)
    feed(chain, data)
    assert all(complete(each, data) for each in chain[1:])
    assert all(each[2].received == len(data) for each in chain[1:])


def test_who_reads_nothing_holds_the_others_up_and_nothing_is_lost(nodes):
    chain, data = nodes(3), os.urandom(9 << 20)
    chain[2][0].reads.clear()
    feed(chain, data)
    eventually(lambda: chain[2][0].window.at >= LIMIT - (1 << 20))
    assert chain[0][0].window.at <= 2 * LIMIT
    chain[2][0].reads.set()
    assert all(complete(each, data) for each in chain[1:])


def test_what_the_last_node_lacks_is_kept_while_the_one_before_it_wants_more(nodes):
    chain = nodes(1)
    window, port = chain[0][0].window, chain[0][1].ports[ADDRESS]
    window.write(b"abcd", 0)
    window.leave("own", 0)
    for _ in "connected", "connected again":
        with contextlib.closing(receive.dial(receive.Way("b", ADDRESS, port, TOKEN, None), None, 20, "b")) as line:
            for _ in "wanted", "wanted again":  # as it had nothing for a while
                line.free(1)  # the node after it has one byte
                line.want([(0, 4)])
                assert line.piece(0, 4) == pieces.NOTHING
            assert window.tail() == 1
    with contextlib.closing(receive.dial(receive.Way("c", ADDRESS, port, TOKEN, None), None, 20, "c")) as line:
        line.free(1)
        line.want([(0, 1)])
        assert line.piece(0, 1) == 3
        assert line.read(3) == b"bcd"


def test_the_last_node_goes_on_where_it_was_when_the_one_before_it_ends(nodes):
    chain, data = nodes(3), os.urandom(LIMIT)  # no window has to wait for the node that ended
    window = chain[0][0].window
    window.write(data[:100_000], 0)
    eventually(lambda: chain[2][0].window.at == 100_000)
    chain[1][3].end()  # its server closes all connections
    window.write(data[100_000:], 0)
    window.end()
    assert complete(chain[2], data)
    assert chain[2][2].sources.left()[0]["node"] == "node1"
    assert chain[2][2].received == len(data)
