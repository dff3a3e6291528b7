"""Authenticated conversations between the guards of a cluster's nodes.

Caller and listener prove to each other that they have the cluster's token, over a nonce of each and their names. Every
line after that has a code over its number and direction, under a key of this conversation: who lacks the token can
neither say anything nor repeat, reorder or drop what was said. Nothing is encrypted, and nothing secret is said.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

LINE_BYTES = 1 << 16
GREETING_S = 5.0
_CALLER, _LISTENER = "caller", "listener"


class Refused(Exception):
    """The other end is not who it should be, or has ended the conversation."""


class Forged(Refused):
    """What came was not said by who began the conversation."""


class Conversation:
    """Documents to and from one other guard, after both proved the token."""

    def __init__(self, lines: _Lines, key: bytes, role: str, other: str) -> None:
        self.other = other
        self._lines = lines
        self._key = key
        self._said, self._heard = 0, 0
        self._ours, self._theirs = (_CALLER, _LISTENER) if role == _CALLER else (_LISTENER, _CALLER)

    def say(self, document: dict[str, Any]) -> None:
        """Send a document."""
        body = json.dumps(document)
        self._said += 1
        self._lines.write({"body": body, "code": self._code(self._ours, self._said, body)})

    def hear(self, limit_s: float) -> dict[str, Any]:
        """The next document; Refused where there is none within ``limit_s``, or its code is wrong."""
        line = self._lines.read(time.monotonic() + limit_s)
        self._heard += 1
        body, code = line.get("body"), line.get("code")
        if not isinstance(body, str) or not _same(code, self._code(self._theirs, self._heard, body)):
            raise Forged("a line in the name of %s has a wrong code" % self.other)
        document = json.loads(body)
        if not isinstance(document, dict):
            raise Refused("%s sent no JSON object" % self.other)
        return document

    def ask(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a document and return the next one that comes."""
        self.say(document)
        return self.hear(limit_s)

    def close(self) -> None:
        """End the conversation."""
        self._lines.close()

    def _code(self, role: str, number: int, body: str) -> str:
        return _hash(self._key, "line", [role, number, body])


class _Lines:
    """JSON objects on a socket, one a line."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    def write(self, document: dict[str, Any]) -> None:
        try:
            self._sock.settimeout(GREETING_S)
            self._sock.sendall(json.dumps(document).encode() + b"\n")
        except OSError as error:
            raise Refused("the connection broke: %s" % (error.strerror or "it took too long")) from None

    def read(self, until: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            try:
                self._sock.settimeout(max(until - time.monotonic(), 0.001))
                chunk = self._sock.recv(LINE_BYTES)
            except OSError as error:
                raise Refused("no answer: %s" % (error.strerror or "it took too long")) from None
            if not chunk:
                raise Refused("the other end closed the connection")
            self._buffer += chunk
            if len(self._buffer) > LINE_BYTES:
                raise Refused("a line is too long")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            document = json.loads(line.decode())
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise Refused("not a JSON object")
        return document

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def call(
    address: tuple[str, int], token: bytes, *, cluster: str, name: str, other: str, source: str = ""
) -> Conversation:
    """A conversation of node ``name`` with the guard of ``other``, which listens at ``address``.

    Raises:
        Refused: it cannot be reached, or does not have the token.
    """
    until = time.monotonic() + GREETING_S
    try:
        sock = socket.create_connection(address, GREETING_S, (source, 0) if source else None)
    except OSError as error:
        raise Refused("not reachable at %s: %s" % (address[0], (error.strerror or "no answer").lower())) from None
    lines = _Lines(sock)
    try:
        return _called(lines, token, [cluster, name, other], until)
    except BaseException:
        lines.close()
        raise


def _called(lines: _Lines, token: bytes, said: list[Any], until: float) -> Conversation:
    cluster, name, other = said
    said.append(os.urandom(32).hex())
    lines.write({"cluster": cluster, "from": name, "to": other, "nonce": said[-1]})
    answer = lines.read(until)
    said.append(answer.get("nonce"))
    if not _same(answer.get("proof"), _hash(token, _LISTENER, said)):
        raise Refused("who answers for %s does not have the cluster's token" % other)
    lines.write({"proof": _hash(token, _CALLER, said)})
    return Conversation(lines, _key(token, said), _CALLER, other)


def answer(sock: socket.socket, token: bytes, *, cluster: str, name: str, peers: Iterable[str]) -> Conversation:
    """The conversation that one of ``peers`` began with node ``name`` over ``sock``.

    Raises:
        Refused: it is none of them, or does not have the token; the connection is closed.
    """
    lines = _Lines(sock)
    try:
        return _answered(lines, token, cluster, name, set(peers))
    except BaseException:
        lines.close()
        raise


def _answered(lines: _Lines, token: bytes, cluster: str, name: str, peers: set[str]) -> Conversation:
    until = time.monotonic() + GREETING_S
    first = lines.read(until)
    other = str(first.get("from"))
    if (first.get("cluster"), first.get("to")) != (cluster, name) or other not in peers:
        raise Refused("it is not for this node")
    said = [cluster, other, name, first.get("nonce"), os.urandom(32).hex()]
    lines.write({"nonce": said[-1], "proof": _hash(token, _LISTENER, said)})
    if not _same(lines.read(until).get("proof"), _hash(token, _CALLER, said)):
        raise Forged("the proof of the token is wrong")
    return Conversation(lines, _key(token, said), _LISTENER, other)


def serve(listener: socket.socket, accepted: Callable[[socket.socket, str], None]) -> None:
    """Pass every connection on, with the address that it comes from, until ``listener`` is closed."""
    while True:
        try:
            sock, (address, *_) = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(0.1)  # no descriptor is left, say
            continue
        try:
            accepted(sock, address)
        except Exception:  # of this connection: the next one is heard
            sock.close()


def _hash(key: bytes, purpose: str, said: Any) -> str:
    return hmac.new(key, json.dumps(["sparkcluster", purpose, said]).encode(), "sha256").hexdigest()


def _key(token: bytes, said: Any) -> bytes:
    return bytes.fromhex(_hash(token, "key", said))


def _same(found: Any, expected: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(errors="replace"), expected.encode())
