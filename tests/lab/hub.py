"""A small hub for downloads: repositories as Hugging Face's serves them, on the lab's own network.

It answers what huggingface_hub asks (``/api/models/ID/revision/REVISION``, ``…/tree/REVISION``,
``/ID/resolve/REVISION/FILE`` with HEAD, GET and ranges) and keeps the name of every file of which it was asked for the content.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
import urllib.parse
from http import HTTPStatus
from typing import Any, Self

COMMIT = hashlib.sha1(b"the only commit").hexdigest()


class Hub:
    """The hub of ``repositories``, content by file by ID, at ``address`` until it is left.

    Attributes:
        served: (repository, file) of all whose content was sent.
    """

    def __init__(self, host: str, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.served: list[tuple[str, str]] = []
        self._server = http.server.ThreadingHTTPServer((host, 0), functools.partial(_Handler, self))
        self.address = f"http://{host}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *arguments: Any) -> None:
        self.hub = hub
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            return self._document(f"{owner}/{name}", tree=rest[:1] == ["tree"], body=body)
        name, _, rest = path[1:].partition("/resolve/")
        file = rest.partition("/")[2]
        content = self.hub.repositories.get(name, {}).get(file)
        if content is None:
            return self._send(HTTPStatus.NOT_FOUND, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
        digest = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        status, asked = HTTPStatus.OK, self.headers.get("Range", "")
        if body and asked.startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = min(int(last) + 1 if last else len(content), len(content))
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
            content, status = content[int(first) : end], HTTPStatus.PARTIAL_CONTENT
        if body:
            self.hub.served.append((name, file))
        return self._send(status, content, headers, body=body)

    def _document(self, name: str, *, tree: bool, body: bool) -> None:
        files = self.hub.repositories.get(name)
        if files is None:
            return self._send(HTTPStatus.NOT_FOUND, b"", {"X-Error-Code": "RepoNotFound"}, body=body)
        found: Any = [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for file, content in files.items()
        ]
        if not tree:
            siblings = [{"rfilename": file, "size": len(content)} for file, content in files.items()]
            found = {"id": name, "sha": COMMIT, "private": False, "gated": False, "tags": [], "siblings": siblings}
        return self._send(HTTPStatus.OK, json.dumps(found).encode(), {"Content-Type": "application/json"}, body=body)

    def _send(self, status: HTTPStatus, content: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)
