"""When a group is dead: the only condition under which it is replaced without asking. Pure.

A busy engine looks the same as a dead one for minutes: a prompt of 256K tokens moves no counter until its prefill ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkcluster.facts.running import Reply

# Llama 3.1 70B in FP8, a dense model that barely fits, prefills 803 tokens/s on a Spark (LMSYS,
# https://lmsys.org/blog/2025-10-13-nvidia-dgx-spark). Over 128K tokens attention costs as much again (4 * tokens *
# 8192 * 80 layers FLOP per token, half of it on average, beside 2 * 70e9), so this is half of what is left.
PREFILL_FLOOR = 200.0
"""Tokens per second that any model prefills at least."""
LEAST_S = 60.0
# Counters are read every 2 s, and a step of a busy engine takes seconds.
MOVING_S = 6.0
UNKNOWN_CONTEXT = 262_144
"""Tokens of the longest prompt where the engine does not say it: that of most models."""


def stall_limit_s(context: int | None) -> float:
    """Seconds without movement after which an engine that serves ``context`` tokens is dead."""
    return max(LEAST_S, (context or UNKNOWN_CONTEXT) / PREFILL_FLOOR)


def dead(gone: Sequence[str], reply: Reply | None, earlier: Reply | None = None) -> str | None:
    """Why a group is dead, or None where it is alive, busy, or nothing can be said.

    ``gone`` are its ranks that do not run any more, ``reply`` what came of a completion if one was asked for, and
    ``earlier`` of the same one before it: an engine that generated tokens in between answers others.
    """
    if gone:
        return f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} not running"
    if reply is None:
        return None
    if reply.problem == "engine-dead":
        before, after = (earlier or reply).counters.get("generated"), reply.counters.get("generated")
        return None if before is not None and after is not None and after != before else reply.message
    limit_s = stall_limit_s(reply.context)
    if reply.problem is not None and reply.stalled_s is not None and reply.stalled_s >= limit_s:
        return f"no counter of the engine has moved for {reply.stalled_s:.0f} s while a request waits"
    return None


def busy(reply: Reply) -> bool:
    """Whether a request got no whole answer in time from an engine that was seen working."""
    recently = reply.stalled_s is not None and reply.stalled_s <= MOVING_S
    return reply.problem == "timeout" and reply.moved and recently


class Movement:
    """For how long an engine's counters have not moved.

    Attributes:
        moved: whether two readings differed.
    """

    def __init__(self) -> None:
        self.moved = False
        self._last: Mapping[str, float] | None = None
        self._unread = True
        self._moved_at_s = 0.0

    def feed(self, at_s: float, counters: Mapping[str, float]) -> None:
        """Take in the counters ``at_s`` seconds after the request was sent; none where they could not be read."""
        self._unread = not counters
        if counters and counters != self._last:
            self.moved = self._last is not None
            self._moved_at_s = at_s
            self._last = counters

    def stalled_s(self, now_s: float) -> float | None:
        """Seconds without movement until ``now_s``; None where the counters cannot be read: no evidence of either."""
        return None if self._unread else now_s - self._moved_at_s
