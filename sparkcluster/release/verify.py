"""Verifies a group by real completions, compared with what the playbook expects, and again after a pause.

``/health``, ``/v1/models``, an open port and an exit code have each been seen to succeed while
generation was dead, so none of them is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import Show, ask
from sparkcluster.endpoint.find import Endpoint
from sparkcluster.endpoint.judge import (
    REASONING_TOKENS,
    TOOL,
    TOOL_PROMPT,
    TOOL_TOKENS,
    garbage,
    judge_content,
    judge_reasoning,
    judge_tools,
)
from sparkcluster.errors import HostSilent, LaunchError
from sparkcluster.facts.running import Done, Reply
from sparkcluster.hosts.base import Host
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import SWITCHES, Verify

LOG = "see the engine's log: sparkcluster logs INVENTORY --failed"
WEIGHTS = "sparkcluster stage INVENTORY weights --verify; or sparkcluster up INVENTORY --clear-caches"


def verify_group(host: Host, endpoint: Endpoint, spec: Spec, *, first_s: float = 0, show: Show | None = None) -> Reply:
    """Ask, judge, and ask again after the playbook's pause; returns the last reply to its prompt.

    If the playbook says so, a tool call and streamed reasoning are requested as well. ``first_s`` is the limit for the
    very first token, if longer than ``timeout_s``, since the engine may compile first. ``show`` is that of ``ask``.

    Raises:
        LaunchError: an answer is missing or not what the playbook expects.
        HostSilent: the head did not answer, which says nothing about its engine.
    """
    verify = spec.playbook.verifying

    def asked(
        when: str, question: Verify, judge: Callable[[Reply], str | None], feature: str = "", **options: Any
    ) -> Reply:
        """The reply to ``question``; raises LaunchError if ``judge`` rejects it."""
        reply = ask(host, endpoint, question, show=show, **options)
        if reply.problem == "unreachable":
            raise HostSilent(reply.message, node=host.name, step="verify")
        wrong = f"the model does not answer: {reply.message}" if reply.problem else judge(reply)
        if wrong:
            hint = _remedy(reply, spec, feature) or LOG
            raise LaunchError(f"{when}{wrong}", node=host.name, step="verify", hint=hint)
        return reply

    def judged(reply: Reply) -> str | None:
        return judge_content(reply, verify)

    asked("", verify, judged, first_s=first_s)
    time.sleep(verify.pause_s)
    answer = asked("after a pause, ", verify, judged)
    if verify.tools:
        asked(
            "verify.tools: ",
            verify.model_copy(update={"prompt": TOOL_PROMPT, "max_tokens": max(verify.max_tokens, TOOL_TOKENS)}),
            lambda reply: judge_tools(Done.model_validate(reply.done)),
            "tools",
            tools=(TOOL,),
        )
    if verify.reasoning:
        # If reasoning is off by default this turns it on; templates without it ignore it.
        named = [name for name in SWITCHES if name in verify.chat_template_kwargs] or SWITCHES[:1]
        options = {**verify.chat_template_kwargs, **dict.fromkeys(named, True)}
        asked(
            "verify.reasoning: ",
            verify.model_copy(update={"chat_template_kwargs": options, "max_tokens": REASONING_TOKENS}),
            lambda reply: judge_reasoning(Done.model_validate(reply.done)),
            "reasoning",
        )
    return answer


def _remedy(wrong: Reply, spec: Spec, feature: str) -> str | None:
    """A remedy for a ``wrong`` reply to the prompt, or to the test of an API ``feature``."""
    playbook, engine = spec.playbook, engines.engine(spec.playbook.engine)
    parsers = engine.api_features(playbook).remedies
    if wrong.problem:
        return parsers.get(feature) if wrong.problem == "rejected" else None
    if feature:
        return parsers.get(feature)
    if not wrong.content.strip():
        # A parser may treat the whole answer as reasoning if reasoning is off.
        parser = parsers.get("reasoning") if wrong.text and wrong.finish == "stop" else None
        return parser or f"raise verify.max_tokens in the playbook above {playbook.verifying.max_tokens}"
    if garbage(wrong.content):
        return engine.garbage_remedy(playbook, ()) or WEIGHTS
    place = ":".join(map(str, spec.places.get(("verify", "expect"), ("the playbook",))))
    return f"the answer must match verify.expect in {place}"
