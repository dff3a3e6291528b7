"""Loads an image from an archive on this node, which came from the operator's machine (``take``), and removes that.

The request has the lease, the ``path`` of the archive, the name in it of the image's
configuration, ``member``, the SHA-256 of that, ``config``, and the ``reference`` that the image gets.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, docker_copy, wire
from sparkcluster.node.model_files import forget
from sparkcluster.node.wire import Check, Failed, Pace

Request = dict[str, Any]

_CONFIG_BYTES = 4 << 20


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Load it; the answer is that of ``wire.answer``."""
    return wire.answer(request, stdin, lambda check: load(request, check))


def load(request: Request, check: Check) -> dict[str, Any]:
    """Load and tag the image; the bytes that were read, none where an attempt whose answer was lost did it before."""
    path = common.expand(request["path"])
    if not os.path.exists(path):
        return {"bytes": 0}  # the controller looks whether the image is there
    size = os.path.getsize(path)
    expected = {**request, **_described(path, request), "size": size}
    pace = Pace(size, check)
    with open(path, "rb") as file:
        image, absent = docker_copy.load(expected, _chunks(file, pace), pace.add)
    docker_copy.accept(expected, image, absent, check)
    os.unlink(path)
    return {"bytes": size}


def _described(path: str, request: Request) -> Request:
    """What the configuration in the archive says of the image, if it is the one that was asked for."""
    try:
        with tarfile.open(path, "r:") as archive:
            found = archive.extractfile(request["member"])
            text = found.read(_CONFIG_BYTES) if found is not None else b""
        digest = "sha256:" + hashlib.sha256(text).hexdigest()
        config = json.loads(text)
        layers = [str(each) for each in config["rootfs"]["diff_ids"] or []]
        started = docker.config_sum(config.get("config") or {})
    except (tarfile.TarError, KeyError, TypeError, AttributeError, ValueError):
        raise Failed("archive", "the image's archive is damaged") from None
    if digest != request["config"]:
        raise Failed("archive", "the image's archive has another configuration")
    return {"image_id": digest, "layers": layers, "config_sum": started, "have": [None] * len(layers)}


def _chunks(file: BinaryIO, pace: Pace) -> Iterator[bytes]:
    dropped = 0
    for chunk in iter(lambda: file.read(wire.CHUNK), b""):
        pace.add(len(chunk))
        yield chunk
        if file.tell() - dropped >= 64 << 20:
            forget(file.fileno(), dropped, file.tell() - dropped)
            dropped = file.tell()
    forget(file.fileno())
