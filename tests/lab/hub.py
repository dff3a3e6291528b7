"""A small hub for downloads: serves repositories as Hugging Face does, on the lab's network.

It implements the API that huggingface_hub uses (``/api/models/ID/revision/REVISION``, ``…/tree/REVISION``,
``/ID/resolve/REVISION/FILE`` with HEAD, GET and ranges), records the name of every file whose content was requested,
and counts sent bytes. It can be slow, truncate a response, and require a token for some repositories.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Self

_BLOCK = 64 * 1024

COMMIT = hashlib.sha1(b"the only commit").hexdigest()
_REVISIONS = ("main", COMMIT)


class Hub:
    """A hub with ``repositories`` (content by file by ID) at ``address``, within a ``with`` block.

    Args:
        gated: repositories whose files need ``token``: 401 without a token, 403 with another one.
        cut_after: bytes of content after which the current response is truncated, once.

    Attributes:
        served: (repository, file) of every sent content.
        first_bytes: offset of each of them: 0, or the size that a client had already.
        sent_bytes: total bytes of content, including truncated responses.
        rate_bytes_s: rate of each response; None for no limit.
        cut_after: see above; may be set at any time, and is None after a truncation.
    """

    def __init__(
        self,
        host: str,
        repositories: dict[str, dict[str, bytes]],
        *,
        gated: Collection[str] = (),
        token: str = "hf_lab",
        cut_after: int | None = None,
    ) -> None:
        self.repositories = repositories
        self.gated, self.token = gated, token
        self.cut_after = cut_after
        self.rate_bytes_s: float | None = None
        self.served: list[tuple[str, str]] = []
        self.first_bytes: list[int] = []
        self.sent_bytes = 0
        self._counting = threading.Lock()
        self._server = http.server.ThreadingHTTPServer((host, 0), functools.partial(_Handler, self))
        self.address = f"http://{host}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def may_send(self, size: int) -> int:
        """How many of the next ``size`` bytes are sent; fewer if the response is to be truncated."""
        with self._counting:
            if self.cut_after is not None and self.sent_bytes + size > self.cut_after:
                size, self.cut_after = max(0, self.cut_after - self.sent_bytes), None
            self.sent_bytes += size
        return size


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *arguments: Any) -> None:
        self.hub = hub
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            revision = rest[1] if rest[1:] else "main"
            return self._document(f"{owner}/{name}", revision, tree=rest[:1] == ["tree"], body=body)
        name, _, rest = path[1:].partition("/resolve/")
        revision, _, file = rest.partition("/")
        if name not in self.hub.repositories:
            return self._refuse("RepoNotFound", body=body)
        if revision not in _REVISIONS:
            return self._refuse("RevisionNotFound", body=body)
        if name in self.hub.gated and (given := self.headers.get("Authorization")) != f"Bearer {self.hub.token}":
            status = HTTPStatus.FORBIDDEN if given else HTTPStatus.UNAUTHORIZED
            return self._refuse("GatedRepo", status, body=body)
        content = self.hub.repositories[name].get(file)
        if content is None:
            return self._refuse("EntryNotFound", body=body)
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
            self.hub.first_bytes.append(int(headers.get("Content-Range", "bytes 0-").split()[1].partition("-")[0]))
        return self._send(status, content, headers, body=body, counted=True)

    def _refuse(self, code: str, status: HTTPStatus = HTTPStatus.NOT_FOUND, *, body: bool) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": f"lab: {code}"}, body=body)

    def _document(self, name: str, revision: str, *, tree: bool, body: bool) -> None:
        files = self.hub.repositories.get(name)
        if files is None:
            return self._refuse("RepoNotFound", body=body)
        if revision not in _REVISIONS:
            return self._refuse("RevisionNotFound", body=body)
        found: Any = [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for file, content in files.items()
        ]
        if not tree:
            siblings = [{"rfilename": file, "size": len(content)} for file, content in files.items()]
            found = {
                "id": name,
                "sha": COMMIT,
                "private": False,
                "gated": name in self.hub.gated,
                "tags": [],
                "siblings": siblings,
            }
        return self._send(HTTPStatus.OK, json.dumps(found).encode(), {"Content-Type": "application/json"}, body=body)

    def _send(
        self, status: HTTPStatus, content: bytes, headers: dict[str, str], *, body: bool, counted: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and not counted:
            self.wfile.write(content)
        elif body:
            self._content(content)

    def _content(self, content: bytes) -> None:
        """Send a file, at the hub's rate and up to the truncation."""
        for begin in range(0, len(content), _BLOCK):
            block = content[begin : begin + _BLOCK]
            allowed = self.hub.may_send(len(block))
            try:
                self.wfile.write(block[:allowed])
            except ConnectionError:
                allowed = 0
            if allowed < len(block):
                self.close_connection = True
                return
            if self.hub.rate_bytes_s:
                time.sleep(len(block) / self.hub.rate_bytes_s)
