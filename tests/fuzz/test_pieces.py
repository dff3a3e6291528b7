"""What one worker sends another, at random: a file of the list arrives whole and right, or not at all."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.node import pieces, receive, serve, wire
from sparkcluster.node.growing import Store, Writing

from .conftest import cases, limited

SIZES = (300, 70_000, 2_500_000)


class Memory(Store):
    """Three files; what is written of them is kept."""

    def __init__(self) -> None:
        self.got: dict[int, bytes] = {}

    def missing(self):  # type: ignore[no-untyped-def]
        return iter(range(3))

    def size(self, number: int) -> int:
        return SIZES[number]

    def known(self, number: int) -> bool:
        return number < 3

    def served(self, number: int) -> None:
        return None

    def have(self) -> int:
        return 0

    def take(self, number: int, data: bytes) -> str:
        self.got[number] = data
        return ""

    def write(self, number: int) -> Writing:
        store = self

        class Part(Writing):
            at, size = 0, SIZES[number]

            def write(self, data: memoryview) -> None:
                self.at += len(data)
                assert self.at <= SIZES[number]

            def finish(self) -> str:
                store.got[number] = bytes(self.at)
                return ""

        return Part()


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 5)
        return near, listener.accept()[0]


HEADERS = st.tuples(
    st.sampled_from([0, 1, 2, 3, 1 << 31]),
    st.sampled_from([0, 1, 300, 1 << 20, 1 << 63]),
    st.sampled_from([0, 1, 300, 70_000, 1 << 20, (1 << 20) + 1, pieces.WHOLE]),
)
SENT = st.lists(st.one_of(HEADERS, st.binary(max_size=300)), max_size=6)


def encoded(message: tuple[int, int, int] | bytes) -> bytes:
    if isinstance(message, bytes):
        return message
    return pieces.header(*message) + bytes(min(message[2], (1 << 20) + 1) if message[2] != pieces.WHOLE else 0)


@cases(60, 1000)
@given(sent=SENT)
def test_whatever_a_source_sends_a_file_is_whole_or_not_there(sent: list[tuple[int, int, int] | bytes]) -> None:
    store, (near, far) = Memory(), pair()
    receiver = receive.Receiver(store, serve.Gate(), None, "b")
    line = pieces.Follower(near, 2.0)
    to = receive.Way("a", "127.0.0.1", 1, "", None)

    def send() -> None:
        with suppress(OSError):
            far.sendall(b"".join(map(encoded, sent)))
            far.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    with limited(), suppress(wire.Failed):
        for numbers in ([0, 1], [2]):
            receiver._receive(line, to, numbers)
    line.close()
    far.close()
    thread.join(10)
    assert {number: len(data) for number, data in store.got.items()}.items() <= dict(enumerate(SIZES)).items()
    assert receiver.error is None


FRAMES = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda kind, wants: kind + b"".join(pieces._WANT.pack(*each) for each in wants),
        st.sampled_from([b"w", b"t", b"n", b"x"]),
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1 << 40)), max_size=20),
    ),
)


@cases(60, 1000)
@given(frames=st.lists(FRAMES, max_size=6), noise=st.binary(max_size=50))
def test_whatever_a_node_wants_it_gets_files_of_the_list_or_is_cut_off(frames: list[bytes], noise: bytes) -> None:
    near, far = pair()
    for frame in frames:
        near.sendall(pieces._LENGTH.pack(len(frame)) + frame)
    near.sendall(noise)
    near.shutdown(socket.SHUT_WR)
    counted: list[int] = []
    with limited(), suppress(wire.Failed):
        serve._Line(far, Memory(), serve.Gate(), lambda _name, size: counted.append(size)).talk()
    far.close()
    answer = bytearray()
    with suppress(OSError):
        while data := near.recv(1 << 16):
            answer += data
    near.close()
    assert counted == []
    assert len(answer) % pieces._PIECE.size == 0, "headers alone: this node has nothing"
