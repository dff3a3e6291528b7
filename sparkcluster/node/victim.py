"""Ends a rank where its node runs out of memory, before the kernel does or the node freezes.

Part of ``launcher``, for ranks of nodes that have several models. Docker is not asked: it may hang then.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import signal
from collections.abc import Callable, Sequence

from sparkcluster.node.prepare import say
from sparkcluster.node.shared import VICTIM, VICTIM_LINE

READ_S, WAIT_S = 0.25, 2.0
"""Seconds between two readings, and how long a rank waits for each that goes before, whose memory has to come back."""
LAST_BYTES, HASTE = 2 << 30, 4
"""Of less than this, time counts so many times: a prefill took 7.4 GiB in 3 s (RyderFreeman4Logos/gb10-services)."""


def is_due(below: Sequence[int], order: int) -> bool:
    """Whether the rank at ``order`` of the victims, from 0, is to end.

    ``below`` has the bytes that were available at each reading since they are too few. That of a moment in which memory
    came back does not count: a rank that went before is releasing it. Pure.
    """
    waits = [after for before, after in itertools.pairwise(below) if after <= before]
    waited_s = READ_S * sum(HASTE if each < LAST_BYTES else 1 for each in waits)
    return bool(below) and waited_s >= WAIT_S * order


def protect(order: int, floor_bytes: int, kill: Callable[[], None]) -> None:
    """Return in a child process, which is to become the rank; this one watches memory, and ends as its child does.

    Where MemAvailable is below ``floor_bytes`` and ``is_due``, it calls ``kill``, which ends every other process of
    the rank, says so, and exits with ``VICTIM``.
    """
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE: nothing of it has to be read back from a disk
    meminfo = os.open("/proc/meminfo", os.O_RDONLY)
    below: list[int] = []
    while True:
        woken = signal.sigtimedwait(signals, READ_S)
        if woken is not None and woken.si_signo != signal.SIGCHLD:
            os.kill(child, woken.si_signo)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
        found = re.search(rb"MemAvailable:\s+(\d+)", os.pread(meminfo, 4096, 0))
        available = int(found.group(1)) * 1024 if found else floor_bytes
        below = [*below, available] if available < floor_bytes else []
        if is_due(below, order):
            kill()
            figures = available / 2**30, floor_bytes / 2**30
            try:
                say(VICTIM_LINE + "killed to protect the machine: MemAvailable was %.1f GiB, below %.1f GiB" % figures)
            finally:  # a log on a full disk
                os._exit(VICTIM)
