"""Sends a request to this node's gateway over its control socket, in a directory that only this user can access."""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any

from sparkcluster.node import common

LIMIT_S = 20.0
_MOST = 4 << 20


def main(request: dict[str, Any], _lines: Any = None) -> dict[str, Any]:
    """The gateway's answer; ``error`` if it refuses or does not answer.

    Args:
        request: state_dir, cluster (of the gateway), method and path.
    """
    try:
        # the path of a Unix socket has at most 107 bytes (unix(7))
        os.chdir(os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), "run"))
        connection = http.client.HTTPConnection("gateway")
        with socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.settimeout(LIMIT_S)
            connection.sock.connect("control.sock")
            connection.request(request["method"], request["path"])
            return dict(json.loads(connection.getresponse().read(_MOST)))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return {"error": "it does not answer: %s: %s" % (type(error).__name__, error)}
