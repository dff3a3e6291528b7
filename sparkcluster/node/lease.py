"""Holds the lease of a cluster on this node, or the node's start lock, while heartbeats arrive.

Heartbeats arrive by standard input over the operator's connection. The lease is released if none arrives for
``ttl_s``, when the connection ends, or when the program is killed: the lock is a flock, so it never becomes stale.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, start_lock

# Time for a change of the previous operator to end; after that the next operator is refused.
BARRIER_S = 15.0


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Hold the lease; ``request`` has state_dir, cluster, kind, operator, operation and ttl_s (seconds).

    Answers ``{"held": {...}}`` and exits if another operator holds it, else ``{"epoch": last}``. Then every line of
    input is a heartbeat. ``{"grant": N}`` writes epoch N and is answered by ``{"granted": N}``, or by ``{"busy": why}``
    if a change of the previous operator has not ended, or the memory of another cluster's rank is still changing.
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
        # Overwrites in place: a full disk must not prevent stopping or pruning.
        common.write_block(record, json.dumps(document).encode())

    # Ends the last epoch before the next one is granted. Otherwise a change of its operator could continue under our
    # lock.
    write(last["epoch"], False)
    common.emit({"epoch": last["epoch"]})
    for line in _heartbeats(lines.fileno(), request["ttl_s"]):
        try:
            granted = json.loads(line).get("grant")
        except ValueError:
            granted = None  # the rest of a line whose beginning came with the request
        if granted is None:
            continue
        try:
            # A change of the previous operator must end before the next one reads the state of the node.
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
    """The lines of input, until it ends or is silent for ``ttl_s``."""
    rest = b""
    while select.select([handle], [], [], ttl_s)[0]:
        chunk = os.read(handle, 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
