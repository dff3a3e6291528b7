"""Serves the files of a job by HTTP, both complete ones and files that are still arriving.

``GET /17`` with ``Range: bytes=A-`` returns large file 17 from byte A on, in chunks as it arrives: at most 64 MiB, less
if nothing arrives for a second. ``ETag`` is its version; with ``If-Match``, another version is answered by 412. ``GET
/12,13,15`` returns small files in sequence; ``Files`` lists the ones that are present. If there is nothing new, the
answer is 503 after at most two seconds, with the ``Age`` of the last progress here. Every request has a proof of the
job's token; so has the answer to ``GET /``, for the ``Nonce`` in the request.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http.server
import os
import re
import socket
import socketserver
import ssl
import threading
import time
from typing import Any, BinaryIO

from sparkcluster.node import wire
from sparkcluster.node.files import GROUP_BYTES, MOST_FILES, NEWS_S, SMALL_BYTES, Files
from sparkcluster.node.model_files import forget
from sparkcluster.node.wire import CHUNK, Failed

_SILENT_S = 15.0  # a client that is silent or does not read is disconnected
_RANGE_BYTES, _PART_BYTES = 64 << 20, 1 << 18
_NEWS_BYTES, _LITTLE_S = 1 << 20, 0.02  # avoids tiny chunks of a file that grows fast
_CONNECTIONS, _STRANGERS = 256, 64


class Gate:
    """Whether a worker may write: closed while another operator has the lease.

    It also limits the rate at which the worker sends: ``limit_bytes_s`` over all connections.

    Attributes:
        closings: how often it was closed.
        step: number of bytes to send at a time.
    """

    def __init__(self, limit_bytes_s: int | None = None) -> None:
        self.open = threading.Event()
        self.open.set()
        self.closings = 0
        # small enough for several chunks per second, even if four connections share a low limit
        self.step = max(4096, min(CHUNK, limit_bytes_s // 16)) if limit_bytes_s else 16 * CHUNK
        self._limit, self._free, self._lock = limit_bytes_s, time.monotonic(), threading.Lock()

    def close(self) -> None:
        """Pause writing."""
        self.closings += self.open.is_set()
        self.open.clear()

    def wait(self) -> None:
        """Return when the gate is open."""
        self.open.wait()

    def take(self, size: int) -> None:
        """Wait until ``size`` more bytes may be sent."""
        if self._limit:
            with self._lock:
                now = time.monotonic()
                self._free = max(self._free, now - 0.1) + size / self._limit
                pause = self._free - now
            time.sleep(max(0.0, pause))


class Server(socketserver.ThreadingTCPServer):
    """Serves ``files`` on ``address``, on a port that the kernel chooses, to clients that know ``token``.

    With ``context`` connections are encrypted. OSError if the node does not have the address.

    Attributes:
        known: connections of clients that proved the token.
        error: why a file could not be read.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, files: Files, gate: Gate, address: str, token: str, context: ssl.SSLContext | None) -> None:
        super().__init__((address, 0), _Handler)
        self.files, self.gate, self.token = files, gate, token
        self._expected = b"Bearer " + wire.proof(token, b"dialer", b"").hex().encode()
        self.known: set[socket.socket] = set()
        self.error: Exception | None = None
        self._context = context
        self._strangers: dict[socket.socket, None] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a client; clients that have not yet proved the token cannot block others."""
        request.settimeout(_SILENT_S)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = request
        if self._context is not None:
            line = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        self._strangers[line] = None
        for oldest in list(self._strangers)[:-_STRANGERS]:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        try:
            if self._context is not None:
                line.do_handshake()
            _Handler(line, client_address, self)
        finally:
            self._strangers.pop(line, None)
            self.known.discard(line)
            line.close()

    def knows(self, line: socket.socket, said: str | None) -> bool:
        """Whether a client that sent ``said`` has the token; also False beyond 256 clients."""
        if not hmac.compare_digest((said or "").encode(), self._expected):
            return False
        self._strangers.pop(line, None)
        self.known.add(line)
        return len(self.known) <= _CONNECTIONS


class _Handler(http.server.BaseHTTPRequestHandler):
    """A connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    _buffer = bytearray()
    _sent: tuple[BinaryIO, int, int] | None = None  # the part of a file that was sent last: first byte and end

    def finish(self) -> None:
        super().finish()
        self._forget()

    def _forget(self) -> None:
        """Drop what was sent last from the page cache: the client has read it."""
        if self._sent is not None:
            file, begin, end = self._sent
            with contextlib.suppress(OSError):
                forget(file.fileno(), begin, end - begin)

    def do_GET(self) -> None:
        """Answer a request."""
        if not self.server.knows(self.connection, self.headers.get("Authorization")):
            self.close_connection = True
            self._answer(401)
            return
        self._forget()
        try:
            numbers = [int(number) for number in re.findall(r"\d{1,10}", self.path)]
            if self.path == "/":
                nonce = self.headers.get("Nonce", "").encode()
                self._answer(204, Proof=wire.proof(self.server.token, b"listener", nonce).hex())
            elif self.path != "/" + ",".join(map(str, numbers)) or max(numbers) >= len(self.server.files.listed):
                self._answer(404)
            elif "Range" in self.headers:
                self._large(numbers[0])
            else:
                self._small(numbers)
        except (Failed, OSError) as error:
            self.close_connection = True
            if isinstance(error, OSError) and error.errno == errno.EIO:  # EIO comes from the disk, never from a socket
                error = Failed("source", "a file cannot be read: %s" % wire.because(error))
            if isinstance(error, Failed) and error.kind == "source":
                self.server.error = error

    def _answer(self, status: int, length: int = 0, **headers: str) -> None:
        self.send_response_only(status)
        chunked = status == http.HTTPStatus.PARTIAL_CONTENT
        headers |= {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(length)}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _large(self, number: int) -> None:
        files, found = self.server.files, re.fullmatch(r"bytes=(\d{1,20})-", self.headers["Range"])
        size = files.listed[number].size
        offset = int(found.group(1)) if found else size
        if offset >= size:
            self._answer(416)
            return
        file, version, there = self._there(number, offset)
        tag, end = '"%d"' % version, min(size, offset + _RANGE_BYTES)
        if self.headers.get("If-Match", tag) != tag:
            self._answer(412)
            return
        if file is None or there <= offset:
            self._nothing()
            return
        self._answer(206, ETag=tag, Content_Range="bytes %d-%d/%d" % (offset, end - 1, size))
        begin, now = offset, version
        while file is not None and now == version and offset < min(there, end):
            there = min(there, end)
            self._sent = file, begin, there
            self.wfile.write(b"%x\r\n" % (there - offset))
            self._send(file, offset, there)
            self.wfile.write(b"\r\n")
            offset = there
            if offset < end:
                file, now, there = self._there(number, offset)
        self.wfile.write(b"0\r\n\r\n")

    def _there(self, number: int, offset: int) -> tuple[BinaryIO | None, int, int]:
        """A file as far as it has arrived, its version, and its end; waits up to a second for more than ``offset``."""
        files = self.server.files
        arriving = files.arriving(number)
        if arriving is None:
            files.wait_for(number)
            arriving = files.arriving(number)
        if arriving is None:
            return self._opened(number), files.version(number), files.listed[number].size
        found = arriving.readable(offset, NEWS_S)
        return arriving.readable(offset + _NEWS_BYTES, _LITTLE_S) if found[2] > offset else found

    def _opened(self, number: int) -> BinaryIO | None:
        """A complete file; Failed if it should exist but cannot be read."""
        try:
            return self.server.files.reader(number)
        except OSError as error:
            raise Failed("source", wire.because(error)) from None

    def _small(self, numbers: list[int]) -> None:
        """Send the requested small files that are present, up to 4 MiB."""
        data, here, files = bytearray(), [], self.server.files
        numbers = numbers[:MOST_FILES]
        files.wait_for(*numbers)
        for number in numbers:
            size = files.listed[number].size
            file = self._opened(number) if size <= SMALL_BYTES and len(data) + size <= GROUP_BYTES else None
            if file is not None:
                with file:
                    data += file.read()
                    forget(file.fileno())
                here.append(str(number))
        if not here:
            self._nothing()
            return
        self._answer(200, len(data), Files=",".join(here))
        step = min(self.server.gate.step, _PART_BYTES)
        for at in range(0, len(data), step):
            part = data[at : at + step]
            self.server.gate.take(len(part))
            self.wfile.write(part)

    def _nothing(self) -> None:
        """Answer that there is nothing new: ``Files`` are arriving; ``Age`` is the time since the last progress."""
        files = self.server.files
        under_way = ",".join(map(str, files.under_way()))
        self._answer(503, Files=under_way, Age="%.1f" % (time.monotonic() - files.busy))

    def _send(self, file: BinaryIO, offset: int, end: int) -> None:
        encrypted = isinstance(self.connection, ssl.SSLSocket)
        most = min(self.server.gate.step, _PART_BYTES) if encrypted else self.server.gate.step
        while offset < end:
            size = min(end - offset, most)
            self.server.gate.take(size)
            sent = self._encrypted(file, offset, size) if encrypted else self.connection.sendfile(file, offset, size)
            if not sent:
                raise Failed("source", "a file was truncated while it was sent")
            offset += sent

    def _encrypted(self, file: BinaryIO, offset: int, size: int) -> int:
        """Send a part of a file through a reusable buffer.

        With a new buffer for each part, 1 GB took 1.6 s of CPU; TLS alone takes 0.4 s.
        """
        self._buffer = self._buffer or bytearray(_PART_BYTES)
        with memoryview(self._buffer) as view:
            found = os.preadv(file.fileno(), [view[:size]], offset)
            self.connection.sendall(view[:found])
        return found
