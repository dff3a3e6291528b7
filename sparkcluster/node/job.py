"""Work of a process of its own on this node, which outlives the operator's connection.

A program starts it, or finds it at work, and follows it: the next operator's program follows the same process. A job
has a directory::

    lock          flock held by the process that works
    job.json      what operators ordered; ``leases`` has, by cluster and kind, the last lease of each that wants it,
                  ``what`` tells its work from other work in the same place
    state.json    its ``pid`` and what it says of itself
    end.json      how it ended: ``done``, ``failed`` or ``refused``; its space is taken before the work begins, since a
                  full disk is one of the ends

A lease may lapse: work goes on while no other operator has asked for it, whether or not anybody follows. It ends when
all its leases were taken, or the last one was cancelled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, wire
from sparkcluster.node.wire import Check, Failed

Document = dict[str, Any]

_PAUSE_S = 0.5  # between two looks at everything
GLANCE_S = 0.05  # between two looks whether a file was replaced
_ORDER_S = 10.0  # for another program to write its order
_ENDING_S = 8.0  # for a process that was told to end
_MESSAGE = 500
_END_BYTES = 4096  # written at once over what was there, so that readers see one or the other
_LOST = "its process on this node was ended"


class Over(Exception):
    """The job ended, since all its leases were taken or cancelled."""


class Ended(BaseException):
    """The process was told to end, or its directory was removed."""


class Job:
    """What the process that works knows of its job; ``before`` is what the last one said if it did not finish."""

    def __init__(self, directory: str, before: Document) -> None:
        self.directory = directory
        self.before = before
        self._order: Document = {}
        self._seen: tuple[int, int] | None = None
        self._looked = -_PAUSE_S
        self._why: str | None = None
        self._taken_at: float | None = None
        self._held_at: float | None = None

    def order(self) -> Document:
        """What operators ordered so far; Ended if the directory of the job is gone."""
        seen = _stamp(self.directory, "job.json")
        if seen is None:
            raise Ended("its directory is gone")
        if seen != self._seen:
            self._order, self._seen = _read(self.directory, "job.json"), seen
        return self._order

    def say(self, **state: Any) -> None:
        """Say how the work stands, in place of what was said before; nobody hears it while the disk is full."""
        with contextlib.suppress(OSError):
            _write(self.directory, "state.json", {"pid": os.getpid(), **state})

    def taken(self) -> str | None:
        """Why no lease is its operator's any longer; None while one is, or lapsed. Looks twice a second at most."""
        now = time.monotonic()
        if now - self._looked >= _PAUSE_S:
            leases = list(self.order().get("leases", {}).values())
            reasons = [_taken(lease) for lease in leases]
            self._looked, self._why = now, None
            if all(reasons):
                self._why = str(reasons[-1]) if reasons else "it was cancelled"
            held = any(common.is_locked(_files(lease)[0]) for lease in leases)
            self._taken_at = (self._taken_at or now) if self._why else None
            self._held_at = (self._held_at or now) if self._why and held else None
        return self._why

    def check(self, adopted_s: float = 0.0, *, held: bool = False) -> None:
        """Refused if the last lease was taken ``adopted_s`` ago, and its operator has not come to follow this job.

        With ``held`` only if it was held for so long: an operation that is over soon ends nothing.
        """
        why = self.taken()
        at = self._held_at if held else self._taken_at
        cancelled = why is not None and not self._order.get("leases")
        if why is not None and (cancelled or (at is not None and time.monotonic() - at >= adopted_s)):
            raise common.Refused(why)


def _files(lease: Document) -> tuple[str, str, str]:
    return common.lease_files(lease["state_dir"], lease["cluster"], lease.get("kind", "cluster"))


def _taken(lease: Document) -> str | None:
    try:
        common.not_taken(**common.lease_of(lease), mark=lease.get("mark"))
    except common.Refused as error:
        return str(error)
    return None


def _name(lease: Document) -> str:
    return "%s %s" % (lease["cluster"], lease.get("kind", "cluster"))


