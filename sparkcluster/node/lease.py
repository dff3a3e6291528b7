"""Holds the lease of a cluster on this node for as long as it is fed. Python 3.8, standard library only.

It lives on the operator's connection: heartbeats come in by standard input, and it lets go when none
came for ``ttl_s``, when the connection ends, or when it is killed; the lock is a flock, so nothing
can be left behind.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from typing import Any, BinaryIO

from sparkcluster.node import common

# A change that outlived its operator has this long to end before the next one is told to wait.
BARRIER_S = 15.0


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Hold the lease; ``request`` has state_dir, cluster, operator, operation and ttl_s (seconds).

    Says ``{"held": {...}}`` and ends where somebody else holds it, else ``{"epoch": last}``. Then every line
    read is a heartbeat; ``{"grant": N}`` writes epoch N, answered by ``{"granted": N}``, or by
    ``{"busy": why}`` where a change that somebody else began has not ended.
    """
    directory = common.cluster_dir(request["state_dir"], request["cluster"])
    record = os.path.join(directory, "lease.json")
    lock = common.try_lock(os.path.join(directory, "lease.lock"))
    last = common.read_json(record) or {}
    if lock is None:
        common.emit(
            {
                "held": {
                    **{key: last.get(key) for key in ("operator", "operation", "since")},
                    "epoch": last.get("epoch", 0),
                }
            }
        )
        return

    def write(epoch: int, granted: bool) -> None:
        document = {
            "epoch": epoch,
            "operator": request["operator"],
            "operation": request["operation"],
            "since": time.time(),
            "granted": granted,
        }
        common.write_atomically(record, json.dumps(document).encode())

    # From here on the last epoch is over, although the next one is not known yet: without this, its
    # operator could wake up and change something under our lock.
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
        epoch = document.get("grant") if isinstance(document, dict) else None
        if epoch is None:
            continue
        try:
            # What the last operator had begun ends before the next one looks at the node.
            common.change_lock(request["state_dir"], request["cluster"], BARRIER_S).close()
        except common.Busy as busy:
            common.emit({"busy": str(busy)})
            break
        write(epoch, True)
        common.emit({"granted": epoch})
    lock.close()
    # The reader may be blocked in a read that never ends; nothing is left to flush.
    os._exit(0)
