"""Work of a process of its own on this node, which outlives the operator's connection.

A program starts it, or finds it at work, and follows it: the next operator's program follows the same process. It goes
on until it is done, or until the last program that follows it cancels it. A job has a directory::

    lock          flock held by the process that works
    state.json    its ``pid``, the ``cluster`` that it is for, ``what`` tells its work from other work in the same
                  place, what it ``said`` last, and in ``end`` how it ended
    orders        what operators ordered, an object in each line
    followers     shared flock of the programs that follow it
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

from sparkcluster.node import common, wire
from sparkcluster.node.wire import Check, Failed

Document = dict[str, Any]

PAUSE_S = 0.5  # between two looks at everything, and two words of a job
GLANCE_S = 0.05  # between two looks whether a file was replaced
_ENDING_S = 8.0  # for a process that was told to end
_MESSAGE = 500


class Cancelled(BaseException):
    """The process was told to end."""


class Over(Exception):
    """The job was ended for a reason that is not that of who follows it."""


class Job:
    """What the process that works knows of its job; ``before`` is what the last one said if it did not finish."""

    def __init__(self, directory: str, state: Document, before: Document) -> None:
        self.directory = directory
        self.before = before
        self._state = state
        self._order: Document = {}
        self._read = 0

    def say(self, said: Document) -> None:
        """Say how the work stands, in place of what was said before; nobody hears it while the disk is full."""
        self._state["said"] = said
        with contextlib.suppress(OSError):
            _write(self.directory, self._state)

    def order(self) -> Document:
        """What operators ordered so far: what an object has is added to the object's."""
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.directory, "orders"), "rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):  # else it is still being written
                    self._read += len(line)
                    self._order = _merged(self._order, json.loads(line))
        return self._order

    def work(self, action: Callable[[Job], Document]) -> None:
        """Do it, and say how it ended."""
        try:
            end_by_signal()
            how = wire.outcome(lambda: action(self))
        except Cancelled:
            how = {"failed": "it was cancelled", "kind": "cancelled"}
        except Exception as error:
            how = {"failed": "%s: %s" % (type(error).__name__, error), "kind": "other"}
        for name in how.keys() - {"done"}:
            how[name] = how[name][:_MESSAGE]
        with contextlib.suppress(OSError):
            try:
                _write(self.directory, {**self._state, "end": how})
            except OSError:  # a full disk is one of the ends
                common.write_block(_path(self.directory), json.dumps({"end": how}).encode())


def run(
    directory: str,
    cluster: str,
    action: Callable[[Job], Document],
    check: Check,
    *,
    what: str | None = None,
    order: Document | None = None,
    lines: BinaryIO | None = None,
    report: Callable[[Document], None] = common.emit,
) -> Document:
    """Start the job unless it is at work, follow it, and return what ``action`` returns.

    ``what`` tells its work from other work in the same place, which ends first. ``order`` and each of ``lines`` are
    orders; ``report`` gets what the job says. This program ends with the lines, and the job does not; who gives them
    has to end this program by ``os._exit``, as a thread still reads.

    Raises:
        Failed: ``action`` failed, or its process was ended, or it was cancelled.
        Refused: the lease went to another operator.
        Busy: the other work does not end.
        OSError: the job cannot be written, as on a full disk.
    """
    while True:
        first = json.dumps(order or {}).encode() + b"\n"
        began = _start(directory, {"cluster": cluster, "what": what}, first, action, check)
        if not began:
            _order(directory, first)
        with open(os.path.join(directory, "followers"), "wb") as followers:
            fcntl.flock(followers, fcntl.LOCK_SH)
            if lines is not None:
                threading.Thread(target=_listen, args=(directory, lines), daemon=True).start()
            try:
                return follow(directory, check, report)
            except Over:
                check()
                if began or lines is not None:
                    raise Failed("cancelled", "it was cancelled") from None


