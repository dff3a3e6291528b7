"""The body of a request: read as far as needed to find its model, and passed on as it came."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from sparkcluster.gateway.schedule import Unavailable

# Of a JSON body. A list in a list takes two bytes of text and 60 of memory, and parsing holds up every stream.
_MAX_VALUES = 1_000_000
_MODEL_PART = re.compile(rb'content-disposition: *form-data *;[^\r\n]*\bname="?model"?(?=[;\r])', re.IGNORECASE)


class Body:
    """A request's body of at most ``limit_bytes``, which has ``limit_s`` to arrive.

    ``model`` and ``stream`` are what it asks for, ``whole`` is whether nothing of it is left to be read, and ``failed``
    why the rest of it could not be read while it was sent.
    """

    held = 0  # bytes of all bodies

    def __init__(self, request: web.BaseRequest, limit_bytes: int, limit_s: float) -> None:
        self._content, self._headers = request.content, request.headers
        self._limit_bytes, self._limit_s = limit_bytes, limit_s
        self._until = 0.0
        self._read = bytearray()
        self._passed = 0
        self.model = ""
        self.stream = False
        self.whole = False
        self.failed: Unavailable | None = None

    async def find_model(self) -> None:
        """Read a JSON body whole, and of ``multipart/form-data`` the parts up to ``model``.

        Raises:
            Unavailable: it is too large, too slow, or names no model.
        """
        self._until = asyncio.get_running_loop().time() + self._limit_s
        content_type = self._headers.get("Content-Type", "")
        if self._headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable("compressed bodies are not accepted: send it without Content-Encoding", status=415)
        boundary = re.match(r'multipart/form-data *;.*boundary="?([^";]+)', content_type, re.IGNORECASE)
        if boundary:
            await self._find_part(b"\r\n--" + boundary[1].encode())
        elif re.match(r"application/([\w.-]+\+)?json *(;|$)", content_type, re.IGNORECASE):
            while chunk := await self._next():
                self._keep(chunk)
            self.whole = True
            found = self._parse()
            model = found.get("model")
            self.model = model if isinstance(model, str) else ""
            self.stream = found.get("stream") is True
        else:  # what any web page may send without asking first
            raise Unavailable("the body has to be application/json or multipart/form-data", status=415)
        if not self.model:
            raise Unavailable("the request has no model: set it to one of GET /v1/models, or to auto", status=400)

    def _parse(self) -> dict[str, Any]:
        if sum(map(self._read.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise Unavailable(f"the body has more than {_MAX_VALUES:,} values", status=413)
        try:
            found = json.loads(self._read)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Unavailable("the body is not a JSON object", status=400)
        return found

    def rename(self, model: str) -> None:
        """Ask for ``model`` in place of the name that a JSON body has."""
        renamed = json.dumps({**self._parse(), "model": model}).encode()
        self.release()
        self._keep(renamed)

    async def _find_part(self, delimiter: bytes) -> None:
        begin = seen = 0
        while True:
            end = self._read.find(delimiter, seen)
            if end < 0:
                seen = max(begin, len(self._read) - len(delimiter))
                chunk = await self._next()
                if not chunk:
                    return
                self._keep(chunk)
                continue
            headers, _, value = self._read[begin:end].partition(b"\r\n\r\n")
            if _MODEL_PART.search(headers + b"\r"):
                self.model = value.decode(errors="replace")
                return
            begin = seen = end + len(delimiter)

    def _keep(self, chunk: bytes) -> None:
        if Body.held + len(chunk) > 8 * self._limit_bytes:
            raise Unavailable("too many large requests at once", 5)
        Body.held += len(chunk)
        self._read += chunk

    async def _next(self) -> bytes:
        left_s = self._until - asyncio.get_running_loop().time()
        try:
            chunk = await asyncio.wait_for(self._content.readany(), left_s)
        except asyncio.TimeoutError:
            raise Unavailable(f"the body did not arrive within {self._limit_s:g} s", status=408) from None
        except Exception:  # noqa: BLE001 what aiohttp raises where a client is gone differs from version to version
            raise Unavailable("the body is incomplete", status=400) from None
        if len(self._read) + self._passed + len(chunk) > self._limit_bytes:
            raise Unavailable(f"the body is larger than {self._limit_bytes:,} bytes", status=413)
        return chunk

    @property
    def size(self) -> int:
        """Bytes read."""
        return len(self._read)

    @property
    def repeatable(self) -> bool:
        """Whether it can be sent once more: nothing was passed on that is not kept."""
        return not self._passed

    async def chunks(self) -> AsyncIterator[bytes | bytearray]:
        """All of it, for one engine; what is still to be read has its seconds anew, since its model may have loaded."""
        yield self._read
        self._until = asyncio.get_running_loop().time() + self._limit_s
        try:
            while chunk := await self._next():
                self._passed += len(chunk)
                yield chunk
        except Unavailable as refused:
            self.failed = refused
            raise

    def release(self) -> None:
        """Give its memory back: it is not sent again."""
        Body.held -= len(self._read)
        self._read = bytearray()
