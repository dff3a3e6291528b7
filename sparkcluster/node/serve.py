"""Serves what a worker has, whole or growing, to other workers."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from sparkcluster.node import pieces, wire
from sparkcluster.node.growing_file import Growing, Grows, Store, Window
from sparkcluster.node.model_files import forget
from sparkcluster.node.tls import Identity
from sparkcluster.node.wire import CHUNK, INVALID, Failed

NEWS_S = 1.0  # for which more of a file is waited for, until its reader may want another one
_STREAM_NEWS_S = 0.05  # of a stream: its reader says meanwhile what it needs no longer
_READS_S = 30.0  # a node that reads nothing for so long is cut off
_ALIVE_S = 10.0  # of a stream, one that also says nothing meanwhile: its Docker may read nothing for long
_RECORD = 1 << 14  # bytes that TLS encrypts at once
_IDLE_S = 300.0  # one that wants nothing
_FREED_S = 0.5  # after which the kernel has freed what it sent last
_CONNECTIONS = 256
EVICT_BYTES, _SENDING_BYTES = 64 << 20, 16 << 20


class Gate:
    """Whether a worker may go on: closed while another operator has the lease, over when the job is.

    ``limit_bytes_s`` is the most that passes, over all connections.

    Attributes:
        most: bytes that are to pass at once.
    """

    def __init__(self, limit_bytes_s: int | None = None) -> None:
        self.open = threading.Event()
        self.open.set()
        self.over = False
        self._limit = limit_bytes_s
        # a reader hears of us several times a second, also where four connections share a low limit
        self.most = CHUNK if not limit_bytes_s else max(4096, min(CHUNK, limit_bytes_s // 16))
        self._free = time.monotonic()
        self._lock = threading.Lock()

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


class Server:
    """Listens, and sends of ``store`` what the other ends want.

    Attributes:
        ports: by address.
        served: bytes sent by the name of the node, as it said it.
        connections: how many there are now.
        error: why something that should be there could not be read.
    """

    def __init__(self, store: Store, gate: Gate, identity: Identity | None = None) -> None:
        self.ports: dict[str, int] = {}
        self.served: dict[str, int] = {}
        self.connections = 0
        self.error: Exception | None = None
        self._store = store
        self._gate = gate
        self._identity = identity
        self._greeters: list[wire.Greeter] = []
        self._lock = threading.Lock()

    def listen(self, address: str, token: str, *, tls: bool) -> None:
        """Greet on ``address`` until the job is over, in a thread; with ``tls`` connections are encrypted."""
        if tls and not self._identity:
            raise Failed("link", "cannot listen on %s: there is no certificate" % address)
        greeter = wire.Greeter(address, token)
        self.ports[address] = greeter.port
        threading.Thread(target=self._greet, args=(greeter, tls), daemon=True).start()

    def _greet(self, greeter: wire.Greeter, tls: bool) -> None:
        while not self._gate.over:
            for sock in greeter.poll(0.5):
                if self.connections < _CONNECTIONS:
                    with self._lock:
                        self.connections += 1
                    threading.Thread(target=self._talk, args=(sock, tls), daemon=True).start()
                else:
                    sock.close()
        greeter.close()

    def _talk(self, sock: socket.socket, tls: bool) -> None:
        try:
            sock.settimeout(_READS_S)
            if tls and self._identity:
                sock = self._identity.accept(sock)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # it ends a connection that takes nothing, whoever says at its other end that it is alive
                stream = self._store.known(0) and self._store.size(0) is None
                limit_s = self._store.patience_s if stream else _READS_S
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))
            _Line(sock, self._store, self._gate, self._count).talk()
        except (Failed, OSError) as error:
            if isinstance(error, Failed) and error.kind == "source":
                self.error = error
        finally:
            with self._lock:
                self.connections -= 1
            sock.close()

    def _count(self, name: str, size: int) -> None:
        with self._lock:
            if name in self.served or len(self.served) < _CONNECTIONS:
                self.served[name] = self.served.get(name, 0) + size


class _Line:
    """One connection of a server."""

    def __init__(self, sock: socket.socket, store: Store, gate: Gate, count: Callable[[str, int], None]) -> None:
        self._sock = sock
        self._store = store
        self._gate = gate
        self._count = count
        self._out = bytearray()
        self._buffer = bytearray()
        self._asked = pieces.Asked(sock)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._plain = type(sock) is socket.socket
        self._window: Window | None = None
        self._unread: list[tuple[Growing, int, int]] = []  # may still be on its way: then it cannot be dropped

    def talk(self) -> None:
        """Send what the other end wants until it closes the connection."""
        until = time.monotonic() + _IDLE_S
        try:
            while time.monotonic() < until and self._asked.hear(NEWS_S):
                self._gate.wait()
                if self._asked.wanted:
                    self._drop()
                while self._asked.wanted:
                    self._send(*self._asked.wanted.pop(0))
                    until = time.monotonic() + _IDLE_S
                self._flush()
        finally:
            unread = self._unread
            self._drop()
            if unread and not self._gate.over:
                time.sleep(_FREED_S)
                for each in unread:
                    _evict(*each)
            if self._window is not None:
                self._window.leave(self._asked.name)

    def _drop(self) -> None:
        """Drop from the page cache what the other end has read, as it wants more, or is gone."""
        for each in self._unread:
            _evict(*each)
        self._unread = []

    def _send(self, number: int, offset: int) -> None:
        if not self._store.known(number):
            raise Failed("link", INVALID)
        size = self._store.size(number)
        if size is not None and offset >= size:
            raise Failed("link", INVALID)
        try:
            grows = self._store.served(number)
        except OSError as error:
            raise Failed("source", wire.because(error)) from None
        if grows is None:
            self._head(number, offset, pieces.NOTHING)
        elif size is not None and size <= CHUNK:
            self._small(number, offset, size, grows)
        else:
            self._follow(number, offset, grows)

    def _small(self, number: int, offset: int, size: int, grows: Grows) -> None:
        """A file of one piece goes together with others, when it is whole."""
        if grows.at < size:
            self._head(number, offset, pieces.NOTHING)
            return
        data = grows.read(offset, size - offset)
        if len(data) != size - offset:
            raise Failed("source", "file %d was truncated while it was sent" % number)
        if isinstance(grows, Growing):
            _evict(grows, 0, size)
        self._head(number, offset, len(data))
        self._out += data
        self._sent(len(data))

    def _follow(self, number: int, offset: int, grows: Grows) -> None:
        """Send a file as it grows, until it is whole, or nothing came for a while."""
        if isinstance(grows, Window):
            grows.follow(self._asked.name, offset, self._asked.tail)
            self._window = grows
        evicted = offset
        while offset != grows.size:
            there = self._news(grows, offset)
            if there <= offset:
                break
            size = min(there - offset, self._gate.most)
            self._head(number, offset, size)
            self._body(grows, offset, size)
            self._sent(size)
            offset += size
            if isinstance(grows, Growing) and offset - evicted >= EVICT_BYTES:
                _evict(grows, evicted, offset - _SENDING_BYTES)
                evicted = offset - _SENDING_BYTES
        if isinstance(grows, Growing):
            self._unread.append((grows, evicted, offset))
        if offset != grows.size:
            self._head(number, offset, pieces.NOTHING)
        elif isinstance(grows, Window):
            self._head(number, offset, pieces.WHOLE)
        self._flush()

    def _news(self, grows: Grows, offset: int) -> int:
        """How much is there when there is more than ``offset``, or after a while."""
        if not isinstance(grows, Window):
            return grows.wait(offset, NEWS_S)
        self._hear(grows)
        return grows.wait(offset, _STREAM_NEWS_S)

    def _head(self, number: int, offset: int, size: int) -> None:
        self._out += pieces.header(number, offset, size)
        if len(self._out) >= CHUNK:
            self._flush()

    def _sent(self, size: int) -> None:
        self._count(self._asked.name, size)
        if self._gate.most < CHUNK:
            self._flush()
        self._gate.take(size)

    def _flush(self, flags: int = 0) -> None:
        if self._out and self._window is not None:
            self._push(self._window)
        elif self._out:
            with wire.link_errors("the other node has read nothing"):
                self._sock.sendall(self._out, *([flags] if flags else []))
            self._out = bytearray()

    def _push(self, window: Window) -> None:
        """Send to a node that may take nothing for long, as long as it says what it needs of the stream."""
        rest, alive = memoryview(bytes(self._out)), time.monotonic()
        self._out = bytearray()
        both = select.poll()
        both.register(self._sock, select.POLLIN | select.POLLOUT)
        while rest:
            ready = dict(both.poll(1000)).get(self._sock.fileno(), 0)
            if ready & ~select.POLLOUT:
                self._hear(window)
            if ready & select.POLLOUT:
                with wire.link_errors("the other node has read nothing"):
                    rest = rest[self._sock.send(rest if self._plain else rest[:_RECORD]) :]
            if ready:
                alive = time.monotonic()
            elif time.monotonic() - alive > _ALIVE_S:
                raise Failed("link", "the other node has given no sign of life for %.0f s" % _ALIVE_S)

    def _hear(self, window: Window) -> None:
        """What the other end freed makes room for more."""
        if not self._asked.hear(0):
            raise Failed("link", "the other node closed the connection")
        window.free(self._asked.name, self._asked.tail)

    def _body(self, grows: Grows, offset: int, size: int) -> None:
        if not isinstance(grows, Growing):
            while size:
                data = grows.read(offset, size)
                if not data:
                    raise Failed("source", "a file was truncated while it was sent")
                self._out += data
                offset, size = offset + len(data), size - len(data)
            self._flush()
            return
        if not self._plain:
            self._encrypted(grows, offset, size)
            return
        self._flush(socket.MSG_MORE)
        while size:
            with wire.link_errors("the other node has read nothing"):
                try:
                    sent = os.sendfile(self._sock.fileno(), grows.fd, offset, size)
                except BlockingIOError:
                    if not self._writable.poll(_READS_S * 1000):
                        raise TimeoutError from None
                    continue
                except OSError as error:
                    if error.errno == errno.EIO:  # of the disk: no socket says that
                        raise Failed("source", "a file cannot be read: %s" % wire.because(error)) from None
                    raise
            if not sent:
                raise Failed("source", "a file was truncated while it was sent")
            offset, size = offset + sent, size - sent

    def _encrypted(self, grows: Growing, offset: int, size: int) -> None:
        """Send a part of a file through one buffer.

        With new memory for each part this took 1.6 s of the processor for 1 GB, where TLS alone takes 0.4 s.
        """
        self._flush()
        self._buffer = self._buffer or bytearray(CHUNK)
        with memoryview(self._buffer) as view:
            while size:
                try:
                    found = os.preadv(grows.fd, [view[:size]], offset)
                except OSError as error:
                    raise Failed("source", "a file cannot be read: %s" % wire.because(error)) from None
                if not found:
                    raise Failed("source", "a file was truncated while it was sent")
                with wire.link_errors("the other node has read nothing"):
                    self._sock.sendall(view[:found])
                offset, size = offset + found, size - found


def _evict(grows: Growing, begin: int, end: int) -> None:
    """Drop what was sent from the page cache."""
    with contextlib.suppress(OSError):
        forget(grows.fd, begin, end - begin)
