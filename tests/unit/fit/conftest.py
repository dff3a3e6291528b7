"""A hub on this machine."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import urllib.parse

import pytest


class Hub(http.server.BaseHTTPRequestHandler):
    """Files of one repository, by range, with a redirect to another host for large ones."""

    files: dict[str, bytes]
    requests: list[tuple[str, str | None, str | None]]
    ranges = True
    token: str | None = None
    storage: str | None = None
    status: int | None = None
    commit: str | None = None
    cut: int | None = None

    def do_GET(self):
        path = urllib.parse.unquote(self.path)
        self.requests.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if self.status is not None:
            return self.answer(self.status, b"")
        if path.startswith("/stored/"):
            return self.give(self.files[path.removeprefix("/stored/")])
        if self.token is not None and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self.answer(401, b"")
        name = path.removeprefix("/some/model/resolve/main/")
        if name not in self.files:
            return self.answer(404, b"")
        if self.storage is not None and name.endswith(".safetensors"):
            return self.answer(302, b"", Location=f"{self.storage}/stored/{name}")
        return self.give(self.files[name])

    def give(self, content):
        wanted_range = self.headers.get("Range")
        if not wanted_range or not self.ranges:
            return self.answer(200, content)
        first, _, last = wanted_range.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1]
        return self.answer(206, part, **{"Content-Range": f"bytes {first}-{last}/{len(content)}"})

    def answer(self, status, content, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        if self.commit is not None:
            self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content[: self.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """``hub(files, **behaviour)``: a hub with one model; ``asked`` has the requests."""
    with contextlib.ExitStack() as stack:

        def make(files, **behaviour):
            content = {
                name: file if isinstance(file, bytes) else json.dumps(file).encode() for name, file in files.items()
            }
            handler = type("ThisHub", (Hub,), {"files": content, "requests": [], **behaviour})
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            handler.address = f"http://127.0.0.1:{server.server_port}"
            monkeypatch.setenv("HF_ENDPOINT", handler.address)
            return handler

        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield make
