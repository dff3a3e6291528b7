"""How often staging tries, and how failures of several nodes become one error.

A copy or download that fails is not repeated within one run: what arrived stays, and the next run resumes there.
To repeat copies, raise ``COPY_ATTEMPTS``; it applies to weights, image and Ray alike.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from sparkcluster.errors import LeaseLost, RegistryAuth, SparkclusterError, StageError

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
    """Copy to every target from a source that is free.

    Args:
        sources: nodes that are complete.
        targets: nodes to copy to.
        copy: copies from a source to a target.
        stopped: set when the caller is interrupted; ``copy`` ends early.
        relay: whether a target that is complete becomes a source for the others.

    Raises:
        SparkclusterError: of a target that failed, with those of the others; all were tried.
    """
    run = _FanOut(copy, stopped or threading.Event(), relay=relay)
    for source in sources:
        run.free.put(source)
    threads = [threading.Thread(target=run.bring, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(1)
    except BaseException:
        run.stopped.set()
        raise
    if run.errors:
        raise combined([run.errors[target] for target in targets if target in run.errors])


class _FanOut:
    def __init__(self, copy: Callable[[str, str], None], stopped: threading.Event, *, relay: bool) -> None:
        self.copy = copy
        self.relay = relay
        self.stopped = stopped
        self.free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.errors: dict[str, Exception] = {}

    def bring(self, target: str) -> None:
        for _ in range(COPY_ATTEMPTS):
            self.errors.pop(target, None)
            source = self.free.get()  # every copy ends, and puts its source back
            try:
                if not self.stopped.is_set():
                    self.copy(source, target)
            except Exception as error:  # noqa: BLE001 - raised in the thread of the caller
                self.errors[target] = error
            else:
                if self.relay:
                    self.free.put(target)
            finally:
                self.free.put(source)
            if not isinstance(self.errors.get(target), StageError):
                return


def combined(errors: Sequence[Exception]) -> Exception:
    """The error to raise for ``errors`` of one step, with the others in it.

    A defect comes first since it is a bug of ours, then a lost lease and a login since callers treat them apart.
    """
    first = min(errors, key=_rank)
    others = [error for error in errors if error is not first]
    if isinstance(first, SparkclusterError):
        first.others = tuple(error for error in others if isinstance(error, SparkclusterError))
    else:
        for error in others:
            first.add_note(str(error))
    return first


def _rank(error: Exception) -> int:
    if not isinstance(error, SparkclusterError):
        return 0
    return 1 if isinstance(error, LeaseLost) else 2 if isinstance(error, RegistryAuth) else 3