def answer(
    request: Document,
    stdin: BinaryIO,
    folder: str,
    key: str,
    action: Callable[[Job], Document],
    *,
    then: Callable[[Document], object] = lambda _: None,
) -> Document:
    """What a program answers whose job does ``action``: follow it, or cancel it where the request wants that.

    The job's directory in ``folder`` of the state directory is by ``key``, which tells what it does. ``then`` is
    called with the request after it, under the lease.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:16]

    def follow_or_cancel(check: Check) -> Document:
        directory = os.path.join(common.private(request["state_dir"]), folder, name)
        if request["do"] == "cancel":
            cancel(directory)
            return {}
        done = run(directory, request["cluster"], action, check)
        check()
        then(request)
        return done

    return wire.answer(request, stdin, follow_or_cancel)


def cancel(directory: str) -> None:
    """End the job, and what it started, unless another program follows it."""
    if not common.is_locked(os.path.join(directory, "lock")):
        return
    alone = common.try_lock(os.path.join(directory, "followers"))
    if alone is not None:
        with alone:
            _end(directory)


def end_by_signal() -> None:
    """Have SIGTERM raise Cancelled in this process, once."""

    def end(*_: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Cancelled

    signal.signal(signal.SIGTERM, end)


def follow(directory: str, check: Check, report: Callable[[Document], None] = common.emit) -> Document:
    """Pass on what the job says until its end, and return its result.

    Raises:
        Failed: it failed, or its process was ended.
        Over: it was cancelled, or the operator's lease is over for whom it was at work.
    """
    seen, looked = None, 0.0
    while True:
        stamp = _stamp(directory)
        if stamp == seen and time.monotonic() - looked < PAUSE_S:
            time.sleep(GLANCE_S)
            continue
        seen, looked = stamp, time.monotonic()
        running, state = common.is_locked(os.path.join(directory, "lock")), _state(directory)
        if state.get("said"):
            report(state["said"])
        end = state.get("end")
        if end and running:  # it ends, or another one begins
            seen = None
            time.sleep(GLANCE_S)
        elif end:
            if "done" in end:
                return dict(end["done"])
            if "refused" in end or end["kind"] == "cancelled":
                raise Over
            raise Failed(end["kind"], end["failed"])
        elif not running:
            raise Failed("lost", "its process on this node was ended")
        check()


def _start(directory: str, state: Document, order: bytes, action: Callable[[Job], Document], check: Check) -> bool:
    """Start a process that does ``action``, and return whether none is at work; one at work on something else ends."""
    until = time.monotonic() + _ENDING_S
    while (lock := common.try_lock(os.path.join(directory, "lock"))) is None:
        found = _state(directory)
        if "end" not in found and found.get("what") == state["what"]:
            return False
        if "end" not in found:
            _end(directory)
        if time.monotonic() > until:
            raise common.Busy("what was cancelled before has not ended after %.0f s" % _ENDING_S)
    with lock:
        check()  # it may have waited for long
        last = _state(directory)
        before = {} if "done" in last.get("end", {}) else last.get("said", {})
        _write(directory, state)
        common.write_atomically(os.path.join(directory, "orders"), order, sync=False)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return True
        try:
            os.setsid()
            if not os.fork():
                _let_go(lock.fileno())
                state["pid"] = os.getpid()
                _write(directory, state)
                Job(directory, state, before).work(action)
        finally:
            os._exit(0)


def _let_go(lock: int) -> None:
    """Keep nothing but the ``lock`` of what this program had open, other locks among it."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for each in map(int, os.listdir("/proc/self/fd")):
        if each not in (0, 1, 2, lock):
            with contextlib.suppress(OSError):
                os.close(each)


def _end(directory: str) -> None:
    with contextlib.suppress(LookupError, ProcessLookupError):
        os.kill(_state(directory)["pid"], signal.SIGTERM)


def _listen(directory: str, lines: BinaryIO) -> None:
    """Pass the orders in ``lines`` on, and end this program with them."""

    def pass_on() -> Document:
        for line in iter(lines.readline, b""):
            _order(directory, line)
        return {}

    how = wire.outcome(pass_on)
    if "done" not in how:
        common.emit(how)
    os._exit(1)


def _order(directory: str, line: bytes) -> None:
    with open(os.path.join(directory, "orders"), "ab", buffering=0) as file:
        file.write(line)


def _merged(found: Document, order: Document) -> Document:
    both = {name for name, value in order.items() if isinstance(value, dict) and isinstance(found.get(name), dict)}
    return {**found, **{name: {**found[name], **value} if name in both else value for name, value in order.items()}}


def _path(directory: str) -> str:
    return os.path.join(directory, "state.json")


def _stamp(directory: str) -> tuple[int, int] | None:
    """What tells the state from the one that replaces it, most of the time; None where there is none."""
    try:
        found = os.stat(_path(directory))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _state(directory: str) -> Document:
    return dict(common.read_json(_path(directory)))


def _write(directory: str, state: Document) -> None:
    common.write_atomically(_path(directory), json.dumps(state).encode(), sync=False)  # no job outlives a power failure
