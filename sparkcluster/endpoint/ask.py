"""Requests one streamed completion from a group, on its head."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.answers import checked
from sparkcluster.endpoint.dead import Movement, stall_limit_s
from sparkcluster.endpoint.find import Endpoint
from sparkcluster.errors import CommandTimeout, HostError
from sparkcluster.facts.running import Done, Event, Reply
from sparkcluster.hosts.base import DOCUMENT_BYTES, Host
from sparkcluster.hosts.program import document, stream
from sparkcluster.spec.playbook import Sampling, Verify

# The program on the head stops at its limit; a busy node may take seconds to start it.
SLACK_S = 15
# The program reports every 2 s while it runs, and stops after LONGEST_S.
SILENCE_S, LONGEST_S = 30, 7200
# Seconds per token: a slower engine does not count as serving.
SLOWEST_S = 1.0
# An answer decoded in less time came in one chunk, so its speed is unknown.
SHORTEST_DECODE_S = 0.01

Messages = Sequence[Mapping[str, str]]
"""A conversation: role (system, user or assistant) and content of each message."""

Show = Callable[[str, str], None]
"""Called with ``content`` or ``reasoning`` and a piece of text."""

Counters = Mapping[str, Sequence[str]]
"""Metrics of an engine by what they count; the first one that exists is read."""


def request(
    endpoint: Endpoint,
    verify: Verify,
    *,
    counters: Counters | None = None,
    messages: Messages | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The request document of one completion, like real traffic, for ``messages`` or the prompt of ``verify``.

    Models of another ``kind`` than chat get the request in ``node.ask``. ``tools`` are offered to the model.
    The caller adds the limits: ``max_tokens``, and the seconds to the first token (``first_s``) and to each next one
    (``token_s``).
    """
    return {
        **({"tools": list(tools)} if tools else {}),
        **({"kind": verify.kind} if verify.kind in {"embeddings", "rerank"} else {}),
        "endpoint": endpoint.url,
        "model": endpoint.model,
        "messages": messages or [{"role": "user", "content": verify.prompt}],
        **{name: getattr(verify, name) for name in Sampling.model_fields},
        "key_file": endpoint.key_file,
        "key_name": endpoint.key_name,
        "counters": {name: list(metrics) for name, metrics in (counters or {}).items()},
    }


