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
STOPPED_S = 30.0
_ENDING_S = 8.0  # for a process that was told to end


class Job:
    """What the process that works knows of its job."""

    def __init__(self, directory: str, state: Document) -> None:
        self.directory = directory
        self._state = state
        self._order: Document = {}
        self._read = 0

    def say(self, said: Document) -> None:
        """Say how the work stands, in place of what was said before; nobody hears it while the disk is full."""
        self._state["said"] = said
        with contextlib.suppress(OSError):
            _write(self.directory, self._state)

    def order(self) -> Document:
        """What operators ordered so far, of each name the last."""
        with open(os.path.join(self.directory, "orders"), "rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):  # else it is still being written
                    self._read += len(line)
                    self._order = {**self._order, **json.loads(line)}
        return self._order

    def work(self, action: Callable[[Job], Document]) -> None:
        """Do it, and say how it ended."""
        try:
            end_by_signal()
            how = wire.outcome(lambda: action(self))
        except KeyboardInterrupt:
            how = {"failed": "it was cancelled", "kind": "cancelled"}
        except Exception as error:
            how = {"failed": "%s: %s" % (type(error).__name__, error), "kind": "other"}
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
        Busy: other work, or what was cancelled before, does not end.
        OSError: the job cannot be written, as on a full disk.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with open(os.path.join(directory, "followers"), "wb") as followers:
        fcntl.flock(followers, fcntl.LOCK_SH)  # from here on nobody cancels it
        first = json.dumps(order or {}).encode() + b"\n"
        if not _start(directory, {"cluster": cluster, "what": what}, first, action, check):
            _order(directory, first)
        if lines is not None:
            threading.Thread(target=_listen, args=(directory, lines), daemon=True).start()
        return _follow(directory, check, report)


def answer(request: Document, stdin: BinaryIO, folder: str, key: str, action: Callable[[Job], Document]) -> Document:
    """What a program answers whose job does ``action``: follow it, or cancel it where the request wants that.

    The job's directory in ``folder`` of the state directory is by ``key``, which tells what it does.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:16]

    def follow_or_cancel(check: Check) -> Document:
        directory = os.path.join(common.private(request["state_dir"]), folder, name)
        if request["do"] == "cancel":
            cancel(directory)
            return {}
        return run(directory, request["cluster"], action, check)

    return wire.answer(request, stdin, follow_or_cancel)


def cancel(directory: str) -> None:
    """End the job, and what it started, unless another program follows it; who comes meanwhile waits for the end."""
    alone = common.try_lock(os.path.join(directory, "followers"))
    if alone is not None:
        with alone:
            _end(directory)
            common.try_lock(os.path.join(directory, "lock"), _ENDING_S)


def end_by_signal() -> None:
    """Have SIGTERM raise KeyboardInterrupt in this process, once."""

    def end(*_: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def _follow(directory: str, check: Check, report: Callable[[Document], None]) -> Document:
    """Pass on what the job says until its end, and return its result."""
    alive = time.monotonic()
    while True:
        stamp, running = _stamp(directory), common.is_locked(os.path.join(directory, "lock"))
        state = _state(directory)
        alive = alive if common.is_stopped(state.get("pid")) else time.monotonic()
        if time.monotonic() - alive > STOPPED_S:
            raise Failed("stuck", "its process %d was stopped (SIGSTOP): kill -CONT %d" % (state["pid"], state["pid"]))
        report(state.get("said", {}))  # of nothing, too: a sign of life
        end = state.get("end")
        if end and "done" in end:
            return dict(end["done"])
        if end:
            raise Failed(end.get("kind", "other"), end.get("failed") or end["refused"])
        if not running:
            raise Failed("lost", "its process on this node was ended")
        check()
        until = time.monotonic() + PAUSE_S
        while _stamp(directory) == stamp and time.monotonic() < until:
            time.sleep(GLANCE_S)


def _start(directory: str, state: Document, order: bytes, action: Callable[[Job], Document], check: Check) -> bool:
    """Start a process that does ``action``, and return whether none is at work; one at work on something else ends."""
    until = time.monotonic() + _ENDING_S
    while (lock := common.try_lock(os.path.join(directory, "lock"))) is None:
        found = _state(directory)
        if "end" not in found and found.get("what") == state["what"]:
            return False
        _end(directory)
        if time.monotonic() > until:
            raise common.Busy("what was at work before has not ended after %.0f s" % _ENDING_S)
    with lock:
        check()  # it may have waited for long
        _write(directory, state)
        common.write_atomically(os.path.join(directory, "orders"), order, sync=False)
        if os.fork():
            return True
        try:
            os.setsid()
            _let_go(lock.fileno())
            state["pid"] = os.getpid()
            _write(directory, state)
            Job(directory, state).work(action)
        finally:
            os._exit(0)


def _let_go(lock: int) -> None:
    """Keep nothing but the ``lock`` of what this program had open, other locks among it."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, lock)
    os.closerange(lock + 1, 1 << 16)  # more than a program has open


def _end(directory: str) -> None:
    if common.is_locked(os.path.join(directory, "lock")):
        with contextlib.suppress(LookupError, ProcessLookupError):
            os.kill(_state(directory)["pid"], signal.SIGTERM)


def _listen(directory: str, lines: BinaryIO) -> None:
    """Pass the orders in ``lines`` on, and end this program with them."""
    try:
        for line in iter(lines.readline, b""):
            _order(directory, line)
    except OSError as error:
        common.emit({"failed": wire.because(error), "kind": "disk"})
    os._exit(1)


def _order(directory: str, line: bytes) -> None:
    with open(os.path.join(directory, "orders"), "ab", buffering=0) as file:
        file.write(line)


def _path(directory: str) -> str:
    return os.path.join(directory, "state.json")


def _stamp(directory: str) -> tuple[int, int]:
    """What tells the state from the one that replaces it, most of the time."""
    found = os.stat(_path(directory))
    return found.st_ino, found.st_mtime_ns


def _state(directory: str) -> Document:
    return common.read_json(_path(directory))


def _write(directory: str, state: Document) -> None:
    common.write_atomically(_path(directory), json.dumps(state).encode(), sync=False)  # no job outlives a power failure
