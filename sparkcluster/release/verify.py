"""A real completion, compared with what the playbook expects, and again after a pause.

``/health``, ``/v1/models``, an open port and an exit code have each been seen to say yes while
generation was dead, so none of them is a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
from sparkcluster.spec.playbook import SWITCHES, Playbook, Verify

LOG = "see the engine's log: sparkcluster logs INVENTORY --failed"
WEIGHTS = "sparkcluster stage INVENTORY weights --verify; or sparkcluster up INVENTORY --clear-caches"


def remedies(playbook: Playbook) -> Mapping[str, str]:
    """What helps where the output is ``garbage``, or the API lacks what ``verify`` asks for beside its prompt."""
    engine = engines.engine(playbook.engine)
    first = engine.garbage_remedy(playbook, ())
    return {**engine.api_features(playbook).remedies, **({"garbage": first} if first else {})}


def verify_group(
    host: Host,
    endpoint: Endpoint,
    verify: Verify,
    expect_at: str,
    *,
    first_s: float = 0,
    show: Show | None = None,
    hints: Callable[[], Mapping[str, str]] = dict,
) -> Reply:
    """Ask, judge, and ask again after the playbook's pause; returns the last reply to its prompt.

    Where the playbook says so, a tool call and a stream of reasoning are asked for as well. ``expect_at`` is where
    ``verify.expect`` is written. ``first_s`` is the time that the very first token may take, if that is more than the
    ``timeout_s`` of every other: the engine may compile before it. ``show`` is that of ``ask``, ``hints`` returns what
    ``remedies`` does.

    Raises:
        LaunchError: an answer did not come or was not what the playbook expects.
        HostSilent: the head did not answer, which says nothing of its engine.
    """

    def asked(
        question: Verify, judge: Callable[[Reply], str | None], *, when: str = "", feature: str = "", **options: Any
    ) -> Reply:
        """The reply to ``question``, where ``judge`` has nothing against it."""
        options = {"first_s": verify.timeout_s, **options}
        reply = ask(host, endpoint, question, show=show, **options)
        when = when or (f"verify.{feature}: " if feature else "")
        if reply.problem == "unreachable":
            raise HostSilent(reply.message, node=host.name, step="verify")
        if reply.problem:
            hint = hints().get(feature) if feature and reply.problem == "rejected" else None
            text = f"{when}the model does not answer: {reply.message}"
            raise LaunchError(text, node=host.name, step="verify", hint=hint or LOG)
        if wrong := judge(reply):
            hint = hints().get(feature) if feature else _remedy(reply, verify, expect_at, hints())
            raise LaunchError(f"{when}{wrong}", node=host.name, step="verify", hint=hint)
        return reply

    def judged(reply: Reply) -> str | None:
        return judge_content(reply, verify)

    asked(verify, judged, first_s=max(first_s, verify.timeout_s))
    time.sleep(verify.pause_s)
    answer = asked(verify, judged, when="again after a pause, ")
    if verify.tools:
        asked(
            verify.model_copy(update={"prompt": TOOL_PROMPT}),
            lambda reply: judge_tools(Done.model_validate(reply.done)),
            feature="tools",
            max_tokens=max(verify.max_tokens, TOOL_TOKENS),
            tools=(TOOL,),
        )
    if verify.reasoning:
        # Where reasoning is off by default this is what turns it on; templates without it pass it over.
        named = [name for name in SWITCHES if name in verify.chat_template_kwargs] or SWITCHES[:1]
        asked(
            verify.model_copy(
                update={"chat_template_kwargs": {**verify.chat_template_kwargs, **dict.fromkeys(named, True)}}
            ),
            lambda reply: judge_reasoning(Done.model_validate(reply.done)),
            feature="reasoning",
            max_tokens=REASONING_TOKENS,
        )
    return answer


def _remedy(wrong: Reply, verify: Verify, expect_at: str, hints: Mapping[str, str]) -> str:
    """What helps where the answer to the prompt is ``wrong``."""
    if not wrong.content.strip():
        # A parser may take the whole answer for reasoning where that is off.
        parser = hints.get("reasoning") if wrong.text and wrong.finish == "stop" else None
        return parser or f"raise verify.max_tokens in the playbook above {verify.max_tokens}"
    if garbage(wrong.content):
        return hints.get("garbage") or WEIGHTS
    return f"verify.expect in {expect_at} says what it must match"
