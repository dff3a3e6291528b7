"""The engine's HTTP API on this node, and what its metrics say."""

from __future__ import annotations

import contextlib
import http.client
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

LIMIT_S = 3.0
# Name, the label ``le`` of a histogram's bucket, and value.
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(?:.*?\ble=\"([^\"]+)\")?.*\})?\s+(\S+)")


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


def metrics(text: str, names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Values of an engine's metrics in Prometheus' text form, each the sum over all engines.

    Args:
        text: what ``/metrics`` answers.
        names: metrics by what they count; the first that the engine has is taken. Of the buckets of a histogram it is a
            mapping: by upper bound (``le``), how many were at most that.
    """
    found: dict[str, dict[str, float]] = {}
    for match in filter(None, map(_LINE.match, text.splitlines())):
        with contextlib.suppress(ValueError):
            bound, value = match[2] or "", float(match[3])
            values = found.setdefault(match[1], {})
            values[bound] = values.get(bound, 0.0) + value
    read = {name: values.get("", values) for name, values in found.items()}
    return {key: next((read[name] for name in listed if name in read), None) for key, listed in names.items()}
