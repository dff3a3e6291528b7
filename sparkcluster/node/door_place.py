"""Address and token for the door to reach a guard; runs on the head of a group whose model is loaded on demand."""

from __future__ import annotations

import os
from typing import Any

from sparkcluster.node import common
from sparkcluster.node.group_guard import door_address
from sparkcluster.node.shared import CONFIG_FILE, ENABLED_DIR, START_FILE


def main(request: dict[str, Any], _lines: Any = None) -> dict[str, Any]:
    """``node``, ``address``, ``port`` and ``token`` for the door's config.json; empty if the cluster is not enabled.

    Args:
        request: state_dir and cluster.
    """
    directory = common.cluster_dir(request["state_dir"], request["cluster"])
    config = common.read_json(os.path.join(directory, ENABLED_DIR, CONFIG_FILE))
    start = common.read_json(os.path.join(directory, START_FILE))
    if not start or not config.get("on_demand"):
        return {}
    address, token = door_address(start), config["door_token"]
    return {"node": config["node"], "address": address, "port": config["port"], "token": token}
