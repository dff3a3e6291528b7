"""The body of a request: read completely to find its model, and forwarded unchanged."""

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
"""Limits: size of a body, size of all bodies in memory, seconds for a body to arrive."""
# Limit for a JSON body: a list in a list takes two bytes of text and 60 of memory, and parsing blocks every stream.
_MAX_VALUES = 1_000_000
_MODEL_PART = re.compile(rb'content-disposition: *form-data *;[^\r\n]*\bname="?model"?(?=[;\r])', re.IGNORECASE)


class Body:
    """A request's complete body (``read``), and the ``model`` and ``stream`` that it asks for."""

    held = 0  # bytes of all bodies

    def __init__(self) -> None:
        self.read = bytearray()
        self.model = ""
        self.stream = self.is_json = False

    async def find_model(self, request: web.BaseRequest) -> None:
        """Read the body of ``request``: JSON, or for audio ``multipart/form-data``.

        Raises:
            Unavailable: it is too large, too slow, or not a JSON object.
        """
        content_type, is_audio = request.headers.get("Content-Type", ""), request.path.startswith("/v1/audio/")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable("compressed bodies are not accepted: send the body without Content-Encoding", status=415)
        self.is_json = bool(re.match(r"application/([\w.-]+\+)?json *(;|$)", content_type, re.IGNORECASE))
        boundary = re.match(r'multipart/form-data *;.*boundary="?([^";]+)', content_type, re.IGNORECASE)
        # Any web page may send a form without a preflight request.
        if not self.is_json and not (boundary and is_audio and "Origin" not in request.headers):
            form = ", or multipart/form-data, but not from a web page" if is_audio else ""
            raise Unavailable(f"the body must be application/json{form}", status=415)
        try:
            await asyncio.wait_for(self._read_whole(request.content), WITHIN_S)
        except Unavailable:
            raise
        except asyncio.TimeoutError:
            raise Unavailable(f"the body did not arrive within {WITHIN_S:g} s", status=408) from None
        except Exception:  # noqa: BLE001 aiohttp's error for a lost client differs between versions
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
                raise Unavailable("too many large requests", 5)
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
        """Replace the model's name in a JSON body by ``model``."""
        renamed = bytearray(json.dumps({**self._parse(), "model": model}).encode())
        Body.held += len(renamed) - len(self.read)
        self.read = renamed

    async def whole(self) -> AsyncIterator[bytearray]:
        """The complete body, for one engine."""
        yield self.read

    def release(self) -> None:
        """Free the memory: the body is not sent again."""
        Body.held -= len(self.read)
        self.read = bytearray()
