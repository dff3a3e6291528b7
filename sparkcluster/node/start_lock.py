"""Lets only one cluster at a time start or stop ranks on a node: engines that start together mis-size their memory.

The lock is a lease (``common.lease_files``) of kind ``start``. Operators hold it by ``lease``, guards by ``own_rank``,
from before the first rank is stopped until the group has answered. They hold it on every node of the group or on none,
so that two commands that need the same nodes never wait for each other. It ends with the process that holds it. A start
that was interrupted continues without it; then changing memory shows that ranks are starting.
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
"""An engine that loads from an NVMe disk takes several GiB in that time; other programs rarely take one."""
LIMIT_S = 15.0
"""Longest wait for stable memory in one attempt; the caller retries."""


def held_by(lease: common.Lease) -> str | None:
    """The holder of this node's start lock, in words; None if it is free."""
    lock, record, _ = common.lease_files({**lease, "kind": "start"})
    if not common.is_locked(lock):
        return None
    found = common.read_json(record)
    doing = "stopping" if found.get("operation") == "down" else "starting"
    return "%s is %s" % (str(found.get("cluster") or "another cluster")[:100], doing)


def settle(
    lease: common.Lease, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
) -> None:
    """If another cluster has ranks, wait until MemAvailable has changed by less than 1 GiB for 5 s.

    Raises:
        Busy: it is still changing after ``LIMIT_S``.
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
    """Whether another cluster of this user has ranks here that ``down`` has not removed; a gateway does not count."""
    own = common.cluster_dir(lease["state_dir"], lease["cluster"])
    found = glob.iglob(os.path.join(glob.escape(os.path.dirname(own)), "*/ranks/*", LAUNCHER_FILE))
    return any(not path.startswith(own + os.sep) for path in found)
