"""Whether the engine of a running group is dead, as ``endpoint.dead`` defines it.

A group that generates tokens for others is not asked. One that does not is sent a completion of one token every
``probe_s``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.node import ask
from sparkcluster.node.shared import Movement, stall_limit_s

COUNTERS_S = 2.0
AGAIN_S = 2.0
"""HTTP 500 may be the failure of a single request; a dead engine fails the next one too."""
REFUSED_S = 1.0


class Completion:
    """One completion under way in a thread of its own; ``error`` is None where it was answered."""

    def __init__(self, request: dict[str, Any], timeout_s: float) -> None:
        self.ended = threading.Event()
        self.error: ask.Failed | None = None
        self._request = dict(request, timeout_s=timeout_s, idle_s=None)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            ask.complete(self._request, lambda _: None)
        except ask.Failed as error:
            self.error = error
        except Exception as error:
            self.error = ask.Failed("malformed", "%s: %s" % (type(error).__name__, error))
        self.ended.set()


def why_dead(request: dict[str, Any], wanted: Callable[[], bool] = lambda: True) -> str | None:
    """Why the engine that ``request`` asks is dead; None where it answers, is busy, or nothing can be said.

    Given up once it is not ``wanted`` any more.
    """
    generated = None
    for attempt in range(2):
        error = _stalled_or_failed(request, wanted)
        if isinstance(error, str):
            return error
        if error is None or error.kind != "engine-dead" or not wanted():
            return None
        before, generated = generated, ask.read_counters(request).get("generated")
        if attempt:
            alive = before is not None and generated is not None and before != generated
            return None if alive else str(error)
        time.sleep(AGAIN_S)
    return None


def _stalled_or_failed(request: dict[str, Any], wanted: Callable[[], bool]) -> Any:
    """None where a completion was answered, its error, or in words for how long nothing has moved while it waits."""
    limit_s = stall_limit_s(ask.longest(request))
    completion, movement = Completion(request, 2 * limit_s + 60), Movement()
    began = time.monotonic()
    while not completion.ended.wait(COUNTERS_S):
        if not wanted():
            return None
        movement.feed(time.monotonic() - began, ask.read_counters(request))
        stalled_s = movement.stalled_s(time.monotonic() - began)
        if stalled_s is not None and stalled_s >= limit_s:
            return "no counter of the engine has moved for %.0f s while a request waits" % stalled_s
    return completion.error


def until_answered(request: dict[str, Any], timeout_s: float, wanted: Callable[[], bool]) -> bool:
    """Whether the engine answers a completion within ``timeout_s``, while that is ``wanted``; it may be starting."""
    until = time.monotonic() + timeout_s
    while wanted() and time.monotonic() < until:
        completion = Completion(request, until - time.monotonic())
        while not completion.ended.wait(0.2):
            if not wanted():
                return False
        if completion.error is None:
            return True
        time.sleep(REFUSED_S)
    return False


class EngineGuard:
    """Asks the engine of one release again and again, in a thread, while ``wanted`` is set.

    Attributes:
        dead: why it is dead, or None.
        failed: why it is asked no more, or None.
    """

    def __init__(self, request: dict[str, Any], probe_s: float) -> None:
        self.request = request
        self.dead: str | None = None
        self.failed: str | None = None
        self._probe_s = probe_s
        self._asked = 0
        self._wanted = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    def want(self) -> None:
        """All ranks run, and nobody changes them: it should answer."""
        self._wanted.set()

    def forget(self) -> None:
        """What came of asking does not count any more."""
        self._wanted.clear()
        self._asked += 1
        self.dead = None

    def close(self) -> None:
        """Ask no more."""
        self.forget()
        self._closed.set()

    def _ask(self) -> None:
        try:
            self._ask_until_closed()
        except Exception as error:
            self.failed = "%s: %s" % (type(error).__name__, error)

    def _ask_until_closed(self) -> None:
        generated = None
        while not self._closed.wait(self._probe_s):
            if not self._wanted.is_set():
                continue
            number = self._asked
            before, generated = generated, ask.read_counters(self.request).get("generated")
            if before is not None and generated not in (None, before):
                if self._asked == number:
                    self.dead = None  # it answers others
                continue
            found = why_dead(self.request, lambda number=number: self._asked == number)  # type: ignore[misc]
            generated = ask.read_counters(self.request).get("generated")
            if self._asked == number:
                self.dead = found
