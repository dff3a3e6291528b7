"""The engine's HTTP API on this node, and the parser of its metrics."""

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
# Name, labels, and value; the label of a histogram's bucket.
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_BOUND = re.compile(r'\ble="([^"]+)"')


def connect(url: str, limit_s: float) -> tuple[http.client.HTTPConnection, str]:
    """An unopened connection for ``url``, and the path to request.

    Its source address is its destination address: only an API on this node is reached and gets the key.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    return http.client.HTTPConnection(host, parts.port, limit_s, source_address=(host, 0)), parts.path


def keyed(place: Mapping[str, Any]) -> dict[str, str]:
    """The header with the API key ``key_name`` from ``key_file`` (readable by its owner only); {} without a key.

    Raises:
        OSError: it cannot be read, or other users may read it.
    """
    if not place.get("key_file"):
        return {}
    path = common.expand(place["key_file"])
    if os.path.islink(os.path.dirname(path)) or os.lstat(path).st_mode & 0o077:
        raise PermissionError("its directory is a link, or other users may read it")
    key = common.read_env_file(path).get(place.get("key_name") or "")
    return {"Authorization": "Bearer " + key} if key else {}


def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Status and text of the engine's response.

    Raises:
        OSError, HTTPException: no response, or it was not complete in time.
    """
    connection, path = connect(url, LIMIT_S)
    until, body = time.monotonic() + LIMIT_S, b""
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers or {})
        with connection.getresponse() as response:
            while len(body) < 1 << 20 and (piece := response.read1(1 << 16)):
                body += piece
                if time.monotonic() > until:  # the engine may send slowly
                    raise TimeoutError("no complete answer within %g s" % LIMIT_S)
            return response.status, body.decode("utf-8", "replace")


def metrics(text: str, names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Values of an engine's metrics in Prometheus text format: summed over its parts, for ratios the maximum.

    Args:
        text: response of ``/metrics``.
        names: for each key, metric names in order of preference, with one label if only its series count:
            ``name{label="value"}``. The value of a histogram's buckets is a mapping from upper bound (``le``) to count.
    """
    found: dict[str, dict[str, float]] = {}
    labelled = {name for listed in names.values() for name in listed if "{" in name}
    for match in filter(None, map(_LINE.match, text.splitlines())):
        with contextlib.suppress(ValueError):
            name, labels, value = match[1], match[2] or "", float(match[3])
            bound = (_BOUND.findall(labels) or [""])[0]
            series = {"%s{%s}" % (name, label) for label in labels.split(",")} if labelled else ()
            for key in (name, *labelled.intersection(series)):
                values = found.setdefault(key, {})
                before = values.get(bound, 0.0)
                values[bound] = max(before, value) if name.endswith(("_perc", "_ratio")) else before + value
    read = {name: values.get("", values) for name, values in found.items()}
    return {key: next((read[name] for name in listed if name in read), None) for key, listed in names.items()}