def run(
    directory: str,
    lease: Document,
    work: Callable[[Job], Document],
    check: Check,
    lines: BinaryIO | None = None,
    *,
    what: str | None = None,
    report: Callable[[Document], None] = common.emit,
) -> Document:
    """Start the job unless it is at work, follow it, and return what ``work`` returns; ``lease`` is the operator's.

    ``what`` tells its work from other work in the same place, which ends first.

    Each of ``lines`` is an order; ``report`` gets what the job says. This program ends with the lines, and the job
    does not; who gives them has to end this program by ``os._exit``, as a thread still reads.

    Raises:
        Failed: ``work`` failed, or its process was ended, or it was cancelled.
        Refused: the lease went to another operator.
        Busy: another program writes its order all the time, or the process that was cancelled does not end.
        OSError: an order cannot be written, as on a full disk.
    """
    errors: list[Exception] = []

    def checked() -> None:
        if errors:
            raise errors[0]
        check()

    lease = {**lease, "mark": common.read_json(_files(lease)[1]).get("mark")}
    order = {"leases": {_name(lease): lease}, "what": what}
    start(directory, order, work, checked)
    if lines is not None:
        _listen(directory, lines, check, errors)
    while True:
        try:
            return follow(directory, checked, report)
        except Over:
            checked()
            if _read(directory, "job.json").get("leases", {}).get(_name(lease)) != lease:
                raise Failed("cancelled", "it was cancelled") from None
            start(directory, order, work, checked, again=True)  # it did not hear of our lease in time


def start(
    directory: str, order: Document, work: Callable[[Job], Document], check: Check, *, again: bool = False
) -> None:
    """Give the job its ``order``, and start a process that does ``work`` unless one is at work.

    One that is about to end, as after Ctrl-C, is waited for: it takes no order. One at work on something else ends
    first. What was ordered of the last process is forgotten, unless this is the same job ``again``.
    """
    with _ordering(directory):
        check()  # it may have waited for long
        lock, limit = common.try_lock(os.path.join(directory, "lock")), time.monotonic() + _ENDING_S
        if lock is None and _read(directory, "job.json").get("what") != order.get("what"):
            _merge(directory, {"cancel": True})
        while lock is None and _is_ending(directory):
            if time.monotonic() > limit:
                raise common.Busy("what was cancelled before has not ended after %.0f s" % _ENDING_S)
            check()
            lock = common.try_lock(os.path.join(directory, "lock"), GLANCE_S)
        if lock is None:
            _merge(directory, order)
            return
        with lock:
            before = {} if "done" in _read(directory, "end.json") else _read(directory, "state.json")
            _end(directory)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, "state.json"))
            _merge(directory, order, keep=again)
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                return
            try:
                os.setsid()
                if not os.fork():
                    _let_go(lock.fileno())
                    _work(Job(directory, before), work)
            finally:
                os._exit(0)


def _is_ending(directory: str) -> bool:
    """Whether the process at work was told to end, or has said how it ended."""
    found = _read(directory, "job.json")
    return bool(found.get("cancel") or found.get("end") or _read(directory, "end.json"))


