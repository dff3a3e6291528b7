"""Receives the files that a worker lacks from other workers, in several streams.

Each stream claims the next missing file of the list (small files in groups), and requests it from the node to pull
from. If that node has no new data of a file, the file is skipped and retried later. If the node is silent for 5 s, or
its connection breaks, all streams continue at the next node, each at its current byte.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import os
import threading
import time
from typing import Any

from sparkcluster.node import tls, wire
from sparkcluster.node.files import SMALL_BYTES, Files
from sparkcluster.node.serve import Gate
from sparkcluster.node.shared import MOST_NAMED
from sparkcluster.node.sources import SILENT_S, STREAMS, Sources, Way
from sparkcluster.node.wire import Failed, link_errors

_DIAL_S = 4.0
_PAUSE_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # before retrying a node that had nothing new
_PART_BYTES = 1 << 18  # a broken connection may lose this much
_INVALID = "invalid answer from %s"


class Line:
    """A connection to a worker; both ends have proved that they know the token.

    Raises:
        Failed: of kind ``link``: no connection within ``limit_s``, or another program answers.
    """

    def __init__(self, to: Way, limit_s: float = _DIAL_S) -> None:
        self.to = to
        with link_errors("cannot connect to %s: no answer" % to.address, limit_s):
            if to.cert is None:
                self._line = http.client.HTTPConnection(to.address, to.port, timeout=limit_s)
            else:
                context = tls.dialer(to.cert)
                self._line = http.client.HTTPSConnection(to.address, to.port, timeout=limit_s, context=context)
            self._line.auto_open = 0
            self._line.connect()
        nonce = os.urandom(16).hex()
        proof = self.get("/", Nonce=nonce).headers.get("Proof", "")
        right = hmac.compare_digest(proof.encode(), wire.proof(to.token, b"listener", nonce.encode()).hex().encode())
        if not right or self._line.sock is None:
            self.close()
            raise Failed("link", "another program answers at %s, port %d" % (to.address, to.port))
        self._line.sock.settimeout(SILENT_S)

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        """The response to a request; its body must be read. Failed of kind ``link`` as above."""
        self.used = time.monotonic()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers["Authorization"] = "Bearer " + wire.proof(self.to.token, b"dialer", b"").hex()
        with link_errors("%s said nothing" % self.to.node, SILENT_S):
            self._line.request("GET", path, headers=headers)
            answer = self._line.getresponse()
        sized = answer.chunked if answer.status == 206 else answer.length is not None and not answer.chunked
        if answer.status not in (200, 204, 206, 412, 503) or not sized:
            raise Failed("link", "%s answers with %d at %s" % (self.to.node, answer.status, self.to.address))
        if answer.length == 0:
            answer.read()  # otherwise the next request is refused
        return answer

    def some(self, answer: http.client.HTTPResponse, view: memoryview) -> int:
        """Read the next bytes of a response into ``view``; return their number, 0 at the end."""
        self.used = time.monotonic()
        with link_errors("%s sent nothing" % self.to.node, SILENT_S):
            return answer.readinto(view)

    def fill(self, answer: http.client.HTTPResponse, view: memoryview) -> None:
        """Fill ``view`` completely with the next bytes of a response."""
        while view:
            size = self.some(answer, view)
            if not size:
                raise Failed("link", "%s closed the connection too early" % self.to.node)
            view = view[size:]

    def close(self) -> None:
        """Close the connection."""
        self._line.close()


class Receiver:
    """Receives what ``files`` lacks from ``sources``, in threads; sets ``arrived`` when nothing is missing.

    Attributes:
        received: bytes that arrived.
        first: when the first byte arrived (``time.monotonic``).
        wrong: files that arrived with a wrong SHA-256, with their source and that SHA-256.
        error: why it stopped.
    """

    def __init__(self, files: Files, gate: Gate, arrived: threading.Event) -> None:
        self.sources = Sources()
        self.received, self.first = 0, 0.0
        self.wrong: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._files, self._gate, self._arrived, self._lock = files, gate, arrived, threading.Lock()
        self._under_way: list[int] = []  # large files that were last seen arriving at a source with nothing else

    def start(self) -> None:
        """Start; nothing is received before ``sources`` are set."""
        for stream in range(STREAMS):
            threading.Thread(target=self._run, args=(stream,), daemon=True).start()

    def _run(self, stream: int) -> None:
        line: Line | None = None
        cursor = pauses = 0
        try:
            while True:
                self._gate.wait()
                to = self.sources.pick(stream) if self._files.lacking() else None
                begun, self._under_way = self._under_way, []
                numbers = self._files.claim(begun, cursor) if to is not None else []
                if not numbers or to is None:
                    line = _closed(line)
                    time.sleep(_PAUSE_S[min(pauses, len(_PAUSE_S) - 1)])
                    cursor, pauses = 0, pauses + 1
                    continue
                cursor, before, closings = numbers[-1] + 1, self.received, self._gate.closings
                try:
                    self._files.resume(numbers[0])
                    if line is not None and (line.to != to or time.monotonic() - line.used > SILENT_S):
                        line = _closed(line)
                    line = line or Line(to)
                    receive = self._large if self._files.listed[numbers[0]].size > SMALL_BYTES else self._small
                    receive(line, numbers, stream)
                except Failed as error:
                    line = _closed(line)
                    if error.kind != "link":
                        raise
                    if closings == self._gate.closings:  # else both ends were paused for another operator
                        self.sources.failed(to, str(error))
                finally:
                    self._files.give_back(numbers)
                if self.received != before:
                    pauses = 0
                else:
                    self.sources.empty(to.node, self._files.busy)
                if not self._files.lacking():
                    self._arrived.set()
        except Exception as error:
            self.error = self.error or error

    def _small(self, line: Line, numbers: list[int], _stream: int) -> None:
        answer = line.get("/" + ",".join(map(str, numbers)))
        if answer.status == 503:
            self._nothing(answer)
            return
        said = set(answer.headers.get("Files", "").split(","))
        here = [number for number in numbers if str(number) in said]
        if answer.status != 200 or answer.length != sum(self._files.listed[number].size for number in here):
            raise Failed("link", _INVALID % line.to.node)
        for number in here:
            data = bytearray(self._files.listed[number].size)
            line.fill(answer, memoryview(data))
            self._count(len(data))
            self._gate.wait()
            self._judge(numbers, number, line.to.node, self._files.take(number, data, line.to.node))

    def _large(self, line: Line, numbers: list[int], stream: int) -> None:
        (number,), node = numbers, line.to.node
        size, buffer = self._files.listed[number].size, memoryview(bytearray(_PART_BYTES))
        file = self._files.arriving(number)
        while file is None or file.at < size:
            if self.sources.pick(stream) != line.to:
                return
            at = file.at if file is not None else 0
            same = {"If_Match": file.version} if file is not None and at and file.sender == node else {}
            answer = line.get("/%d" % number, Range="bytes=%d-" % at, **same)
            if answer.status == 503:
                self._nothing(answer)
                return
            if answer.status == 412 and same and file is not None:
                file.restart()
                continue
            if answer.status != 206:
                raise Failed("link", _INVALID % node)
            file = file or self._files.write(number)
            file.sender, file.version = node, answer.headers.get("ETag", "")
            while got := line.some(answer, buffer[: max(1, min(_PART_BYTES, size - file.at))]):
                if file.at == size:
                    raise Failed("link", _INVALID % node)
                self._gate.wait()
                file.write(buffer[:got], node)
                self._count(got)
            if file.at == at:
                raise Failed("link", _INVALID % node)
        self._judge(numbers, number, node if file.sources == {node} else None, self._files.arrived(file))

    def _nothing(self, answer: http.client.HTTPResponse) -> None:
        """Handle that a node has nothing new: note its progress, and the files that are arriving there."""
        with contextlib.suppress(ValueError):
            self._files.moved(max(0.0, float(answer.headers.get("Age", ""))))
            under_way = [int(number) for number in answer.headers.get("Files", "").split(",") if number]
            self._under_way = [number for number in under_way if 0 <= number < len(self._files.listed)]

    def _judge(self, claimed: list[int], number: int, node: str | None, sha256: str) -> None:
        """Handle a complete file with its wrong ``sha256``, if any: a correct one is no longer claimed."""
        if sha256:
            self.record_wrong(number, node, sha256)
            return
        claimed.remove(number)
        if node:
            self.sources.right(node)

    def record_wrong(self, number: int, node: str | None, sha256: str) -> None:
        """Record a wrong file; ``node`` is None if an earlier run or another node may be at fault."""
        if node is None:
            return
        with self._lock:
            self.wrong = [*self.wrong, {"file": number, "from": node, "sha256": sha256}][-MOST_NAMED:]
        self.sources.corrupt(node)
        if self.sources.all_corrupt():
            text = "%s arrived with a wrong SHA-256 from every node"
            raise Failed("hash", text % self._files.listed[number].path)

    def _count(self, size: int) -> None:
        with self._lock:
            self.received += size
            self.first = self.first or time.monotonic()


def _closed(line: Line | None) -> Line | None:
    if line is not None:
        line.close()
    return None
