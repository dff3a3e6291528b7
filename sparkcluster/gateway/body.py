"""The body of a request: read as far as needed to find its model, and passed on as it came."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from sparkcluster.gateway.schedule import Unavailable

MOST_BYTES, MOST_HELD_BYTES, WITHIN_S = 64 << 20, 512 << 20, 60.0
"""How large a body may be, and all that are held; how long one may take to arrive."""
# Of a JSON body. A list in a list takes two bytes of text and 60 of memory, and parsing holds up every stream.
_MAX_VALUES = 1_000_000
_MODEL_PART = re.compile(rb'content-disposition: *form-data *;[^\r\n]*\bname="?model"?(?=[;\r])', re.IGNORECASE)


class Body:
    """A request's body.

    ``model`` and ``stream`` are what it asks for, ``read`` is what was read of it, ``whole`` is whether that is all.
    ``passed`` are the bytes that were sent on without being kept, ``failed`` is why the rest could not be read then.
    """

    held = 0  # bytes read of all bodies

    def __init__(self, request: web.BaseRequest) -> None:
        self._content, self._headers = request.content, request.headers
        self._is_audio = request.path.startswith("/v1/audio/")
        self._until = 0.0
        self.read = bytearray()
        self.passed = 0
        self.model = ""
        self.stream = self.whole = False
        self.failed: Unavailable | None = None

    async def find_model(self) -> None:
        """Read a JSON body whole, and of ``multipart/form-data`` the parts up to ``model``.

        Raises:
            Unavailable: it is too large, too slow, or names no model.
        """
        self._until = time.monotonic() + WITHIN_S
        content_type = self._headers.get("Content-Type", "")
        if self._headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable("compressed bodies are not accepted: send it without Content-Encoding", status=415)
        boundary = re.match(r'multipart/form-data *;.*boundary="?([^";]+)', content_type, re.IGNORECASE)
        # Any web page may send a form without asking first, too.
        if boundary and self._is_audio and "Origin" not in self._headers:
            await self._find_part(b"\r\n--" + boundary[1].encode())
        elif re.match(r"application/([\w.-]+\+)?json *(;|$)", content_type, re.IGNORECASE):
            while await self._more():
                pass
            self.whole, found = True, self._parse()
            self.model = model if isinstance(model := found.get("model"), str) else ""
            self.stream = found.get("stream") is True
        else:
            form = ", or multipart/form-data from no web page" if self._is_audio else ""
            raise Unavailable(f"the body has to be application/json{form}", status=415)
        if not self.model:
            raise Unavailable("model is missing: use a name of GET /v1/models, or auto", status=400)

    def _parse(self) -> dict[str, Any]:
        if sum(map(self.read.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise Unavailable(f"the body has more than {_MAX_VALUES:,} values", status=413)
        try:
            found = json.loads(self.read)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Unavailable("the body is not a JSON object", status=400)
        return found

    def rename(self, model: str) -> None:
        """Ask for ``model`` in place of the name that a JSON body has."""
        renamed = bytearray(json.dumps({**self._parse(), "model": model}).encode())
        self.release()
        self.read = renamed
        Body.held += len(renamed)

    async def _find_part(self, delimiter: bytes) -> None:
        begin = seen = 0
        while not self.model:
            end = self.read.find(delimiter, seen)
            if end >= 0:
                headers, _, value = self.read[begin:end].partition(b"\r\n\r\n")
                self.model = value.decode(errors="replace") if _MODEL_PART.search(headers + b"\r") else ""
                begin = seen = end + len(delimiter)
            else:
                seen = max(begin, len(self.read) - len(delimiter))
                if not await self._more():
                    return

    async def _more(self) -> bool:
        chunk = await self._next()
        if Body.held + len(chunk) > MOST_HELD_BYTES:
            raise Unavailable("too many large requests at once", 5)
        Body.held += len(chunk)
        self.read += chunk
        return bool(chunk)

    async def _next(self) -> bytes:
        try:
            chunk = await asyncio.wait_for(self._content.readany(), self._until - time.monotonic())
        except asyncio.TimeoutError:
            raise Unavailable(f"the body did not arrive within {WITHIN_S:g} s", status=408) from None
        except Exception:  # noqa: BLE001 what aiohttp raises where a client is gone differs from version to version
            raise Unavailable("the body is incomplete", status=400) from None
        if len(self.read) + self.passed + len(chunk) > MOST_BYTES:
            raise Unavailable(f"the body is larger than {MOST_BYTES:,} bytes", status=413)
        return chunk

    async def chunks(self) -> AsyncIterator[bytes | bytearray]:
        """All of it, for one engine; what is still to be read has its seconds anew, since its model may have loaded."""
        yield self.read
        self._until = time.monotonic() + WITHIN_S
        try:
            while chunk := await self._next():
                self.passed += len(chunk)
                yield chunk
        except Unavailable as refused:
            self.failed = refused
            raise

    def release(self) -> None:
        """Give its memory back: it is not sent again."""
        Body.held -= len(self.read)
        self.read = bytearray()
