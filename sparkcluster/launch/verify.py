"""A real completion, compared with what the playbook expects, and again after a pause.

``/health``, ``/v1/models``, an open port and an exit code have each been seen to say yes while
generation was dead, so none of them is a verdict.
"""

from __future__ import annotations

import time

from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import Endpoint
from sparkcluster.endpoint.judge import brief, judge
from sparkcluster.errors import LaunchError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.base import Host
from sparkcluster.spec.playbook import Verify


def verify_group(host: Host, endpoint: Endpoint, verify: Verify, expect_at: str) -> Reply:
    """Ask, judge, and ask again after the playbook's pause; returns the last reply.

    ``expect_at`` is where ``verify.expect`` is written.

    Raises:
        LaunchError: an answer did not come or was not what the playbook expects.
    """
    _asked(host, endpoint, verify, expect_at, None, when="")
    time.sleep(verify.pause_s)
    return _asked(host, endpoint, verify, expect_at, brief(verify), when="again after a pause, ")


def _asked(
    host: Host, endpoint: Endpoint, verify: Verify, expect_at: str, max_tokens: int | None, *, when: str
) -> Reply:
    reply = ask(host, endpoint, verify, max_tokens=max_tokens)
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
