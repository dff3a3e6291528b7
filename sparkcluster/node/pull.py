"""Pulls an image from its registry to this node.

Python 3.8, standard library only. The request says ``reference``, and the lease.
"""

from __future__ import annotations

import os
import re
from typing import Any, BinaryIO, Dict

from sparkcluster.node import docker, wire
from sparkcluster.node.fetch import follow
from sparkcluster.node.wire import Failed

Request = Dict[str, Any]

_DENIED = re.compile(
    r"unauthorized|authentication required|no basic auth|access denied|denied: |403 forbidden|401", re.I
)


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Pull; the answer is that of ``wire.answer``."""
    return wire.answer(request, stdin, lambda check: pull(request, check))


def pull(request: Request, check: wire.Check) -> dict[str, Any]:
    """``docker pull``; a registry that requires a login has a kind of its own."""
    pace = wire.Pace(0, check)
    code, text = follow(docker.pull(request["reference"]), dict(os.environ), pace, lambda: 0)
    if code:
        last = (text.strip().splitlines() or ["no output"])[-1]
        kind = "auth" if _DENIED.search(last) else "disk" if "no space left" in last else "registry"
        raise Failed(kind, last)
    return {"bytes": 0}
