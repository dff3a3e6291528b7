"""Holds the lease of a cluster on this node, or the node's start lock, while heartbeats arrive.

Heartbeats come by standard input over the operator's connection. The lease is released when none came for
``ttl_s``, when the connection ends, or when the program is killed: the lock is a flock, so none is left behind.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, start_lock

# A change of the last operator has this long to end; then the next operator is refused.
BARRIER_S = 15.0


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Hold the lease; ``request`` has state_dir, cluster, kind, operator, operation and ttl_s (seconds).

    Answers ``{"held": {...}}`` and ends if another operator holds it, else ``{"epoch": last}``. Then every line of
    input is a heartbeat; ``{"grant": N}`` writes epoch N, answered by ``{"granted": N}``, or by ``{"busy": why}``
    if a change of the last operator has not ended, or the memory of another cluster's rank still changes.
    """
    holds, record, _ = common.lease_files(request)
    lock = common.try_lock(holds, state_dir=request["state_dir"])
    last = {"epoch": 0, **common.read_json(record)}
    if lock is None:
        common.emit({"held": {**last, "held": True}})
        return

    def write(epoch: int, granted: bool) -> None:
        names = {name: request[name] for name in ("cluster", "operator", "operation")}
        document = {"epoch": epoch, **names, "since": time.time(), "granted": granted}
        # Without it nothing could be stopped or pruned on a node whose disk is full.
        common.write_block(record, json.dumps(document).encode())

    # This ends the last epoch before the next one is known. Otherwise what its operator began could go on under our
    # lock.
    write(last["epoch"], False)
    common.emit({"epoch": last["epoch"]})
    for line in _heartbeats(lines.fileno(), request["ttl_s"]):
        try:
            granted = json.loads(line).get("grant")
        except ValueError:
            granted = None  # the rest of a line, of which the beginning came with the request
        if granted is None:
            continue
        try:
            # A change of the last operator ends before the next one reads the state of the node.
            common.change_lock(request, BARRIER_S).close()
            if request.get("kind") == "start" and request["operation"] != "down":
                start_lock.settle(request)
        except common.Busy as busy:
            common.emit({"busy": str(busy)})
            break
        write(granted, True)
        common.emit({"granted": granted})
    lock.close()


def _heartbeats(handle: int, ttl_s: float) -> Iterator[bytes]:
    """The lines of input, until it ends or brings none for ``ttl_s``."""
    rest = b""
    while select.select([handle], [], [], ttl_s)[0]:
        chunk = os.read(handle, 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
