"""What one worker wants of another, and the pieces that it gets."""

from __future__ import annotations

import socket

import pytest

from sparkcluster.node import pieces, wire


@pytest.fixture
def wanting():
    """Who wants files, the raw connection, and who hears what is wanted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        follower = pieces.Follower(socket.create_connection(listener.getsockname(), 20))
        far = listener.accept()[0]
    yield follower, far, pieces.Asked(far)
    follower.close()
    far.close()


def heard(asked, count):
    while len(asked.wanted) < count:
        assert asked.hear(20)
    return asked.wanted


def test_many_files_are_wanted_at_once_and_pieces_of_them_arrive(wanting):
    follower, far, asked = wanting
    wants = [(number, number << 33) for number in range(pieces.MOST_WANTED)]
    follower.want(wants)
    follower.free(1 << 40)
    assert heard(asked, len(wants)) == wants
    while not asked.tail:
        assert asked.hear(20)
    assert asked.tail == 1 << 40
    far.sendall(pieces.header(7, 1 << 33, 5) + b"abcde" + pieces.header(7, 5, pieces.NOTHING))
    assert follower.piece(7, 1 << 33) == 5
    assert follower.read(5) == b"abcde"
    assert follower.piece(7, 5) == pieces.NOTHING


@pytest.mark.parametrize("header", [(8, 0, 5), (7, 1, 5), (7, 0, (1 << 20) + 1), (7, 0, 0xFFFFFFFE)])
def test_a_piece_of_something_else_than_was_wanted_ends_the_connection(wanting, header):
    follower, far, _ = wanting
    far.sendall(pieces.header(*header))
    with pytest.raises(wire.Failed, match="invalid message from the other node"):
        follower.piece(7, 0)


@pytest.mark.parametrize("frame", [b"", b"x", b"w" + bytes(11), b"t", b"t" + bytes(9), b"w" + bytes(12 * 513)])
def test_a_message_that_no_honest_node_sends_ends_the_connection(wanting, frame):
    follower, _, asked = wanting
    follower.send_frame(frame)
    with pytest.raises(wire.Failed, match="invalid message from the other node"):
        heard(asked, 514)
