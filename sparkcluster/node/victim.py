"""Ends a rank when its node runs out of memory, before the kernel does or the node freezes.

Part of ``launcher``, for ranks on nodes with several models. Docker is not used: it may hang in this situation.
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
"""Seconds between readings; and the wait for each earlier victim, to free its memory."""
LAST_BYTES, HASTE = 2 << 30, 4
"""Below this, time counts fourfold: a prefill took 7.4 GiB in 3 s (RyderFreeman4Logos/gb10-services)."""


def is_due(below: Sequence[int], order: int) -> bool:
    """Whether the rank at position ``order`` of the victims, from 0, must end.

    ``below`` has the available bytes at each reading since they fell below the floor. A reading with more memory than
    the one before does not count: an earlier victim is releasing it. Pure.
    """
    waits = [after for before, after in itertools.pairwise(below) if after <= before]
    waited_s = READ_S * sum(HASTE if each < LAST_BYTES else 1 for each in waits)
    return bool(below) and waited_s >= WAIT_S * order


def protect(order: int, floor_bytes: int, kill: Callable[[], None]) -> None:
    """Return in a child process, which becomes the rank; the parent watches memory, and exits like its child.

    If MemAvailable is below ``floor_bytes`` and ``is_due``, the parent calls ``kill``, which ends every other process
    of the rank, logs the reason, and exits with ``VICTIM``.
    """
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE: keep all pages in memory
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
            finally:  # the log may be on a full disk
                os._exit(VICTIM)