def _let_go(lock: int) -> None:
    """Keep nothing but the ``lock`` of what this program had open, other locks among it."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for each in map(int, os.listdir("/proc/self/fd")):
        if each not in (0, 1, 2, lock):
            with contextlib.suppress(OSError):
                os.close(each)


def _work(job: Job, work: Callable[[Job], Document]) -> None:
    def end(*_: Any) -> None:
        raise Ended("it was cancelled")

    try:
        signal.signal(signal.SIGTERM, end)
        job.say()
        how = wire.outcome(lambda: work(job))
    except Ended as error:
        how = {"failed": str(error), "kind": "cancelled"}
    except Exception as error:
        how = {"failed": "%s: %s" % (type(error).__name__, error), "kind": "other"}
    for name in how.keys() - {"done"}:
        how[name] = how[name][:_MESSAGE]
    with contextlib.suppress(OSError):
        _end(job.directory, how)


def follow(directory: str, check: Check, report: Callable[[Document], None] = common.emit) -> Document:
    """Pass on what the job says until its end, and return its result.

    Raises:
        Failed: it failed, or its process was ended.
        Over: it ended, since its leases were taken.
    """
    seen, looked = None, 0.0
    while True:
        stamps = _stamp(directory, "state.json"), _stamp(directory, "end.json")
        if stamps == seen and time.monotonic() - looked < _PAUSE_S:
            time.sleep(GLANCE_S)
            continue
        seen, looked = stamps, time.monotonic()
        running, ended = common.is_locked(os.path.join(directory, "lock")), _read(directory, "end.json")
        said = _read(directory, "state.json")
        said.pop("pid", None)
        if said:
            report(said)
        if "done" in ended:
            return dict(ended["done"])
        if "failed" in ended:
            raise Failed(ended["kind"], ended["failed"])
        if "refused" in ended:
            raise Over
        if not running:
            raise Failed("lost", _LOST)
        check()


def _listen(directory: str, lines: BinaryIO, check: Check, errors: list[Exception]) -> None:
    """Merge the orders in ``lines``, in a thread; one that fails is the last, and its error is put into ``errors``."""

    def read() -> None:
        for line in iter(lines.readline, b""):
            try:
                if not errors:
                    order(directory, json.loads(line), check)
            except Exception as error:
                errors.append(error)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()


def order(directory: str, order: Document, check: Check) -> None:
    """Add ``order`` to what was ordered: what an object has is added to the object's.

    Raises:
        Refused: ``check`` says that the operator's lease is over.
        Busy: another program still writes its order.
    """
    with _ordering(directory):
        check()
        _merge(directory, order)


def cancel(directory: str, lease: Document) -> None:
    """Take back the ``lease`` under which the job goes on; it ends, and stops what it started, if that was the last."""
    if not common.is_locked(os.path.join(directory, "lock")):
        return
    with _ordering(directory):
        found = _read(directory, "job.json")
        leases = found.get("leases", {})
        if leases.get(_name(lease), {}).get("epoch") == lease["epoch"]:
            del leases[_name(lease)]
            _write(directory, "job.json", found)


def _ordering(directory: str) -> BinaryIO:
    lock = common.try_lock(os.path.join(directory, "order.lock"), _ORDER_S)
    if lock is None:
        raise common.Busy("another program still writes its order after %.0f s" % _ORDER_S)
    return lock


def _merge(directory: str, order: Document, *, keep: bool = True) -> None:
    found = _read(directory, "job.json") if keep else {}
    for name, value in order.items():
        both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = {**found[name], **value} if both else value
    _write(directory, "job.json", found)


def _stamp(directory: str, name: str) -> tuple[int, int] | None:
    """What tells a file from the one that replaces it; None where there is none."""
    try:
        found = os.stat(os.path.join(directory, name))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read(directory: str, name: str) -> Document:
    return dict(common.read_json(os.path.join(directory, name)))


def _write(directory: str, name: str, document: Document) -> None:
    """Replace a file of the job. It is not synced: no job outlives a power failure.

    Its time is set from the clock: by that and its inode a reader sees that it was replaced, and before Linux 6.13 a
    kernel gives the same time to all files of 4 ms, and the inode of the file that was replaced to the next one.
    """
    path = os.path.join(directory, name)
    partial = "%s.%d" % (path, threading.get_ident())
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(document, file)
            file.flush()
            os.utime(file.fileno(), ns=(time.time_ns(), time.time_ns()))
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _end(directory: str, how: Document | None = None) -> None:
    """Write how it ended over the space that was taken for that; without ``how`` take it."""
    create = os.O_CREAT if how is None else 0
    path = os.path.join(directory, "end.json")
    handle = os.open(path, os.O_WRONLY | create | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        text = json.dumps(how) if how else ""
        os.pwrite(handle, text.encode().ljust(_END_BYTES), 0)
    finally:
        os.close(handle)
