"""Reads the release records of a cluster on this node. Python 3.8, standard library only."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from sparkcluster.node import common


def main(request: dict[str, Any], lines: BinaryIO) -> dict[str, Any]:
    """``{"records": [...]}`` of the cluster that ``request`` names, oldest first, without unreadable ones."""
    directory = os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), "releases")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    records = [common.read_json(os.path.join(directory, name)) for name in names if name.endswith(".json")]
    return {"records": [record for record in records if record]}
