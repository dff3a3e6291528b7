"""Work of a process of its own on this node, which outlives the operator's connection. Python 3.8, standard library.

A program starts it, or finds it at work, and follows it: the next operator's program follows the same process. A job
has a directory::

    lock          flock held by the process that works
    job.json      what operators ordered; ``lease`` is that of the last one
    state.json    its ``pid`` and what it says of itself, at its end with ``done``, ``failed`` or ``refused``

The lease may lapse: work goes on while no other operator has asked for it, whether or not anybody follows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, Optional, Tuple

from sparkcluster.node import common, wire
from sparkcluster.node.wire import Check, Failed

Document = Dict[str, Any]

_PAUSE_S = 0.5  # between two looks at a file
_ORDER_S = 10.0  # for another program to write its order
_MESSAGE = 500
_ENDS = ("done", "failed", "refused")


class Over(Exception):
    """The job ended, since the lease of its last operator was taken."""


class Ended(BaseException):
    """The process was told to end, or its directory was removed."""


class Job:
    """What the process that works knows of its job; ``before`` is what the last one said if it did not finish."""

    def __init__(self, directory: str, before: Document) -> None:
        self.directory = directory
        self.before = before
        self._said: Document = {}
        self._order: Document = {}
        self._seen: Optional[Tuple[int, int]] = None
        self._looked = -_PAUSE_S
        self._why: Optional[str] = None
        self._since: Optional[float] = None

    def order(self) -> Document:
        """What operators ordered so far; Ended if the directory of the job is gone."""
        path = os.path.join(self.directory, "job.json")
        try:
            found = os.stat(path)
        except OSError:
            raise Ended("its directory is gone") from None
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            self._order, self._seen = common.read_json(path) or {}, seen
        return self._order

    def say(self, **state: Any) -> None:
        """Say how the work stands, in place of what was said before."""
        self._said = state
        _write(self.directory, "state.json", {"pid": os.getpid(), **state})

    def end(self, **how: Any) -> None:
        """Say how it ended, beside what was said last."""
        with contextlib.suppress(OSError):
            self.say(**{**self._said, **how})

    def taken(self) -> Optional[str]:
        """Why the lease is not ours any longer; None while it is, or lapsed. Looks twice a second at most."""
        now = time.monotonic()
        if now - self._looked >= _PAUSE_S:
            self._looked, self._why = now, None
            try:
                common.not_taken(**common.lease_of(self.order()["lease"]))
            except common.Refused as error:
                self._why = str(error)
            self._since = (self._since or now) if self._why else None
        return self._why

    def check(self, adopted_s: float = 0.0) -> None:
        """Refused if the lease was taken ``adopted_s`` ago, and its operator has not come to follow this job."""
        why = self.taken()
        if why is not None and time.monotonic() - (self._since or 0.0) >= adopted_s:
            raise common.Refused(why)


def run(
    directory: str,
    order: Document,
    work: Callable[[Job], Document],
    check: Check,
    lines: Optional[BinaryIO] = None,
    *,
    report: Callable[[Document], None] = common.emit,
) -> Document:
    """Start the job unless it is at work, follow it, and return what ``work`` returns; ``order`` has the ``lease``.

    Each of ``lines`` is an order as well; ``report`` gets what the job says. This program ends with the lines, and the
    job does not; who gives them has to end this program by ``os._exit``, as a thread still reads.

    Raises:
        Failed: ``work`` failed, or its process was ended.
        Refused: the lease went to another operator.
    """
    check()
    start(directory, order, work)
    if lines is not None:
        _listen(directory, lines, check)
    while True:
        try:
            return follow(directory, check, report)
        except Over:
            check()  # it did not hear of our lease in time: once more
            start(directory, order, work, again=True)


def start(directory: str, order: Document, work: Callable[[Job], Document], *, again: bool = False) -> None:
    """Give the job its ``order``, and start a process that does ``work`` unless one is at work.

    What was ordered of the last process is forgotten, unless this is the same job ``again``.
    """
    lock = common.try_lock(os.path.join(directory, "lock"))
    if lock is None:
        merge(directory, order)
        return
    with lock:
        before = _said(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, "state.json"))
        merge(directory, order, keep=again)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            os.setsid()
            if not os.fork():
                null = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(null, stream)
                _work(Job(directory, {} if "done" in before else before), work)
        finally:
            os._exit(0)


def _work(job: Job, work: Callable[[Job], Document]) -> None:
    def end(*_: Any) -> None:
        raise Ended("it was cancelled")

    try:
        signal.signal(signal.SIGTERM, end)
        job.say()
        job.end(**wire.outcome(lambda: work(job)))
    except Ended as error:
        job.end(failed=str(error), kind="cancelled")
    except Exception as error:
        job.end(failed=("%s: %s" % (type(error).__name__, error))[:_MESSAGE], kind="other")


def follow(directory: str, check: Check, report: Callable[[Document], None] = common.emit) -> Document:
    """Pass on what the job says until its end, and return its result.

    Raises:
        Failed: it failed, or its process was ended.
        Over: it ended, since the lease of its last operator was taken.
    """
    while True:
        running, said = common.is_locked(os.path.join(directory, "lock")), _said(directory)
        said.pop("pid", None)
        if "done" in said:
            return dict(said["done"])
        if "failed" in said:
            raise Failed(said["kind"], str(said["failed"])[:_MESSAGE])
        if "refused" in said:
            raise Over(said["refused"])
        if not running:
            raise Failed("lost", "its process on this node was ended")
        check()
        if said:
            report(said)
        time.sleep(_PAUSE_S)


def _listen(directory: str, lines: BinaryIO, check: Check) -> None:
    def read() -> None:
        for line in iter(lines.readline, b""):
            with contextlib.suppress(ValueError, OSError):
                order = json.loads(line)
                check()
                merge(directory, order)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()


def merge(directory: str, order: Document, *, keep: bool = True) -> None:
    """Add ``order`` to what was ordered, if that is to be kept: what an object has is added to the object's."""
    lock = common.try_lock(os.path.join(directory, "order.lock"), _ORDER_S)
    if lock is None:
        raise common.Busy("another program still writes its order after %.0f s" % _ORDER_S)
    with lock:
        found = (common.read_json(os.path.join(directory, "job.json")) or {}) if keep else {}
        for name, value in order.items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = {**found[name], **value} if both else value
        _write(directory, "job.json", found)


def cancel(directory: str) -> None:
    """Have the process end, if one is at work; it stops what it started."""
    pid = _said(directory).get("pid")
    if isinstance(pid, int) and pid > 1 and common.is_locked(os.path.join(directory, "lock")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _said(directory: str) -> Document:
    found = common.read_json(os.path.join(directory, "state.json"))
    return found if isinstance(found, dict) else {}


def _write(directory: str, name: str, document: Document) -> None:
    """Replace a file of the job. It is not synced: no job outlives a power failure, and a full disk would stall it."""
    path = os.path.join(directory, name)
    partial = "%s.%d" % (path, threading.get_ident())
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(document, file)
    os.replace(partial, path)
