"""A file and a stream that grow while others follow them."""

from __future__ import annotations

import os
import threading

import pytest

from sparkcluster.node.growing_file import Growing, Window
from sparkcluster.node.wire import Failed


@pytest.fixture
def growing(tmp_path):
    return lambda at, size: Growing(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT), at, size)


def in_thread(action):
    """Runs ``action`` in a thread; a function that returns its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(action()))
    thread.start()

    def result():
        thread.join(20)
        assert not thread.is_alive()
        return found[0]

    return result


def test_who_follows_a_file_is_woken_by_the_next_bytes(growing):
    file = growing(0, 10)
    waited = in_thread(lambda: file.wait(0, 20))
    os.pwrite(file.fd, b"abcd", 0)
    file.grow(4)
    assert waited() == 4
    assert file.read(0, 4) == b"abcd"
    assert file.wait(2, 0) == 4


def test_a_window_keeps_what_one_of_its_readers_has_not_read():
    window = Window(limit=8)
    window.follow("own", 0)
    window.follow("c", 0)
    assert window.write(b"abcdef", 0)
    assert not window.write(b"ghi", 0)
    window.free("own", 6)
    assert not window.write(b"ghi", 0.01)
    assert window.tail() == 0
    written = in_thread(lambda: window.write(b"ghi", 20))
    window.free("c", 4)
    assert written()
    assert window.read(4, 5) == b"efghi", "around the end of the ring"
    assert window.tail() == 4
    with pytest.raises(Failed, match="only from byte 4 on"):
        window.read(3, 2)


def test_a_reader_that_was_cut_off_is_waited_for_only_so_long():
    window = Window(limit=4)
    window.follow("c", 0)
    assert window.write(b"abcd", 0)
    window.leave("c", keep_s=20)
    assert not window.write(b"e", 0)
    window.follow("d", 2)  # goes on in its place
    window.leave("c", keep_s=-1)
    assert window.write(b"ef", 0)
    assert window.read(2, 4) == b"cdef"
    with pytest.raises(Failed, match="only from byte 2 on"):
        window.follow("e", 1)
    with pytest.raises(Failed):
        window.follow("e", 7)


def test_a_node_cannot_free_what_was_not_written():
    window = Window(limit=4)
    window.follow("c", 0)
    window.write(b"ab", 0)
    window.free("c", 1 << 60)
    assert window.tail() == 2
    window.free("c", 1)
    assert window.tail() == 2, "nor take back what it freed"
