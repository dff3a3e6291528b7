"""How often staging tries, and how failures of several nodes become one error.

A copy or download that fails is not repeated within one run: what arrived stays, and the next run resumes there.
A source that falls silent is waited for once; its copy, and the others, come from another source where there is one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from sparkcluster.errors import LeaseLost, RegistryAuth, SparkclusterError, StageError
from sparkcluster.hosts.fleet import Calls, failures
from sparkcluster.staging.again import is_silence

DOWNLOAD_NODES = 2
"""Nodes that may try to download: where two cannot, a third rarely can."""


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
    known = _Sources()
    for source in sources:
        known.add(source)

    def bring(source: str, target: str) -> None:
        if not stopped.is_set():
            copy(source, target)
        if relay:
            known.add(target)

    copies = Calls(partial(known.lend, bring), {target: target for target in targets})
    try:
        errors = failures(copies.wait(threading.TIMEOUT_MAX))
    except BaseException:
        stopped.set()
        raise
    if errors:
        raise combined(list(errors.values()))


class _Sources:
    """Those that are free, and the error of each that fell silent."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._silent: dict[str, StageError] = {}

    def add(self, source: str) -> None:
        self._names.add(source)
        self._free.put(source)

    def lend(self, bring: Callable[[str, str], None], target: str) -> None:
        """Call ``bring`` with a source that is free, and with another one where that falls silent."""
        while (source := self._free.get()) not in self._silent:
            try:
                return bring(source, target)
            except StageError as error:
                if error.node != source or not is_silence(error.__cause__):
                    raise
                self._silent[source] = error
            finally:
                # every copy puts its source back; a silent one only where no other is left, for those that wait
                if source not in self._silent or len(self._silent) == len(self._names):
                    self._free.put(source)
        self._free.put(source)
        raise self._silent[source]


def combined(errors: Sequence[SparkclusterError]) -> SparkclusterError:
    """The error to raise for ``errors`` of one step, with the others, and those of each of them, in it.

    A lost lease comes first, then a login, since callers treat them apart.
    """
    errors = [each for error in errors for each in (error, *error.others)]
    first = min(errors, key=lambda error: (not isinstance(error, LeaseLost), not isinstance(error, RegistryAuth)))
    for each in errors:
        each.others = tuple(error for error in errors if error is not first) if each is first else ()
    return first
