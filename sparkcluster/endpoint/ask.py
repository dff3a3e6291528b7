"""One streamed completion of a group, asked from its head."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.endpoint.find import Endpoint
from sparkcluster.errors import CommandTimeout, HostError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.program import stream
from sparkcluster.spec.playbook import Verify

# The program on the head ends by itself at its limit; a node that is busy may take seconds to start it.
SLACK_S = 15
# Decoded in less than this, an answer came in one piece, and the time says nothing about its speed.
SHORTEST_DECODE_S = 0.01

Show = Callable[[str, str], None]
"""Called with ``content`` or ``reasoning`` and a piece of text."""


def request(endpoint: Endpoint, verify: Verify, *, limit_s: float, max_tokens: int) -> dict[str, Any]:
    """The request document of one completion as real traffic sends it."""
    return {
        "endpoint": endpoint.url,
        "model": endpoint.model,
        "messages": [{"role": "user", "content": verify.prompt}],
        "max_tokens": max_tokens,
        "temperature": verify.temperature,
        "chat_template_kwargs": verify.chat_template_kwargs,
        "stream": True,
        "timeout_s": limit_s,
        "key_file": endpoint.key_file,
        "key_name": endpoint.key_name,
    }


def ask(
    host: Host,
    endpoint: Endpoint,
    verify: Verify,
    *,
    limit_s: float | None = None,
    max_tokens: int | None = None,
    show: Show | None = None,
) -> Reply:
    """Ask for one completion; every failure is a reply whose ``problem`` names it.

    Args:
        host: the head.
        endpoint: its API.
        verify: prompt, sampling and limits.
        limit_s: the most seconds that the whole answer may take; default: those of ``verify``.
        max_tokens: the most tokens; default: those of ``verify``.
        show: called with each piece of text as it comes.
    """
    limit_s = limit_s or verify.timeout_s
    document = request(endpoint, verify, limit_s=limit_s, max_tokens=max_tokens or verify.max_tokens)
    reply = Reply(endpoint.group, host.name, limit_s=limit_s)
    began = time.monotonic()
    said = {"content": "", "reasoning": ""}
    try:
        with stream(host, "ask", document) as running:
            for line in running.lines(limit_s + SLACK_S):
                event = _document(line)
                for kind, key in (("content", "text"), ("reasoning", "reasoning")):
                    if text := event.get(key):
                        reply = _with_token(reply, time.monotonic() - began)
                        said[kind] += text
                        if show:
                            show(kind, text)
                if "error" in event:
                    error = event["error"]
                    return _failed(reply, said, str(error.get("kind")), str(error.get("message")))
                if "done" in event:
                    return _ended(reply, event["done"])
            last = running.finish().stderr.decode(errors="replace").strip().splitlines()
        return _failed(reply, said, "lost", f"the answer broke off{f': {last[-1]}' if last else ''}")
    except CommandTimeout as error:
        return _failed(reply, said, "timeout", error.message)
    except HostError as error:
        return _failed(reply, said, "unreachable", error.message)
    except ValueError as error:
        return _failed(reply, said, "malformed", str(error))


def _document(line: bytes) -> dict[str, Any]:
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError(f"not a JSON object: {document!r}")  # noqa: TRY004 - handled as a line that is no JSON
    return document


def _with_token(reply: Reply, at_s: float) -> Reply:
    return reply if reply.ttft_s is not None else dataclasses.replace(reply, ttft_s=at_s)


def _failed(reply: Reply, said: dict[str, str], problem: str, message: str) -> Reply:
    text = said["content"] or said["reasoning"]
    return dataclasses.replace(reply, text=text, problem=problem, message=message.partition("\n")[0])


def _ended(reply: Reply, done: dict[str, Any]) -> Reply:
    """The reply that the ask program's final document describes."""
    tokens = (done.get("usage") or {}).get("completion_tokens")
    ttft_s, total_s = done.get("ttft_s"), done.get("total_s")
    decode_s = total_s - ttft_s if ttft_s is not None and total_s is not None else 0.0
    speed = (tokens - 1) / decode_s if tokens and tokens > 1 and decode_s >= SHORTEST_DECODE_S else None
    return dataclasses.replace(
        reply,
        ttft_s=ttft_s if ttft_s is not None else reply.ttft_s,
        tokens_per_s=speed,
        tokens=tokens,
        text=done.get("content") or done.get("reasoning") or "",
        finish=done.get("finish_reason"),
        done=done,
    )
