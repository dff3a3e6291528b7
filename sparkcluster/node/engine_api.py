"""The engine's HTTP API on this node, and what its metrics say."""

from __future__ import annotations

import contextlib
import http.client
import re
import urllib.parse
from collections.abc import Mapping

LIMIT_S = 3.0


def connect(url: str, limit_s: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection for ``url``, not open yet, and the path to request.

    It comes from the address that it goes to: what another machine has is no API of this node, and gets no key.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    return http.client.HTTPConnection(host, parts.port, limit_s, source_address=(host, 0)), parts.path


def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Status and text that the engine answers.

    Raises:
        OSError, HTTPException: there is no answer.
    """
    connection, path = connect(url, LIMIT_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers or {})
        with connection.getresponse() as response:
            return response.status, response.read(1 << 20).decode("utf-8", "replace")


def metrics(text: str, names: Mapping[str, list[str]]) -> dict[str, float | None]:
    """Values of an engine's metrics in Prometheus' text form, each the sum over all engines.

    Args:
        text: what ``/metrics`` answers.
        names: metrics by what they count; the first that the engine has is taken.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", line)
        if match:
            with contextlib.suppress(ValueError):
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return {
        counter: next((found[name] for name in candidates if name in found), None)
        for counter, candidates in names.items()
    }
