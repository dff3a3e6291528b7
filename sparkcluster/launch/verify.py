"""A real completion, compared with what the playbook expects, and again after a pause.

``/health``, ``/v1/models``, an open port and an exit code have each been seen to say yes while
generation was dead, so none of them is a verdict.
"""

from __future__ import annotations

import dataclasses
import time

from sparkcluster.endpoint.ask import Show, ask
from sparkcluster.endpoint.find import Endpoint
from sparkcluster.endpoint.judge import brief, judge
from sparkcluster.errors import LaunchError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.again import LIMIT_S
from sparkcluster.hosts.base import Host
from sparkcluster.spec.playbook import Verify

AGAIN_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One of the two questions; ``first_s`` is the limit for its first token."""

    host: Host
    endpoint: Endpoint
    verify: Verify
    first_s: float
    max_tokens: int | None
    show: Show | None

    def ask(self) -> Reply:
        """Ask, and ask again while the head cannot be reached: its engine goes on."""
        reply = self._once()
        until = time.monotonic() + max(LIMIT_S, self.first_s)
        while reply.problem == "unreachable" and time.monotonic() < until:
            time.sleep(AGAIN_S)
            self.host.renew()
            reply = self._once()
        return reply

    def _once(self) -> Reply:
        return ask(
            self.host, self.endpoint, self.verify, first_s=self.first_s, max_tokens=self.max_tokens, show=self.show
        )


def verify_group(
    host: Host,
    endpoint: Endpoint,
    verify: Verify,
    expect_at: str,
    *,
    first_s: float = 0,
    show: Show | None = None,
) -> Reply:
    """Ask, judge, and ask again after the playbook's pause; returns the last reply.

    ``expect_at`` is where ``verify.expect`` is written. ``first_s`` is the time that the very first token may take, if
    that is more than the ``timeout_s`` of every other: the engine may compile before it. ``show`` is that of ``ask``.

    Raises:
        LaunchError: an answer did not come or was not what the playbook expects.
    """
    first = Question(host, endpoint, verify, max(first_s, verify.timeout_s), None, show)
    _asked(first, expect_at, when="")
    time.sleep(verify.pause_s)
    second = Question(host, endpoint, verify, verify.timeout_s, brief(verify), show)
    return _asked(second, expect_at, when="again after a pause, ")


def _asked(question: Question, expect_at: str, *, when: str) -> Reply:
    reply = question.ask()
    host, verify = question.host, question.verify
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
