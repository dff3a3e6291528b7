"""Messages about the files that one worker wants of another.

The end that dialled wants files, each from an offset on: many small ones, or one that may still grow. The other end
answers with pieces of at most ``wire.CHUNK`` bytes, in that order: a header, then the bytes. Of a file of which it has
nothing more, and gets nothing within a second, it says NOTHING; so no second passes without a header.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence

from sparkcluster.node import wire

MOST_WANTED = 512
NOTHING, WHOLE = 0, 0xFFFFFFFF  # in the place of a piece's size: no more for now, a stream ends here
_WANT = struct.Struct("!IQ")
_PIECE = struct.Struct("!IQI")
_TAIL = struct.Struct("!Q")
_LENGTH = struct.Struct("!I")


class Follower(wire.Wire):
    """The end of a connection that wants files and gets pieces of them."""

    def introduce(self, name: str) -> None:
        """Say which node this is, for the other's report."""
        self.send_frame(b"n" + name.encode())

    def want(self, files: Sequence[tuple[int, int]]) -> None:
        """Want these files, each from an offset on."""
        self.send_frame(b"w" + b"".join(_WANT.pack(*each) for each in files))

    def free(self, tail: int) -> None:
        """Say that nothing before ``tail`` is needed any longer, of a stream."""
        self.send_frame(b"t" + _TAIL.pack(tail))

    def piece(self, number: int, offset: int) -> int:
        """The size of the next piece, which is of that file at that offset; or NOTHING, or WHOLE.

        Those come without one: NOTHING if there is no more of the file for now, WHOLE where a stream ends.
        """
        found, begin, size = _PIECE.unpack(self.read(_PIECE.size))
        if (found, begin) != (number, offset) or wire.CHUNK < size != WHOLE:
            raise wire.Failed("link", wire.INVALID)
        return int(size)


class Asked:
    """What the other end of a connection wants, as far as it has arrived: read without waiting for the rest.

    Attributes:
        name: of the other node, as it says itself.
        wanted: files with offsets, in the order in which they are to be sent.
        tail: the first byte of a stream that it, or a node after it, still needs.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self.name = ""
        self.wanted: list[tuple[int, int]] = []
        self.tail = 0

    def hear(self, limit_s: float) -> bool:
        """Add what arrives within ``limit_s`` to ``wanted`` and ``tail``; False if the other end closed."""
        pending = getattr(self._sock, "pending", None)  # what TLS has decrypted already
        if not (pending and pending()) and not self._poll.poll(limit_s * 1000):
            return True
        with wire.link_errors("received nothing"):
            data = self._sock.recv(1 << 16)
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            size = _LENGTH.unpack_from(self._rest)[0]
            if not 0 < size <= 1 + _WANT.size * MOST_WANTED:
                raise wire.Failed("link", wire.INVALID)
            if len(self._rest) < _LENGTH.size + size:
                break
            self._add(bytes(self._rest[_LENGTH.size : _LENGTH.size + size]))
            del self._rest[: _LENGTH.size + size]
        return bool(data)

    def _add(self, message: bytes) -> None:
        kind, body = message[:1], message[1:]
        if kind == b"w" and len(body) % _WANT.size == 0 and len(self.wanted) < MOST_WANTED:
            self.wanted += _WANT.iter_unpack(body)
        elif kind == b"t" and len(body) == _TAIL.size:
            self.tail = _TAIL.unpack(body)[0]
        elif kind == b"n" and len(body) <= 253 and not self.name:
            self.name = body.decode(errors="replace")
        else:
            raise wire.Failed("link", wire.INVALID)


def header(number: int, offset: int, size: int) -> bytes:
    """What is sent before ``size`` bytes of a file at ``offset``; see ``Follower.piece``."""
    return _PIECE.pack(number, offset, size)
