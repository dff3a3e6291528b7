"""One cluster at a time starts or stops ranks on a node: engines that start together mis-size each other's memory.

The lock is that of ``common.lease_files`` with kind ``start``. Operators hold it by ``lease``, guards by ``own_rank``,
from before the first rank is stopped until the group has answered, on every node of the group or on none: so two that
need the same nodes never wait for each other. It ends with the process that holds it. A start that was cut off goes on
without it, and what shows that is that memory still changes.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable

from sparkcluster.node import common
from sparkcluster.node.shared import LAUNCHER_FILE

STABLE_S, STABLE_BYTES = 5.0, 1 << 30
"""An engine that loads from an NVMe disk takes several GiB in that time; other programs of a node seldom take one."""
LIMIT_S = 15.0
"""Longest wait for that in one attempt; who wants the lock tries again."""


def held_by(lease: common.Lease) -> str | None:
    """What has the start lock of this node, in words; None while nobody has."""
    lock, record, _ = common.lease_files({**lease, "kind": "start"})
    if not common.is_locked(lock):
        return None
    found = common.read_json(record)
    doing = "stopping" if found.get("operation") == "down" else "starting"
    return "%s is %s" % (str(found.get("cluster") or "another cluster")[:100], doing)


def settle(
    lease: common.Lease, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
) -> None:
    """Where another cluster has ranks, wait until MemAvailable has moved by less than 1 GiB for 5 s.

    Raises:
        Busy: it still moves after ``LIMIT_S``.
    """
    if not _is_shared(lease):
        return
    began = since = clock()
    level = available()
    while clock() - since < STABLE_S:
        if clock() - began > LIMIT_S:
            raise common.Busy("its memory is still changing: another model may be loading")
        pause(0.5)
        now = available()
        if abs(now - level) > STABLE_BYTES:
            level, since = now, clock()


def available() -> int:
    """MemAvailable in bytes."""
    with open("/proc/meminfo") as file:
        return 1024 * int(re.findall(r"^MemAvailable:\s+(\d+) kB", file.read(), re.MULTILINE)[0])


def _is_shared(lease: common.Lease) -> bool:
    """Whether another cluster of this user started ranks here, which ``down`` has not removed; a gateway is none."""
    own = common.cluster_dir(lease["state_dir"], lease["cluster"])
    found = glob.iglob(os.path.join(glob.escape(os.path.dirname(own)), "*/ranks/*", LAUNCHER_FILE))
    return any(not path.startswith(own + os.sep) for path in found)
