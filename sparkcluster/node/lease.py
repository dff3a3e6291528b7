"""Holds the lease of a cluster on this node while heartbeats arrive.

Heartbeats come by standard input over the operator's connection. The lease is released when none came for
``ttl_s``, when the connection ends, or when the program is killed: the lock is a flock, so none is left behind.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any, BinaryIO

from sparkcluster.node import common

# A change of the last operator has this long to end; then the next operator is refused.
BARRIER_S = 15.0


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Hold the lease; ``request`` has state_dir, cluster, kind, operator, operation and ttl_s (seconds).

    Answers ``{"held": {...}}`` and ends if another operator holds it, else ``{"epoch": last}``. Then every line of
    input is a heartbeat; ``{"grant": N}`` writes epoch N, answered by ``{"granted": N}``, or by ``{"busy": why}``
    if a change of the last operator has not ended.
    """
    place = (request["state_dir"], request["cluster"])
    kind = request.get("kind", "cluster")
    holds, record, _ = common.lease_files(*place, kind)
    try:
        lock = common.try_lock(holds)
    except OSError as error:
        sys.exit(str(error))
    last = common.read_json(record)
    if lock is None:
        holder = {key: last.get(key) for key in ("operator", "operation", "since")}
        common.emit({"held": {**holder, "epoch": last.get("epoch", 0), "held": True}})
        return

    def write(epoch: int, granted: bool) -> None:
        document = {
            "epoch": epoch,
            "operator": request["operator"],
            "operation": request["operation"],
            "since": time.time(),
            "granted": granted,
        }
        # Without it nothing could be stopped or pruned on a node whose disk is full.
        common.write_on_full_disk(record, json.dumps(document).encode())

    # This ends the last epoch before the next one is known. Otherwise what its operator began could go on under our
    # lock.
    write(last.get("epoch", 0), False)
    common.emit({"epoch": last.get("epoch", 0)})

    heartbeats: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        for line in iter(lines.readline, b""):
            heartbeats.put(line)
        heartbeats.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = heartbeats.get(timeout=request["ttl_s"])
        except queue.Empty:
            break
        if line is None:
            break
        try:
            document = json.loads(line)
        except ValueError:
            continue
        granted = document.get("grant") if isinstance(document, dict) else None
        if granted is None:
            continue
        try:
            # A change of the last operator ends before the next one reads the state of the node.
            common.change_lock(*place, BARRIER_S, kind).close()
        except common.Busy as busy:
            common.emit({"busy": str(busy)})
            break
        write(granted, True)
        common.emit({"granted": granted})
    lock.close()
    # The reading thread may block forever; nothing is left to flush.
    os._exit(0)
