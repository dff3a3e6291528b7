"""One TCP connection between two nodes, opened with a token. Python 3.8, standard library only.

The sender listens on its interconnect address, on a port that the kernel chooses; the receiver connects and
sends the token, which both got over SSH. Messages are JSON documents, data is raw bytes of a known length or
frames. A side without progress for ``STALL_S`` gives up; one that fails closes the connection and reports the
cause to the controller.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import socket
import struct
import time
from typing import Any, BinaryIO, Callable, Iterator

from sparkcluster.node import common, programs

STALL_S = 15.0
CHUNK = 1 << 20
_LINE_LIMIT = 64 << 20
_FRAME = struct.Struct("!I")
_ENDED = 0xFFFFFFFE

# Kinds of failure for which the controller has a hint.
_KINDS = {
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
}

Check = Callable[[], None]


class Failed(programs.Failed):
    """A copy failed; ``kind`` is for programs, the text for users."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def answer(request: dict[str, Any], stdin: BinaryIO, action: Callable[[Check], dict[str, Any]]) -> dict[str, Any]:
    """Run ``action`` under the lease of ``request`` and answer ``done``, ``refused``, or ``failed`` with a kind."""
    common.end_with(stdin)

    def check() -> None:
        common.check_epoch(request["state_dir"], request["cluster"], request["epoch"])

    try:
        check()
        return {"done": action(check)}
    except common.Refused as error:
        return {"refused": str(error)}
    except programs.Failed as error:
        return {"failed": str(error), "kind": error.kind}
    except OSError as error:
        return {"failed": because(error), "kind": _KINDS.get(error.errno or 0, "other")}


def report(stdin: BinaryIO, action: Callable[[], Any], end: Callable[[int], None] = os._exit) -> None:
    """Emit the result of ``action`` as ``done``, or why it ``failed``, then ``end`` this program, or with its input."""
    common.end_with(stdin, end)
    try:
        common.emit({"done": action()})
    except (programs.Failed, common.Refused, common.Busy) as error:
        common.emit({"failed": str(error)})
    except OSError as error:
        common.emit({"failed": because(error)})
    end(0)


def because(error: OSError) -> str:
    """Text of a system error, with the file's name."""
    text = (error.strerror or str(error)).lower()
    return text + (": %s" % error.filename if error.filename else "")


class Pace:
    """Reports the progress of a copy and calls ``check`` (which may raise), once a second.

    A sender is quiet: the controller reads the receiver's output only, and a full pipe would block the sender.
    """

    def __init__(self, total: int, check: Any, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.total = total
        self.done = 0
        self._check = check
        self._reported = 0.0

    def add(self, size: int = 0, peer: Wire | None = None) -> None:
        """Count ``size`` more bytes; ``peer`` gets a keep-alive with each report."""
        self.done += size
        now = time.monotonic()
        if now - self._reported >= 1:
            self._reported = now
            self._check()
            if not self.quiet:
                common.emit({"bytes": self.done, "total": self.total})
            if peer is not None:
                peer.send_frame(b"")


@contextlib.contextmanager
def link_errors(silence: str) -> Iterator[None]:
    """Turn what a silent or broken connection raises into ``Failed``."""
    try:
        yield
    except socket.timeout:
        raise Failed("link", "%s for %.0f s" % (silence, STALL_S)) from None
    except OSError as error:
        raise Failed("link", "the connection broke: %s" % (error.strerror or error)) from None


class Wire:
    """A connection with a valid token."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(STALL_S)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_S * 1000))
        self.sock = sock
        self.reader = sock.makefile("rb", buffering=CHUNK)

    def close(self) -> None:
        """Close the connection."""
        self.reader.close()
        self.sock.close()

    def send(self, data: Any) -> None:
        """Send raw bytes."""
        with link_errors("the other node has read nothing"):
            self.sock.sendall(data)

    def send_file(self, file: Any, offset: int, size: int, pace: Pace) -> None:
        """Send ``size`` bytes of ``file`` from ``offset`` on, inside the kernel."""
        while size:
            with link_errors("the other node has read nothing"):
                sent = self.sock.sendfile(file, offset, min(size, 16 << 20))
            if not sent:
                raise Failed("source", "%s was truncated while it was sent" % file.name)
            offset += sent
            size -= sent
            pace.add(sent)

    def read_into(self, view: memoryview) -> int:
        """Fill some of ``view``; never 0."""
        with link_errors("received nothing"):
            size = self.reader.readinto1(view)  # type: ignore[attr-defined]
        if not size:
            raise Failed("link", "the other node closed the connection too early")
        return int(size)

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            view = view[self.read_into(view) :]
        return bytes(data)

    def send_line(self, document: Any) -> None:
        """Send a JSON document."""
        self.send_frame(json.dumps(document).encode())

    def read_line(self) -> Any:
        """Receive a JSON document."""
        while True:
            text = self.read_frame(_LINE_LIMIT)
            if text:
                return json.loads(text)

    def send_frame(self, data: bytes) -> None:
        """Send a document, or a piece of a stream of unknown length; an empty one is a keep-alive."""
        self.send(_FRAME.pack(len(data)) + data)

    def end_frames(self) -> None:
        """Mark the end of the stream."""
        self.send(_FRAME.pack(_ENDED))

    def read_frame(self, limit: int = 16 * CHUNK) -> bytes | None:
        """The next piece of at most ``limit`` bytes, None at the end."""
        size = _FRAME.unpack(self.read(_FRAME.size))[0]
        if size == _ENDED:
            return None
        if size > limit:
            raise Failed("link", "invalid message from the other node")
        return self.read(size)


def accept(address: str, token: str, *, count: int = 1, limit_s: float = 2 * STALL_S) -> list[socket.socket]:
    """Emit the port on which we listen, and return ``count`` connections whose other end knows ``token``."""
    try:
        listener = socket.create_server((address, 0), backlog=count + 3)
    except OSError as error:
        raise Failed("link", "cannot listen on %s: %s" % (address, error.strerror)) from None
    accepted: list[socket.socket] = []
    with listener:
        common.emit({"port": listener.getsockname()[1]})
        limit = time.monotonic() + limit_s
        while len(accepted) < count:
            listener.settimeout(max(0.05, limit - time.monotonic()))
            try:
                sock, _ = listener.accept()
            except socket.timeout:
                raise Failed("link", "no connection to %s within %.0f s" % (address, limit_s)) from None
            if knows(sock, token.encode()):
                accepted.append(sock)
            else:
                sock.close()
    return accepted


def knows(sock: socket.socket, token: bytes) -> bool:
    """Whether the other end of a new connection knows ``token``."""
    sock.settimeout(2)
    received = b""
    try:
        while len(received) < len(token):
            more = sock.recv(len(token) - len(received))
            if not more:
                break
            received += more
    except OSError:
        return False
    return hmac.compare_digest(received, token)


def listen(address: str, token: str) -> Wire:
    """Wait for the receiver that knows the token."""
    return Wire(accept(address, token)[0])


def dial(address: str, port: int, token: str, source: str = "") -> socket.socket:
    """A connection to a node that listens, from ``source`` if that matters."""
    try:
        sock = socket.create_connection((address, port), timeout=STALL_S, source_address=(source, 0))
        sock.sendall(token.encode())
    except OSError as error:
        why = error.strerror or "no answer within %.0f s" % STALL_S
        raise Failed("link", "cannot connect to %s: %s" % (address, why.lower())) from None
    return sock


def connect(address: str, port: int, token: str) -> Wire:
    """Connect to a sender."""
    return Wire(dial(address, port, token))
