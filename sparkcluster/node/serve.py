"""Serves the files of a job by HTTP, those that are whole and those that still arrive.

``GET /17`` with ``Range: bytes=A-`` is what there is of large file 17 from byte A on, in chunks as it arrives: 64 MiB
at most, less where nothing comes for a second. ``ETag`` is its version: with ``If-Match`` another one is answered with
412. ``GET /12,13,15`` are small files one after the other; ``Files`` says which of them are here. Where there is
nothing new, the answer is 503 after a second at most, with the ``Age`` of what moved here last. Every request has what
only who knows the job's token can make; so has the answer to ``GET /``, of the ``Nonce`` in that.
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
from collections.abc import Iterator
from typing import Any, BinaryIO

from sparkcluster.node import wire
from sparkcluster.node.files import GROUP_BYTES, MOST_FILES, NEWS_S, SMALL_BYTES, Files
from sparkcluster.node.model_files import forget
from sparkcluster.node.wire import CHUNK, Failed

_SILENT_S = 15.0  # a dialer that asks or reads nothing is cut off
_RANGE_BYTES, _PART_BYTES = 64 << 20, 1 << 18
_NEWS_BYTES, _LITTLE_S = 1 << 20, 0.02  # of a file that grows fast, no crumbs are sent
_CONNECTIONS, _STRANGERS = 256, 64


class Gate:
    """Whether a worker may go on: closed while another operator has the lease, over when the job is.

    ``limit_bytes_s`` is the most that passes, over all connections.

    Attributes:
        closings: how often it was closed.
        step: bytes that are to pass at once.
    """

    def __init__(self, limit_bytes_s: int | None = None) -> None:
        self.open = threading.Event()
        self.open.set()
        self.over = False
        self.closings = 0
        # a reader hears of us several times a second, also where four connections share a low limit
        self.step = max(4096, min(CHUNK, limit_bytes_s // 16)) if limit_bytes_s else 16 * CHUNK
        self._limit, self._free, self._lock = limit_bytes_s, time.monotonic(), threading.Lock()

    def close(self) -> None:
        """Let nobody pass for now."""
        self.closings += self.open.is_set()
        self.open.clear()

    def end(self) -> None:
        """Let nobody pass any more."""
        self.over = True
        self.open.set()

    def wait(self) -> None:
        """Return as soon as the gate is open; Failed if the job is over."""
        self.open.wait()
        if self.over:
            raise Failed("over", "the job has ended")

    def take(self, size: int) -> None:
        """Wait until ``size`` more bytes may be sent."""
        if self._limit:
            with self._lock:
                now = time.monotonic()
                self._free = max(self._free, now - 0.1) + size / self._limit
                pause = self._free - now
            if pause > 0:
                time.sleep(pause)
        self.wait()


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Serves ``files`` on ``address``, on a port that the kernel chooses, to who knows ``token``.

    With ``context`` connections are encrypted.

    Attributes:
        port: on which it listens.
        connections: how many dialers that proved the token are connected.
        error: why something that should be there could not be read.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, files: Files, gate: Gate, address: str, token: str, context: ssl.SSLContext | None) -> None:
        try:
            super().__init__((address, 0), _Handler)
        except OSError as error:
            raise Failed("link", "cannot listen on %s: %s" % (address, error.strerror)) from None
        self.files, self.gate, self.token = files, gate, token
        self._expected = b"Bearer " + wire.proof(token, b"dialer", b"").hex().encode()
        self.port: int = self.server_address[1]
        self.connections = 0
        self.error: Exception | None = None
        self._context = context
        self._strangers: dict[socket.socket, None] = {}
        self._sent: dict[socket.socket, tuple[BinaryIO, int, int]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self) -> None:
        """Bind, and look up no name, as ``HTTPServer`` would."""
        socketserver.TCPServer.server_bind(self)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Talk to a dialer; those that have not proved the token yet do not keep others out."""
        request.settimeout(_SILENT_S)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = request
        if self._context is not None:
            line = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._strangers[line] = None
            oldest = next(iter(self._strangers)) if len(self._strangers) > _STRANGERS else line
        try:
            with contextlib.suppress(OSError):
                if oldest is not line:
                    oldest.shutdown(socket.SHUT_RDWR)
            if self._context is not None:
                line.do_handshake()
            _Handler(line, client_address, self)
        finally:
            with self._lock:
                if line in self._strangers:
                    del self._strangers[line]
                else:
                    self.connections -= 1
            line.close()

    def knows(self, line: socket.socket, said: str | None) -> bool:
        """Whether a dialer that ``said`` this has the token."""
        if not hmac.compare_digest((said or "").encode(), self._expected):
            return False
        with self._lock:
            if line in self._strangers:
                del self._strangers[line]
                self.connections += 1
            return self.connections <= _CONNECTIONS

    def sent(self, line: socket.socket, file: BinaryIO, begin: int, end: int) -> None:
        """A part of ``file`` is on its way."""
        self._sent[line] = file, begin, end

    def forget(self, *lines: socket.socket) -> None:
        """Drop from the page cache what was sent last on ``lines``, or on all: it was read by now."""
        for line in lines or list(self._sent):
            file, begin, end = self._sent.pop(line, (None, 0, 0))
            if file is not None:
                with contextlib.suppress(OSError):
                    forget(file.fileno(), begin, end - begin)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection broke, which its other end sees; nothing is printed."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self._buffer = bytearray()

    def finish(self) -> None:
        super().finish()
        self.server.forget(self.connection)

    def log_message(self, *_: Any) -> None:
        """Nobody reads what it prints."""

    def do_GET(self) -> None:
        """Answer one request."""
        if not self.server.knows(self.connection, self.headers.get("Authorization")):
            self.close_connection = True
            self._answer(401)
            return
        self.server.forget(self.connection)  # who asks for more has read it
        try:
            self.server.gate.wait()
            if self.path == "/":
                nonce = self.headers.get("Nonce", "").encode()
                self._answer(204, Proof=wire.proof(self.server.token, b"listener", nonce).hex())
            elif re.fullmatch(r"/\d{1,10}", self.path) and "Range" in self.headers:
                self._large(int(self.path[1:]))
            elif re.fullmatch(r"/\d{1,10}(,\d{1,10})*", self.path):
                self._small([int(number) for number in self.path[1:].split(",")])
            else:
                self._answer(404)
        except (Failed, OSError) as error:
            self.close_connection = True
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
        size = files.listed[number].size if number < len(files.listed) else 0
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
            self.server.sent(self.connection, file, begin, there)
            self.wfile.write(b"%x\r\n" % (there - offset))
            self._send(file, offset, there)
            self.wfile.write(b"\r\n")
            offset = there
            if offset < end:
                file, now, there = self._there(number, offset)
        self.wfile.write(b"0\r\n\r\n")

    def _there(self, number: int, offset: int) -> tuple[BinaryIO | None, int, int]:
        """A file as far as it is here, its version, and where that ends: after ``offset``, if so in a second."""
        files = self.server.files
        files.wait_for(number)
        arriving = files.arriving(number)
        if arriving is None:
            return self._opened(number), files.version(number), files.listed[number].size
        found = arriving.readable(offset, NEWS_S)
        return arriving.readable(offset + _NEWS_BYTES, _LITTLE_S) if found[2] > offset else found

    def _opened(self, number: int) -> BinaryIO | None:
        """A file that is here whole; Failed if it should be, and cannot be read."""
        with _source_errors():
            return self.server.files.reader(number)

    def _small(self, numbers: list[int]) -> None:
        """Send of the first 4 MiB of small files those that are here."""
        data, here, files = bytearray(), [], self.server.files
        numbers = [number for number in numbers[:MOST_FILES] if number < len(files.listed)]
        files.wait_for(*numbers)
        for number in numbers:
            size = files.listed[number].size
            file = self._opened(number) if size <= SMALL_BYTES and len(data) + size <= GROUP_BYTES else None
            if file is not None:
                with file, _source_errors():
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
        """There is nothing new of that: ``Files`` arrive now, ``Age`` says how long ago something moved."""
        files = self.server.files
        under_way = ",".join(map(str, files.under_way()))
        self._answer(503, Files=under_way, Age="%.1f" % (time.monotonic() - files.busy))

    def _send(self, file: BinaryIO, offset: int, end: int) -> None:
        while offset < end:
            size = min(end - offset, self.server.gate.step)
            self.server.gate.take(size)
            try:
                if isinstance(self.connection, ssl.SSLSocket):
                    sent = self._encrypted(file, offset, size)
                else:
                    sent = self.connection.sendfile(file, offset, size)
            except OSError as error:
                if error.errno == errno.EIO:  # of the disk: no socket says that
                    raise Failed("source", "a file cannot be read: %s" % wire.because(error)) from None
                raise
            if not sent:
                raise Failed("source", "a file was truncated while it was sent")
            offset += sent

    def _encrypted(self, file: BinaryIO, offset: int, size: int) -> int:
        """Send some of a part of a file, through one buffer.

        With new memory for each part this took 1.6 s of the processor for 1 GB, where TLS alone takes 0.4 s.
        """
        self._buffer = self._buffer or bytearray(_PART_BYTES)
        with memoryview(self._buffer) as view:
            found = os.preadv(file.fileno(), [view[:size]], offset)
            self.connection.sendall(view[:found])
        return found


@contextlib.contextmanager
def _source_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed("source", wire.because(error)) from None
