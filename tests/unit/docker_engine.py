"""A Docker engine for tests: a real HTTP server on a Unix socket with scripted answers."""

from __future__ import annotations

import http.server
import json
import os
import select
import signal
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from sparkcluster.node import common

Script = Iterable[dict[str, Any] | float | threading.Event | Callable[[], object]]


def layer(name: str, status: str, current: int = 0, total: int = 0, **more: Any) -> dict[str, Any]:
    """A document of the stream about one layer."""
    return {
        "status": status,
        "id": name,
        "progressDetail": {"current": current, "total": total} if current else {},
        **more,
    }


DONE = [{"status": "Digest: sha256:" + "ab" * 32}, {"status": "Status: Downloaded newer image for vllm:v1"}]


class Engine:
    """An engine at ``socket``.

    Attributes:
        scripts: output of the pulls, one script each: documents, pauses in seconds, events to wait for,
            functions to call.
        refusal: HTTP status and message with which it answers all pulls instead.
        pulls: query and header X-Registry-Auth of each pull.
        left: set when a client closed the connection of a pull before its end.
        documents: answers to GET, by path; None for 404.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.scripts: list[Script] = []
        self.refusal: tuple[int, str] | None = None
        self.pulls: list[tuple[dict[str, str], str | None]] = []
        self.left = threading.Event()
        self.documents: Callable[[str], Any] = lambda _path: None
        self._server = _Server(str(socket), _Handler)
        self._server.engine = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.socket.unlink(missing_ok=True)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    engine: Engine


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        found = self.server.engine.documents(unquote(self.path))
        self._say(404 if found is None else 200, {"message": "no such thing"} if found is None else found)

    def do_POST(self) -> None:
        engine, found = self.server.engine, urlsplit(self.path)
        assert found.path == "/images/create"
        query = {key: value[0] for key, value in parse_qs(found.query).items()}
        engine.pulls.append((query, self.headers.get("X-Registry-Auth")))
        if engine.refusal is not None:
            self._say(engine.refusal[0], {"message": engine.refusal[1]})
            return
        self._say(200, {"status": "Pulling from library/" + query["fromImage"], "id": query["tag"]})
        for each in engine.scripts.pop(0) if engine.scripts else DONE:
            if not self._play(each):
                engine.left.set()
                return

    def _say(self, status: int, document: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self._write(document)

    def _write(self, document: Any) -> None:
        self.wfile.write(json.dumps(document).encode() + b"\r\n")
        self.wfile.flush()

    def _play(self, each: dict[str, Any] | float | threading.Event | Callable[[], object]) -> bool:
        """Whether the client is still connected."""
        if callable(each):
            each()
            return True
        if isinstance(each, dict):
            try:
                self._write(each)
            except OSError:
                return False
            return True
        until = time.monotonic() + (30 if isinstance(each, threading.Event) else each)
        while time.monotonic() < until and not (isinstance(each, threading.Event) and each.is_set()):
            if select.select([self.connection], [], [], 0.02)[0]:
                return False  # closed: a client sends nothing more
        return True


def end_pullers(state_dir: Path) -> None:
    """End the pulling processes, which outlive everything else."""
    for file in state_dir.glob("*/*/state.json"):
        if common.is_locked(str(file.with_name("lock"))):
            os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)
