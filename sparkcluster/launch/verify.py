"""A real completion, compared with what the playbook expects, and again after a pause.

``/health``, ``/v1/models``, an open port and an exit code have each been seen to say yes while
generation was dead, so none of them is a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import Endpoint
from sparkcluster.endpoint.judge import brief, judge
from sparkcluster.errors import LaunchError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.again import LIMIT_S
from sparkcluster.hosts.base import Host
from sparkcluster.spec.playbook import Verify

AGAIN_S = 1.0


def verify_group(host: Host, endpoint: Endpoint, verify: Verify, expect_at: str, *, first_s: float = 0) -> Reply:
    """Ask, judge, and ask again after the playbook's pause; returns the last reply.

    ``expect_at`` is where ``verify.expect`` is written. ``first_s`` is the time that the very first token may take, if
    that is more than the ``timeout_s`` of every other: the engine may compile before it.

    Raises:
        LaunchError: an answer did not come or was not what the playbook expects.
    """
    _asked(host, endpoint, verify, expect_at, None, first_s=max(first_s, verify.timeout_s), when="")
    time.sleep(verify.pause_s)
    return _asked(
        host, endpoint, verify, expect_at, brief(verify), first_s=verify.timeout_s, when="again after a pause, "
    )


def _asked(
    host: Host,
    endpoint: Endpoint,
    verify: Verify,
    expect_at: str,
    max_tokens: int | None,
    *,
    first_s: float,
    when: str,
) -> Reply:
    reply = _reached(host, lambda: ask(host, endpoint, verify, first_s=first_s, max_tokens=max_tokens))
    if reply.problem:
        raise LaunchError(
            f"{when}the model does not answer: {reply.message}",
            node=host.name,
            step="verify",
            hint="see the engine's log: sparkcluster logs INVENTORY",
        )
    wrong = judge(reply.text, verify)
    if wrong:
        hint = f"verify.expect in {expect_at} says what it must match"
        raise LaunchError(f"{when}{wrong}", node=host.name, step="verify", hint=hint)
    return reply


def _reached(host: Host, question: Callable[[], Reply]) -> Reply:
    """The reply to ``question``, which is asked again while the head cannot be reached: its engine goes on."""
    reply = question()
    until = time.monotonic() + LIMIT_S
    while reply.problem == "unreachable" and time.monotonic() < until:
        time.sleep(AGAIN_S)
        host.renew()
        reply = question()
    return reply
