"""Whether the engine of a running group is dead, as ``endpoint.dead`` defines it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.node import ask
from sparkcluster.node.programs import Failed
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
    first = _stalled_or_failed(request, wanted)
    if not isinstance(first, ask.Failed):
        return first
    if first.kind != "engine-dead":
        return None
    before = ask.read_counters(request).get("generated")
    time.sleep(AGAIN_S)
    second = _stalled_or_failed(request, wanted)
    if not isinstance(second, ask.Failed):
        return second
    after = ask.read_counters(request).get("generated")
    answers_others = before is not None and after is not None and before != after
    return None if second.kind != "engine-dead" or answers_others else str(second)


def _stalled_or_failed(request: dict[str, Any], wanted: Callable[[], bool]) -> ask.Failed | str | None:
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


def until_answered(request: dict[str, Any], timeout_s: float, check: Callable[[], None]) -> None:
    """Wait until the engine, which may be starting, answers a completion; ``check`` may raise meanwhile.

    Raises:
        Failed: it does not within ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        completion = Completion(request, until - time.monotonic())
        while not completion.ended.wait(REFUSED_S):
            check()
        if completion.error is None:
            return
        check()
        time.sleep(REFUSED_S)
    raise Failed("the model did not answer within %.0f s" % timeout_s)


class EngineGuard:
    """Asks an engine every ``probe_s`` seconds at most, and not while it generates tokens for others."""

    def __init__(self, probe_s: float) -> None:
        self._probe_s = probe_s
        self._next = time.monotonic() + probe_s
        self._generated: float | None = None

    def why_dead(self, request: dict[str, Any], wanted: Callable[[], bool]) -> str | None:
        """Why it is dead, or None."""
        if time.monotonic() < self._next:
            return None
        before, self._generated = self._generated, ask.read_counters(request).get("generated")
        why = None
        if before is None or self._generated in (None, before):
            why = why_dead(request, wanted)
            self._generated = ask.read_counters(request).get("generated")
        if why is None:
            self._next = time.monotonic() + self._probe_s
        return why
