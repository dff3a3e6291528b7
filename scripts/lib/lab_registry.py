"""An image registry on this machine, for the Sparks of a lab, with configurable rate and faults.

It implements the pull part of the OCI distribution specification, over HTTP. No packet filter is used: a response
that is cut ends in the middle, as behind a proxy that times out.
"""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import http.server
import io
import json
import re
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Self

from sparkcluster.lab import Lab
from sparkcluster.lab.state import REGISTRY_PORT

OCI = "application/vnd.oci.image"
ARCHITECTURES = {"amd64": "arm64", "arm64": "amd64"}
"""The other platform of an image, by the machine's platform."""

_CHUNK = 16384


class Registry:
    """A registry that runs until its ``with`` block ends.

    Attributes:
        rate_bytes_s: bytes of blobs per second, over all connections; 0: none are sent; None: no limit.
        cut_after_bytes: bytes of blobs, counted as ``served_bytes``, after which it goes down; None: never.
        down: every response ends immediately, and no request is answered.
        login: user and password that every request needs; None: no login.
        served_bytes: bytes of blobs sent so far: layers and configurations.
    """

    def __init__(
        self,
        host: str,
        directory: Path,
        *,
        port: int = REGISTRY_PORT,
    ) -> None:
        self.rate_bytes_s: float | None = None
        self.cut_after_bytes: int | None = None
        self.down = False
        self.login: tuple[str, str] | None = None
        self.served_bytes = 0
        self._directory = directory
        self._manifests: dict[str, str] = {}
        self._tags: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._free_at = 0.0
        directory.mkdir(parents=True, exist_ok=True)
        self._server = http.server.ThreadingHTTPServer((host, port), partial(_Handler, self))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.down = True
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        """Host and port, the start of its images' references."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def add(self, name: str, archive: Path, *, level: int = 1, more: str | None = None, platforms: bool = False) -> str:
        """Offer the image from an archive of ``docker save``; return its reference, with tag ``1``.

        Args:
            name: repository in this registry.
            archive: path of an archive with a single image.
            level: gzip level, which changes the digests of the layers; 0: layers are not compressed.
            more: text of a file in an additional layer, which makes it a different image.
            platforms: offer a multi-platform index, with this image and an image for another processor.
        """
        with tarfile.open(archive) as file:
            [image] = json.load(_member(file, "manifest.json"))
            config = json.load(_member(file, image["Config"]))
            layers = [self._layer(_member(file, layer), level) for layer in image["Layers"]]
        if more is not None:
            layers.append(self._one_more(config, more, level))
        document = self._manifest(config, layers)
        if platforms:
            other = copy.deepcopy(config)
            other["architecture"] = ARCHITECTURES[config["architecture"]]
            foreign = self._manifest(other, [*layers, self._one_more(other, "another processor\n", level)])
            document = self._document("index", {"manifests": [foreign, document]})
        self._tags[name, "1"] = document["digest"]
        return f"{self.address}/{name}:1"

    def _one_more(self, config: dict[str, Any], text: str, level: int) -> dict[str, Any]:
        """A layer with one file, added to ``config``."""
        content, tar = text.encode(), io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as file:
            entry = tarfile.TarInfo("more")
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
        config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(tar.getvalue()).hexdigest())
        config.pop("history", None)  # it would need an entry for this layer
        tar.seek(0)
        return self._layer(tar, level)

    def _layer(self, tar: IO[bytes], level: int) -> dict[str, Any]:
        fresh = self._directory / "fresh"
        with fresh.open("wb") as out:
            if level:
                with gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=level, mtime=0) as packed:
                    shutil.copyfileobj(tar, packed)
            else:
                shutil.copyfileobj(tar, out)
        with fresh.open("rb") as file:
            digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        size = fresh.stat().st_size
        fresh.rename(self._directory / digest)
        return {"mediaType": f"{OCI}.layer.v1.tar" + ("+gzip" if level else ""), "digest": digest, "size": size}

    def _manifest(self, config: dict[str, Any], layers: list[dict[str, Any]]) -> dict[str, Any]:
        described = self._document("manifest", {"config": self._document("config", config), "layers": layers})
        return {**described, "platform": {"os": config["os"], "architecture": config["architecture"]}}

    def _document(self, kind: str, values: dict[str, Any]) -> dict[str, Any]:
        """Store a JSON document; returns its descriptor."""
        media = f"{OCI}.{kind}.v1+json"
        is_config = kind == "config"
        content = json.dumps(values if is_config else {"schemaVersion": 2, "mediaType": media, **values}).encode()
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        (self._directory / digest).write_bytes(content)
        if not is_config:
            self._manifests[digest] = media
        return {"mediaType": media, "digest": digest, "size": len(content)}

    def manifest(self, name: str, reference: str) -> tuple[str, str] | None:
        """Digest and media type of a manifest by tag or digest, or None."""
        digest = self._tags.get((name, reference), reference)
        media = self._manifests.get(digest)
        return None if media is None else (digest, media)

    def file(self, digest: str) -> Path | None:
        """The file of a blob, or None."""
        path = self._directory / digest
        return path if re.fullmatch("sha256:[0-9a-f]{64}", digest) and path.is_file() else None

    def chunks(self, file: IO[bytes]) -> Iterator[bytes]:
        """Chunks of a layer at the speed of the registry's link; ends early if the registry goes down."""
        while not self.down and (chunk := file.read(_CHUNK)):
            self._wait(len(chunk))
            with self._lock:
                if self.cut_after_bytes is not None and self.served_bytes >= self.cut_after_bytes:
                    self.down = True
                if self.down:
                    return
                self.served_bytes += len(chunk)
            yield chunk

    def _wait(self, size: int) -> None:
        while self.rate_bytes_s == 0 and not self.down:
            time.sleep(0.05)
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + (size / self.rate_bytes_s if self.rate_bytes_s else 0)
            pause = self._free_at - now
        if pause > 0:
            time.sleep(pause)