def ask(
    host: Host,
    endpoint: Endpoint,
    verify: Verify,
    *,
    limit_s: float | None = None,
    first_s: float | None = None,
    max_tokens: int | None = None,
    show: Show | None = None,
    counters: Counters | None = None,
    until_dead: bool = False,
    progress: Callable[[str], None] | None = None,
    messages: Messages | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Reply:
    """Ask for one completion; a failure is a reply with ``problem`` set.

    Args:
        host: the head.
        endpoint: its API.
        verify: prompt, sampling, and limits unless ``limit_s`` and ``max_tokens`` set them.
        limit_s: longest time without a token in seconds; with ``counters`` also for the complete answer.
        first_s: longest time to the first token in seconds, if it may be longer.
        max_tokens: maximum of generated tokens. Without it, if the limit of ``verify`` does not fit in the context, the
            engine uses the rest of the context.
        show: called with each piece of text as it arrives.
        counters: metrics to read meanwhile, to report for how long none of them changed.
        until_dead: wait beyond ``limit_s`` for an engine whose counters do not change, until one does or it is dead.
        progress: called with the reason for waiting beyond ``limit_s``.
        messages: a conversation, instead of the prompt of ``verify``.
        tools: tools to offer, as in OpenAI's API.
    """
    limit_s = limit_s or verify.timeout_s
    until_dead = until_dead and bool(counters)
    tokens = max_tokens or verify.max_tokens
    token_s = LONGEST_S if until_dead else limit_s
    first_s = max(first_s or 0, token_s)
    longest_s = first_s + token_s + tokens * SLOWEST_S
    question = request(endpoint, verify, counters=counters, messages=messages, tools=tools)
    question |= {"first_s": first_s, "token_s": token_s}

    def once(limit: int | None) -> Reply:
        began = time.monotonic()
        exchange = _Exchange(Reply(endpoint.group, host.name, limit_s=limit_s), show, progress, until_dead=until_dead)
        try:
            with stream(host, "ask", {**question, "max_tokens": limit}) as running:
                for line in running.lines(SILENCE_S, line_bytes=DOCUMENT_BYTES, within_s=longest_s + SLACK_S):
                    found = document(line)
                    if found is None:
                        return exchange.failed("malformed", f"not a JSON object: {line[:200].decode(errors='replace')}")
                    ended = exchange.feed(checked(Event, found, node=host.name, step="ask"))
                    if ended is not None:
                        return ended
                reason = running.finish().reason
            problem, message = "lost", f"the answer was cut off: {reason}"
        except CommandTimeout as error:
            # the program is only silent if its connection is lost
            silent = time.monotonic() - began < longest_s
            problem, message = "unreachable" if silent else "timeout", error.message
        except HostError as error:
            problem, message = "unreachable", error.message
        return exchange.failed(problem, message)

    reply = once(tokens)
    return once(None) if reply.problem == "too-long" and max_tokens is None else reply


class _Exchange:
    """The state of one request."""

    def __init__(
        self, reply: Reply, show: Show | None, progress: Callable[[str], None] | None, *, until_dead: bool
    ) -> None:
        self._reply = reply
        self._show = show
        self._progress = progress
        self._until_dead = until_dead
        self._began = time.monotonic()
        self._streamed: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._size = 0
        self._movement = Movement()

    def feed(self, event: Event) -> Reply | None:
        """Process one document of the ask program; returns the reply once it is final."""
        at_s = time.monotonic() - self._began
        for kind, text in (("content", event.text), ("reasoning", event.reasoning)):
            if text:
                if self._reply.ttft_s is None:
                    self._reply = dataclasses.replace(self._reply, ttft_s=at_s)
                self._streamed[kind].append(text)
                self._size += len(text)
                if self._show:
                    self._show(kind, text)
        if self._size > DOCUMENT_BYTES:
            return self.failed("malformed", f"the answer has more than {DOCUMENT_BYTES / 1e6:g} MB")
        if event.error is not None:
            return self.failed(event.error.kind, event.error.message)
        if event.done is not None:
            return _ended(self._reply, event.done)
        return None if event.counters is None else self._counted(at_s, event.counters, event.context)

    def failed(self, problem: str, message: str) -> Reply:
        """The reply of an incomplete request."""
        text = "".join(self._streamed["content"] or self._streamed["reasoning"])
        return dataclasses.replace(self._reply, text=text, problem=problem, message=message)

    def _counted(self, at_s: float, counters: Mapping[str, float], context: int | None) -> Reply | None:
        self._movement.feed(at_s, counters)
        stalled_s, context = self._movement.stalled_s(at_s), context or self._reply.context
        counters = counters or self._reply.counters
        self._reply = dataclasses.replace(
            self._reply, context=context, stalled_s=stalled_s, moved=self._movement.moved, counters=counters
        )
        if at_s < self._reply.limit_s:
            return None
        dead_s = stall_limit_s(context)
        # Stop waiting for an engine whose counters change, or that has stalled for too long.
        if not self._until_dead or stalled_s is None or self._movement.moved or stalled_s >= dead_s:
            return self.failed("timeout", f"no complete answer within {at_s:.0f} s")
        if self._progress:
            self._progress(f"no counter of the engine has moved for {stalled_s:.0f} s; dead after {dead_s:.0f} s")
        return None


def _ended(reply: Reply, done: Done) -> Reply:
    """The reply from the ask program's final document."""
    tokens = done.usage.completion_tokens if done.usage else None
    decode_s = done.total_s - done.ttft_s if done.ttft_s is not None and done.total_s is not None else 0.0
    speed = (tokens - 1) / decode_s if tokens and tokens > 1 and decode_s >= SHORTEST_DECODE_S else None
    return dataclasses.replace(
        reply,
        ttft_s=done.ttft_s if done.ttft_s is not None else reply.ttft_s,
        tokens_per_s=speed,
        tokens=tokens,
        text=done.content or done.reasoning,
        finish=done.finish_reason,
        done=done.model_dump(mode="json"),
    )
