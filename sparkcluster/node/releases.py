"""Reads the release records of a cluster on this node."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from sparkcluster.node import common, release_store
from sparkcluster.node.programs import Failed


def main(request: dict[str, Any], lines: BinaryIO) -> dict[str, Any]:
    """What is recorded here of the cluster that ``request`` names, and what is kept for going back to a release.

    ``records``, oldest first, without unreadable ones; ``images``, the ID that the tag of each kept release leads to,
    by number in six digits, None if Docker cannot be asked or is not the ``runtime``; ``secrets``, the numbers of the
    releases whose secrets are kept; ``switch``, the document of the switch under way, or None.
    """
    directory = release_store.directory_of(request["state_dir"], request["cluster"])
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    records = [common.read_json(os.path.join(directory, name)) for name in names if name.endswith(".json")]
    switch = common.read_json(os.path.join(os.path.dirname(directory), "switch.json"))
    return {
        "records": [record for record in records if record],
        "images": _images(request),
        "secrets": release_store.numbers(directory, "env"),
        "switch": switch or None,
    }


def _images(request: dict[str, Any]) -> dict[str, str] | None:
    if request.get("runtime") == "process":
        return None
    try:
        return {"%06d" % number: image for number, image in release_store.images(request["cluster"]).items()}
    except Failed:
        return None
