"""TCP connections between nodes that start with a proof of a token, for measurements and guards; kinds of failures.

One node listens on its interconnect address, the other connects. Each proves that it knows the token, which both got
over SSH and which is never sent: the listener sends a nonce; the client answers with its own nonce and an HMAC of both;
the listener answers with its HMAC. Each role has its own prefix in the HMAC. Later data is neither encrypted nor
signed.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http.client
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, programs

STALL_S = 15.0
CHUNK = 1 << 20
GREETING_S = 2.0
_GREETERS = 64  # at the same time per address; a process may open 1024 files
_NONCE = 32

# Kinds of failures with a hint on the controller.
_KINDS = {
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.ENOTDIR: "tree",
    errno.EISDIR: "tree",
}

Check = Callable[[], None]


class Failed(programs.Failed):
    """An operation on a node failed; ``kind`` is for programs, the text for users."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def answer(request: dict[str, Any], stdin: BinaryIO, action: Callable[[Check], dict[str, Any]]) -> dict[str, Any]:
    """The ``outcome`` of ``action``, which starts under the lease of ``request`` and gets a function that checks it.

    The lease may expire meanwhile: the action ends when another operator requests the lease, not when ours is silent.
    """
    common.end_with(stdin)

    def begin() -> dict[str, Any]:
        common.check_epoch(request)
        return action(lambda: common.check_not_taken(request))

    return outcome(begin)


def outcome(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """``{"done": result}`` of ``action``, or ``refused``, or ``failed`` with a ``kind``; both have the reason."""
    try:
        return {"done": action()}
    except common.Refused as error:
        return {"refused": str(error)}
    except programs.Failed as error:
        return {"failed": str(error), "kind": error.kind}
    except OSError as error:
        return {"failed": because(error), "kind": _KINDS.get(error.errno or 0, "other")}


def because(error: OSError) -> str:
    """Text of a system error, with the file name."""
    text = (error.strerror or str(error)).lower()
    return text + (": %s" % error.filename if error.filename else "")


class Pace:
    """Reports the progress of a copy, and calls ``check`` (which may raise), once a second."""

    def __init__(self, total: int, check: Check) -> None:
        self.total = total
        self.done = 0
        self._check = check
        self._reported = 0.0

    def add(self, size: int = 0) -> None:
        """Count ``size`` more bytes."""
        self.done += size
        now = time.monotonic()
        if now - self._reported >= 1:
            self._reported = now
            self._check()
            common.emit({"bytes": self.done, "total": self.total})


@contextlib.contextmanager
def link_errors(silence: str, limit_s: float) -> Iterator[None]:
    """Turn errors of a broken connection, or of one that is silent for ``limit_s``, into ``Failed``."""
    try:
        yield
    except TimeoutError:
        raise Failed("link", "%s for %.0f s" % (silence, limit_s)) from None
    except OSError as error:
        raise Failed("link", "the connection broke: %s" % (error.strerror or error)) from None
    except http.client.HTTPException as error:
        raise Failed("link", "invalid answer: %s" % type(error).__name__) from None


class Greeter:
    """Listens on ``address``, on ``port`` (0: the kernel chooses), for clients that know ``token``.

    Other clients cannot delay them: many connections have ``GREETING_S`` for the proof at the same time.
    """

    def __init__(self, address: str, token: str, port: int = 0) -> None:
        try:
            self._listener = socket.create_server((address, port), backlog=_GREETERS)
        except OSError as error:
            raise Failed("link", "cannot listen on %s: %s" % (address, error.strerror)) from None
        self._listener.setblocking(False)
        self._token = token
        self._greeters: dict[socket.socket, tuple[bytes, float]] = {}
        self.port: int = self._listener.getsockname()[1]

    def poll(self, limit_s: float) -> list[socket.socket]:
        """The connections that proved the token, after at most ``limit_s``."""
        ready = set(select.select([self._listener, *self._greeters], [], [], limit_s)[0])
        proved, now = [], time.monotonic()
        for sock, (nonce, until) in list(self._greeters.items()):
            if sock in ready and _knows(sock, nonce, self._token):
                proved.append(sock)
                del self._greeters[sock]
            elif sock in ready or until < now:
                self._greeters.pop(sock)
                sock.close()
        with contextlib.suppress(OSError):  # no client is waiting, or it is gone
            for _ in range(32 if self._listener in ready else 0):
                _welcome(self._listener.accept()[0], self._greeters)
        return proved

    def close(self) -> None:
        """Stop listening, and close unproved connections."""
        for sock in (self._listener, *self._greeters):
            sock.close()


def accept(address: str, token: str, *, count: int, limit_s: float) -> list[socket.socket]:
    """Listen, print the port, and return ``count`` connections whose other end knows ``token``."""
    accepted: list[socket.socket] = []
    with contextlib.closing(Greeter(address, token)) as greeter:
        common.emit({"port": greeter.port})
        until = time.monotonic() + limit_s
        while len(accepted) < count:
            if time.monotonic() > until:
                raise Failed("link", "no connection to %s within %.0f s" % (address, limit_s))
            accepted += greeter.poll(0.1)
    return accepted


def _welcome(sock: socket.socket, greeters: dict[socket.socket, tuple[bytes, float]]) -> None:
    """Send a nonce to a new connection, readable when its answer is complete; if too many wait, drop the oldest."""
    nonce = os.urandom(_NONCE)
    greeters[sock] = nonce, time.monotonic() + GREETING_S
    if len(greeters) > _GREETERS:
        oldest = next(iter(greeters))
        del greeters[oldest]
        oldest.close()
    sock.settimeout(GREETING_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2 * _NONCE)
    sock.send(nonce)


def _knows(sock: socket.socket, nonce: bytes, token: str) -> bool:
    """Whether the answer to ``nonce`` proves that the other end knows ``token``; if so, send our proof."""
    try:
        answer = sock.recv(2 * _NONCE)
        nonces = nonce + answer[:_NONCE]
        if not hmac.compare_digest(answer[_NONCE:], proof(token, b"dialer", nonces)):
            return False
        sock.sendall(proof(token, b"listener", nonces))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    except OSError:
        return False
    return True


def proof(token: str, role: bytes, nonces: bytes) -> bytes:
    """Proof that its creator knows ``token``: an HMAC of its ``role`` and the ``nonces`` of both ends."""
    return hmac.new(token.encode(), b"sparkcluster " + role + b"\0" + nonces, "sha256").digest()


def dial(address: str, port: int, token: str, source: str = "", limit_s: float = STALL_S) -> socket.socket:
    """Connect to a node that listens and knows ``token``, from address ``source`` if given.

    Raises Failed if there is none; each step may take ``limit_s``.
    """
    try:
        with contextlib.ExitStack() as unproved:
            sock = socket.create_connection((address, port), timeout=limit_s, source_address=(source, 0))
            unproved.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _NONCE)
            nonces = sock.recv(_NONCE) + os.urandom(_NONCE)
            sock.sendall(nonces[-_NONCE:] + proof(token, b"dialer", nonces))
            if hmac.compare_digest(sock.recv(_NONCE), proof(token, b"listener", nonces)):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                unproved.pop_all()
                return sock
    except OSError as error:
        why = error.strerror or "no answer within %.0f s" % limit_s
        raise Failed("link", "cannot connect to %s: %s" % (address, why.lower())) from None
    raise Failed("link", "another program answers at %s, port %d" % (address, port))
