"""A real completion, compared with what the playbook expects, and again after a pause.

``/health``, ``/v1/models``, an open port and an exit code have each been seen to say yes while
generation was dead, so none of them is a verdict.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sparkcluster.errors import LaunchError
from sparkcluster.facts.running import Done, Reply
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.retry import LIMIT_S
from sparkcluster.spec.playbook import SWITCHES, Playbook, Verify

AGAIN_S = 1.0
WEIGHTS = "sparkcluster stage INVENTORY weights --verify; or sparkcluster up INVENTORY --clear-caches"


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One question; ``first_s`` is the limit for its first token, ``tools`` are those that it offers."""

    host: Host
    endpoint: Endpoint
    verify: Verify
    first_s: float
    max_tokens: int | None
    show: Show | None
    tools: Sequence[Mapping[str, Any]] = ()

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
            self.host,
            self.endpoint,
            self.verify,
            first_s=self.first_s,
            max_tokens=self.max_tokens,
            show=self.show,
            tools=self.tools,
        )


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
    """

    def judged(reply: Reply) -> str | None:
        return judge_content(reply, verify)

    def expect(reply: Reply) -> str | None:
        if not reply.content.strip():
            # A parser may take the whole answer for reasoning where that is off.
            parser = hints().get("reasoning") if reply.text and reply.finish == "stop" else None
            return parser or f"raise verify.max_tokens in the playbook above {verify.max_tokens}"
        if garbage(reply.content):
            return hints().get("garbage") or WEIGHTS
        return f"verify.expect in {expect_at} says what it must match"

    first = Question(host, endpoint, verify, max(first_s, verify.timeout_s), None, show)
    _asked(first, judged, when="", hint=expect)
    time.sleep(verify.pause_s)
    second = Question(host, endpoint, verify, verify.timeout_s, None, show)
    answer = _asked(second, judged, when="again after a pause, ", hint=expect)
    for question, judge_it, key in _features(second):
        lacking = functools.partial(_lacking, hints, key)
        _asked(question, judge_it, when=f"verify.{key}: ", hint=lacking, feature=True)
    return answer


def _features(asked: Question) -> Iterator[tuple[Question, Callable[[Reply], str | None], str]]:
    """The questions that ``verify`` wants beside its prompt, each with its judge and its key."""
    verify = asked.verify
    if verify.tools:
        tokens = max(verify.max_tokens, TOOL_TOKENS)
        prompted = verify.model_copy(update={"prompt": TOOL_PROMPT})
        question = dataclasses.replace(asked, verify=prompted, max_tokens=tokens, tools=(TOOL,))
        yield question, lambda reply: judge_tools(Done.model_validate(reply.done)), "tools"
    if verify.reasoning:
        # Where reasoning is off by default this is what turns it on; templates without it pass it over.
        named = [name for name in SWITCHES if name in verify.chat_template_kwargs] or SWITCHES[:1]
        options = {**verify.chat_template_kwargs, **dict.fromkeys(named, True)}
        thinking = verify.model_copy(update={"chat_template_kwargs": options})
        question = dataclasses.replace(asked, verify=thinking, max_tokens=REASONING_TOKENS)
        yield question, lambda reply: judge_reasoning(Done.model_validate(reply.done)), "reasoning"


def _lacking(hints: Callable[[], Mapping[str, str]], key: str, _: Reply) -> str | None:
    return hints().get(key)


def _asked(
    question: Question,
    judged: Callable[[Reply], str | None],
    *,
    when: str,
    hint: Callable[[Reply], str | None],
    feature: bool = False,
) -> Reply:
    """The reply to ``question``; ``hint`` is for a wrong answer, and for a refused request of a ``feature``."""
    reply = question.ask()
    host = question.host
    if reply.problem:
        log = "see the engine's log: sparkcluster logs INVENTORY"
        raise LaunchError(
            f"{when}the model does not answer: {reply.message}",
            node=host.name,
            step="verify",
            hint=(feature and reply.problem == "rejected" and hint(reply)) or log,
        )
    wrong = judged(reply)
    if wrong:
        raise LaunchError(f"{when}{wrong}", node=host.name, step="verify", hint=hint(reply))
    return reply
