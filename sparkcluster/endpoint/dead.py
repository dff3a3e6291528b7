"""Decides when a group is dead, the only condition under which it is replaced without asking. Pure.

A busy engine looks like a dead one for minutes: a prompt of 256K tokens changes no counter until its prefill ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.facts.running import Reply
from sparkcluster.node.shared import Movement, stall_limit_s

__all__ = ["Movement", "busy", "dead", "shows_life", "stall_limit_s"]

# Counters are read every 2 s, and a step of a busy engine takes seconds.
MOVING_S = 6.0


def dead(gone: Sequence[str], reply: Reply | None, earlier: Reply | None = None) -> str | None:
    """Why a group is dead; None if it is alive, busy or unknown.

    ``gone`` are its ranks that no longer run, ``reply`` the result of a completion if one was requested, and
    ``earlier`` the previous result: an engine that generated tokens in between serves others.
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


def shows_life(reply: Reply) -> bool:
    """Whether any token came, or the answer ended: enough for the short probes of ``status`` and ``doctor``.

    The guard on a node uses complete answers instead (``node.group_guard``). A model that reasons first has no content
    within so few tokens.
    """
    return reply.problem is None or (reply.ttft_s is not None and reply.problem != "engine-dead")


def busy(reply: Reply) -> bool:
    """Whether an engine that is working did not answer completely in time."""
    recently = reply.stalled_s is not None and reply.stalled_s <= MOVING_S
    return reply.problem == "timeout" and reply.moved and recently
