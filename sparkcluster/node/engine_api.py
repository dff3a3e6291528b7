"""The engine's HTTP API on this node, and what its metrics say."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from sparkcluster.node import common

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


def keyed(place: Mapping[str, Any]) -> dict[str, str]:
    """The header with the API key, called ``key_name``, of ``key_file``, which only its owner may read; {} without.

    Raises:
        OSError: it cannot be read, or others may.
    """
    if not place.get("key_file"):
        return {}
    path = common.expand(place["key_file"])
    if os.path.islink(os.path.dirname(path)) or os.lstat(path).st_mode & 0o077:
        raise PermissionError("it is not in a rank's own directory, or others may read it")
    key = common.read_env_file(path).get(place.get("key_name") or "")
    return {"Authorization": "Bearer " + key} if key else {}


def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Status and text that the engine answers.

    Raises:
        OSError, HTTPException: there is no answer, or it does not end in time.
    """
    connection, path = connect(url, LIMIT_S)
    until, body = time.monotonic() + LIMIT_S, b""
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers or {})
        with connection.getresponse() as response:
            while len(body) < 1 << 20 and (piece := response.read1(1 << 16)):
                body += piece
                if time.monotonic() > until:  # it sends a little now and then
                    raise TimeoutError("no whole answer within %g s" % LIMIT_S)
            return response.status, body.decode("utf-8", "replace")


def metrics(text: str, names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Values of an engine's metrics in Prometheus' text form: the sum over its parts, of a share the largest.

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
            before = values.get(bound, 0.0)
            values[bound] = max(before, value) if match[1].endswith(("_perc", "_ratio")) else before + value
    read = {name: values.get("", values) for name, values in found.items()}
    return {key: next((read[name] for name in listed if name in read), None) for key, listed in names.items()}
