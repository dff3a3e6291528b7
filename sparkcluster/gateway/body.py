"""The body of a request: read whole to find its model, and passed on as it came."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from sparkcluster.gateway.schedule import Unavailable

MOST_BYTES, MOST_HELD_BYTES, WITHIN_S = 64 << 20, 512 << 20, 60.0
"""How large a body may be, and all that are held; how long one may take to arrive."""
# Of a JSON body. A list in a list takes two bytes of text and 60 of memory, and parsing holds up every stream.
_MAX_VALUES = 1_000_000
_MODEL_PART = re.compile(rb'content-disposition: *form-data *;[^\r\n]*\bname="?model"?(?=[;\r])', re.IGNORECASE)


class Body:
    """A request's body, which is read whole: ``read``; ``model`` and ``stream`` are what it asks for."""

    held = 0  # bytes of all bodies

    def __init__(self) -> None:
        self.read = bytearray()
        self.model = ""
        self.stream = self.is_json = False

    async def find_model(self, request: web.BaseRequest) -> None:
        """Read the body of ``request``: JSON, or for audio ``multipart/form-data``.

        Raises:
            Unavailable: it is too large, too slow, or no JSON object.
        """
        content_type, is_audio = request.headers.get("Content-Type", ""), request.path.startswith("/v1/audio/")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable("compressed bodies are not accepted: send it without Content-Encoding", status=415)
        self.is_json = bool(re.match(r"application/([\w.-]+\+)?json *(;|$)", content_type, re.IGNORECASE))
        boundary = re.match(r'multipart/form-data *;.*boundary="?([^";]+)', content_type, re.IGNORECASE)
        # Any web page may send a form without asking first, too.
        if not self.is_json and not (boundary and is_audio and "Origin" not in request.headers):
            form = ", or multipart/form-data from no web page" if is_audio else ""
            raise Unavailable(f"the body has to be application/json{form}", status=415)
        try:
            await asyncio.wait_for(self._read_whole(request.content), WITHIN_S)
        except Unavailable:
            raise
        except asyncio.TimeoutError:
            raise Unavailable(f"the body did not arrive within {WITHIN_S:g} s", status=408) from None
        except Exception:  # noqa: BLE001 what aiohttp raises where a client is gone differs from version to version
            raise Unavailable("the body is incomplete", status=400) from None
        found = self._parse() if self.is_json else {}
        for part in self.read.split(b"\r\n--" + boundary[1].encode()) if boundary else ():
            headers, _, value = part.partition(b"\r\n\r\n")
            if _MODEL_PART.search(headers + b"\r"):
                found = {"model": value.decode(errors="replace")}
        self.model = model if isinstance(model := found.get("model"), str) else ""
        self.stream = found.get("stream") is True

    async def _read_whole(self, content: aiohttp.StreamReader) -> None:
        while chunk := await content.readany():
            if len(self.read) + len(chunk) > MOST_BYTES:
                raise Unavailable(f"the body is larger than {MOST_BYTES:,} bytes", status=413)
            if Body.held + len(chunk) > MOST_HELD_BYTES:
                raise Unavailable("too many large requests at once", 5)
            Body.held += len(chunk)
            self.read += chunk

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
        Body.held += len(renamed) - len(self.read)
        self.read = renamed

    async def whole(self) -> AsyncIterator[bytearray]:
        """All of it, for one engine."""
        yield self.read

    def release(self) -> None:
        """Give its memory back: it is not sent again."""
        Body.held -= len(self.read)
        self.read = bytearray()