def registry_of(lab: Lab) -> Registry:
    """A new registry that the Sparks of ``lab`` reach, for a ``with`` block."""
    return Registry(lab.state.registry, lab.directory / "registry")


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    # Docker tries TLS first, and continues with HTTP only if the error begins with a status line.
    default_request_version = "HTTP/1.1"

    def __init__(self, registry: Registry, *arguments: Any) -> None:
        self.registry = registry
        super().__init__(*arguments)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Write no log, which would go to stderr."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.registry.down:
            self.close_connection = True
            return
        if self.registry.login is not None:
            word = base64.b64encode(":".join(self.registry.login).encode()).decode()
            if self.headers.get("Authorization") != f"Basic {word}":
                self._refuse(HTTPStatus.UNAUTHORIZED, "UNAUTHORIZED", "authentication required")
                return
        if self.path == "/v2/":
            self._send(HTTPStatus.OK, b"{}", {"Content-Type": "application/json"})
        elif found := re.fullmatch("/v2/(.+)/(manifests|blobs)/([^/]+)", self.path):
            name, kind, reference = found.groups()
            self._manifest(name, reference) if kind == "manifests" else self._blob(reference)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "NAME_UNKNOWN", "no such page")

    def _manifest(self, name: str, reference: str) -> None:
        described = self.registry.manifest(name, reference)
        file = described and self.registry.file(described[0])
        if not described or not file:
            self._refuse(HTTPStatus.NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown")
            return
        digest, media = described
        self._send(HTTPStatus.OK, file.read_bytes(), {"Content-Type": media, "Docker-Content-Digest": digest})

    def _blob(self, digest: str) -> None:
        path = self.registry.file(digest)
        if path is None:
            self._refuse(HTTPStatus.NOT_FOUND, "BLOB_UNKNOWN", "blob unknown to registry")
            return
        size = path.stat().st_size
        ranged = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(ranged[1]) if ranged else 0
        with path.open("rb") as file:
            file.seek(first)
            self.send_response(HTTPStatus.PARTIAL_CONTENT if ranged else HTTPStatus.OK)
            if ranged:
                self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(size - first))
            self.end_headers()
            if self.command == "HEAD":
                return
            # The response ends when the connection is closed.
            self.close_connection, unsent = True, size - first
            with suppress(ConnectionError):
                for chunk in self.registry.chunks(file):
                    self.wfile.write(chunk)
                    unsent -= len(chunk)
                self.close_connection = unsent > 0

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        content = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        headers = {"Content-Type": "application/json"}
        if status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Basic realm="lab"'
        self._send(status, content, headers)

    def _send(self, status: HTTPStatus, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _member(file: tarfile.TarFile, name: str) -> IO[bytes]:
    member = file.extractfile(name)
    assert member is not None, name
    return member
