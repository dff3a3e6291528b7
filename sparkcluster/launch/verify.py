"""A real completion, compared with what the playbook expects, and again after a pause.

``/health``, ``/v1/models``, an open port and an exit code have each been seen to say yes while
generation was dead, so none of them is a verdict.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.errors import LaunchError, NotServing
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.program import call
from sparkcluster.spec.playbook import Verify

BRIEF_TOKENS = 32
SPEED_S = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered: text, time to first token and tokens per second (None where not told)."""

    text: str
    ttft_s: float | None
    tokens_per_s: float | None
    tokens: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask: from the head itself, so that neither the user's network nor an open port is needed."""

    url: str
    model: str
    key_file: str | None


def ask_request(endpoint: Endpoint, verify: Verify, *, max_tokens: int | None = None) -> dict[str, Any]:
    """The request document of one completion as real traffic sends it."""
    return {
        "endpoint": endpoint.url,
        "model": endpoint.model,
        "messages": [{"role": "user", "content": verify.prompt}],
        "max_tokens": max_tokens or verify.max_tokens,
        "temperature": verify.temperature,
        "chat_template_kwargs": verify.chat_template_kwargs,
        "stream": True,
        "timeout_s": verify.timeout_s,
        "key_file": endpoint.key_file,
    }


def complete(host: Host, endpoint: Endpoint, verify: Verify, *, max_tokens: int | None = None) -> Answer:
    """One completion, asked from the head ``host``.

    Raises:
        NotServing: no token came within the limit, or the engine said why not.
    """
    request = ask_request(endpoint, verify, max_tokens=max_tokens)
    document = call(host, "ask", request, timeout_s=verify.timeout_s + 15)
    if "error" in document:
        error = document["error"]
        raise NotServing(
            f"the model does not answer: {error.get('message')}",
            node=host.name,
            step="verify",
            hint="look at the engine's log: sparkcluster logs INVENTORY",
        )
    return answer(document["done"])


def answer(done: dict[str, Any]) -> Answer:
    """The Answer in what the ask program reports at the end."""
    text = done.get("content") or done.get("reasoning") or ""
    tokens = (done.get("usage") or {}).get("completion_tokens")
    ttft_s, total_s = done.get("ttft_s"), done.get("total_s")
    decode_s = (total_s - ttft_s) if ttft_s is not None and total_s is not None else None
    # An answer that came in one piece was decoded before it was read: that time says nothing.
    speed = (tokens - 1) / decode_s if tokens and tokens > 1 and decode_s and decode_s >= SPEED_S else None
    return Answer(text, ttft_s, speed, tokens)


def brief(verify: Verify) -> int | None:
    """Tokens of a check that need not be complete: as many as show language, or all where an answer is expected."""
    return None if verify.expect else min(BRIEF_TOKENS, verify.max_tokens)


def judge(text: str, verify: Verify) -> str | None:
    """What is wrong with an answer, or None.

    ``!!!!!`` and the like is what broken FP4 kernels of sm_121 answer: fluent HTTP, no language.
    """
    if not text.strip():
        return f"the answer is empty; a reasoning model may need more than {verify.max_tokens} tokens"
    if len(text) >= 16 and len(set(text.strip())) <= 2:
        return f"the answer is garbage: {text.strip()[:24]!r}"
    if verify.expect and not re.search(verify.expect, text):
        return f"the answer does not match {verify.expect!r}: {text.strip()[:120]!r}"
    return None


def verify_group(
    host: Host,
    endpoint: Endpoint,
    verify: Verify,
    *,
    again: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Ask once, judge, and ask again after the playbook's pause; returns the last answer.

    Raises:
        LaunchError: an answer did not come or was not what the playbook expects.
    """
    last: Answer | None = None
    for attempt in range(2 if again else 1):
        if attempt:
            sleep(verify.pause_s)
        try:
            last = complete(host, endpoint, verify, max_tokens=brief(verify) if attempt else None)
        except NotServing as error:
            when = "again after a pause, " if attempt else ""
            raise LaunchError(f"{when}{error.message}", node=host.name, step="verify", hint=error.hint) from error
        wrong = judge(last.text, verify)
        if wrong:
            raise LaunchError(
                wrong,
                node=host.name,
                step="verify",
                hint="verify.expect in the playbook says what it must match",
            )
    if last is None:  # pragma: no cover - the loop runs at least once
        raise LaunchError("nothing was asked", node=host.name, step="verify")
    return last
