"""How often staging tries, and how failures of several nodes become one error.

A copy or download that fails is not repeated within one run: what arrived stays, and the next run resumes there.
To repeat copies, raise ``COPY_ATTEMPTS``; it applies to weights, image and Ray alike.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

from sparkcluster.errors import LeaseLost, RegistryAuth, SparkclusterError, StageError
from sparkcluster.hosts.fleet import Calls, failures

COPY_ATTEMPTS = 1
"""Attempts at a copy to one node, each from the next source that is free."""

DOWNLOAD_NODES = 2
"""Nodes that may try to download: where two cannot, a third rarely can."""

RESUME = "run this again: it resumes where it stopped"
"""Hint for failures that have no better one."""


def fan_out(
    sources: Sequence[str],
    targets: Sequence[str],
    copy: Callable[[str, str], None],
    stopped: threading.Event | None = None,
    *,
    relay: bool = True,
) -> None:
    """Call ``copy`` for every target with a source that is free.

    ``stopped`` is set when the caller is interrupted, so that ``copy`` can end early; with ``relay`` a target that is
    complete becomes a source for the others.

    Raises:
        SparkclusterError: of a target that failed, with those of the others; all were tried.
    """
    stopped = stopped or threading.Event()
    free: queue.SimpleQueue[str] = queue.SimpleQueue()
    for source in sources:
        free.put(source)

    def bring(target: str) -> None:
        source = free.get()  # every copy ends, and puts its source back
        try:
            if not stopped.is_set():
                copy(source, target)
            if relay:
                free.put(target)
        finally:
            free.put(source)

    def attempt(target: str) -> None:
        for _ in range(COPY_ATTEMPTS - 1):
            with contextlib.suppress(StageError):
                return bring(target)
        return bring(target)

    copies = Calls(attempt, {target: target for target in targets})
    try:
        errors = failures(copies.wait(threading.TIMEOUT_MAX))
    except BaseException:
        stopped.set()
        raise
    if errors:
        raise combined(list(errors.values()))


def combined(errors: Sequence[SparkclusterError]) -> SparkclusterError:
    """The error to raise for ``errors`` of one step, with the others, and those of each of them, in it.

    A lost lease comes first, then a login, since callers treat them apart.
    """
    errors = [each for error in errors for each in (error, *error.others)]
    first = min(errors, key=lambda error: (not isinstance(error, LeaseLost), not isinstance(error, RegistryAuth)))
    for each in errors:
        each.others = tuple(error for error in errors if error is not first) if each is first else ()
    return first
