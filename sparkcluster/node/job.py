"""A job: work in a separate process on this node, which survives a lost connection of the operator.

A program starts the process, or finds it running, and follows it; the next operator's program follows the same process.
It runs until it is done, or until the last program that follows it cancels it. A job has a directory::

    lock          flock held by the process
    state.json    its ``pid``, its ``cluster``, ``what`` it does, if different jobs use the directory, the last report
                  ``said``, and the result ``end``
    orders        orders of operators, one object per line
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

PAUSE_S = 0.5  # between two complete checks, and two reports of a job
GLANCE_S = 0.05  # between two checks whether a file was replaced
STOPPED_S = 30.0
_ENDING_S = 8.0  # for a process to exit after SIGTERM


class Job:
    """The job, as seen by its process."""

    def __init__(self, directory: str, state: Document) -> None:
        self.directory = directory
        self._state = state
        self._order: Document = {}
        self._read = 0

    def say(self, said: Document) -> None:
        """Report progress; replaces the last report. Not reported while the disk is full."""
        self._state["said"] = said
        with contextlib.suppress(OSError):
            _write(self.directory, self._state)

    def order(self) -> Document:
        """All orders so far; for each key the last value."""
        with open(os.path.join(self.directory, "orders"), "rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):  # else it is still being written
                    self._read += len(line)
                    self._order = {**self._order, **json.loads(line)}
        return self._order

    def work(self, action: Callable[[Job], Document]) -> None:
        """Run the action and store its result."""
        try:
            end_by_signal()
            how = wire.outcome(lambda: action(self))
        except KeyboardInterrupt:
            how = {"failed": "cancelled", "kind": "cancelled"}
        except Exception as error:
            how = {"failed": "%s: %s" % (type(error).__name__, error), "kind": "other"}
        try:
            _write(self.directory, {**self._state, "end": how})
        except OSError:  # a full disk may be the reason
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
    """Start the job unless it is running, follow it, and return the result of ``action``.

    If the directory has a job with another ``what``, that job is ended first. ``order`` and each of ``lines`` are
    orders; ``report`` gets the job's reports. This program ends when the lines end, but the job does not. A caller that
    passes ``lines`` must exit by ``os._exit``, since a thread still reads them.

    Raises:
        Failed: ``action`` failed, or its process was ended or cancelled.
        Refused: another operator has got the lease.
        Busy: another or a cancelled job does not end.
        OSError: the job cannot be written, for example since the disk is full.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with open(os.path.join(directory, "followers"), "wb") as followers:
        fcntl.flock(followers, fcntl.LOCK_SH)  # from here on it cannot be cancelled
        first = json.dumps(order or {}).encode() + b"\n"
        if not _start(directory, {"cluster": cluster, "what": what}, first, action, check):
            _order(directory, first)
        if lines is not None:
            threading.Thread(target=_listen, args=(directory, lines), daemon=True).start()
        return _follow(directory, check, report)


def answer(request: Document, stdin: BinaryIO, folder: str, key: str, action: Callable[[Job], Document]) -> Document:
    """The answer of a program with a job that runs ``action``: follow the job, or cancel it if requested.

    The job's directory is in ``folder`` of the state directory; its name is derived from ``key``, which identifies the
    job.
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
    """End the job and its children, unless another program follows it. A program that starts meanwhile has to wait."""
    alone = common.try_lock(os.path.join(directory, "followers"))
    if alone is not None:
        with alone:
            _end(directory)
            common.try_lock(os.path.join(directory, "lock"), _ENDING_S)


def end_by_signal() -> None:
    """Make SIGTERM raise KeyboardInterrupt in this process, once."""

    def end(*_: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def _follow(directory: str, check: Check, report: Callable[[Document], None]) -> Document:
    """Pass on the job's reports until its end, and return its result."""
    alive = time.monotonic()
    while True:
        stamp, running = _stamp(directory), common.is_locked(os.path.join(directory, "lock"))
        state = _state(directory)
        alive = alive if common.is_stopped(state.get("pid")) else time.monotonic()
        if time.monotonic() - alive > STOPPED_S:
            raise Failed("stuck", "its process %d was stopped (SIGSTOP): kill -CONT %d" % (state["pid"], state["pid"]))
        report(state.get("said", {}))  # empty reports, too, as a heartbeat
        end = state.get("end")
        if end and "done" in end:
            return dict(end["done"])
        if end:
            raise Failed(end.get("kind", "other"), end.get("failed") or end["refused"])
        if not running:
            raise Failed("lost", "its process on this node was killed")
        check()
        until = time.monotonic() + PAUSE_S
        while _stamp(directory) == stamp and time.monotonic() < until:
            time.sleep(GLANCE_S)


def _start(directory: str, state: Document, order: bytes, action: Callable[[Job], Document], check: Check) -> bool:
    """Start a process for ``action``; return False if one is running. One with another ``what`` is ended first."""
    until = time.monotonic() + _ENDING_S
    while (lock := common.try_lock(os.path.join(directory, "lock"))) is None:
        found = _state(directory)
        if "end" not in found and found.get("what") == state["what"]:
            return False
        _end(directory)
        if time.monotonic() > until:
            raise common.Busy("the previous job has not ended after %.0f s" % _ENDING_S)
    with lock:
        check()  # this may have waited long
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
    """Close all files of this program, including other locks, except for ``lock``."""
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
    """Pass on the orders in ``lines``; exit when they end."""
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
    """Distinguishes a state from the next one, most of the time."""
    found = os.stat(_path(directory))
    return found.st_ino, found.st_mtime_ns


def _state(directory: str) -> Document:
    return common.read_json(_path(directory))


def _write(directory: str, state: Document) -> None:
    common.write_atomically(_path(directory), json.dumps(state).encode(), sync=False)  # no job survives a power failure
