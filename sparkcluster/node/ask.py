"""Sends a request to the endpoint from the node itself, so that it works without an open port to the user's network.

A model for embeddings or rerank (``kind`` in the request) is asked to compare texts. The program prints JSON lines;
exactly one of the last two kinds is printed, at the end::

    {"text": "…"} {"reasoning": "…"}
    {"counters": {…}, "context": N}       every 2 s, as a heartbeat. ``counters`` is empty if none can be read, null if
                                          the request has none; also printed before the error ``engine-dead``
    {"done": {"content", "reasoning", "tool_calls", "finish_reason", "usage", "ttft_s", "total_s", "status"}}
    {"error": {"kind", "message"}}

The kind of an error is ``refused``, ``timeout``, ``lost``, ``unauthorized``, ``too-long`` (prompt and answer exceed the
context), ``engine-dead``, ``unavailable``, ``rejected`` or ``malformed``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, engine_api

TELL_S = 2.0
QUESTION = "How do I bake bread at home?"
TEXTS = [
    "To bake bread at home, mix flour, water, salt and yeast, let the dough rise, then bake it for 40 minutes.",
    "The satellite passed the far side of the moon and sent its measurements two days later.",
]
"""Input for models for embeddings or rerank: the first text answers the question."""
_MOST = 16 << 20
# Keys of a request that are passed to the engine unchanged.
_PASSED = ("model", "messages", "tools", "max_tokens", "temperature", "top_p", "top_k", "chat_template_kwargs")
# vLLM and other servers use the wording of OpenAI's API (vllm-project/vllm#20409); some with status 500.
_TOO_LONG = re.compile(
    r"maximum context length|maximum model length|context_(?:length|window)_exceeded"
    r"|max_tokens must be at least 1, got -|exceeds the available context size",
    re.I,
)
# Part of vLLM's EngineDeadError (vllm/v1/engine/exceptions.py); the trace is only in its log.
_TRACE = " See stack trace (above) for the root cause."


class Failed(Exception):
    """The endpoint did not answer the request as expected."""

    def __init__(self, kind: str, message: str) -> None:
        Exception.__init__(self, message)
        self.kind = kind


def headers(request: dict[str, Any]) -> dict[str, str]:
    """Headers with the API key ``key_name`` from ``key_file`` (readable by its owner only), if there is one."""
    try:
        return {"Content-Type": "application/json", **engine_api.keyed(request)}
    except OSError as error:
        why = "cannot read the API key from %s: %s" % (request["key_file"], error.strerror or error)
        raise Failed("unauthorized", why) from error


def explain(status: int, body: bytes) -> Failed:
    """The error for an HTTP error, with a message of one line."""
    text = body.decode(errors="replace").strip()
    try:
        document = json.loads(text)
        inner = document.get("error", document)
        message = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    except (ValueError, AttributeError):
        message = text
    words = re.sub(r"\s+", " ", str(message or http.client.responses.get(status, "no reason")))
    words = words.replace(_TRACE, "")[:400]
    if status in (401, 403):
        return Failed("unauthorized", "the endpoint rejects the API key that its rank was started with: " + words)
    if _TOO_LONG.search(text):
        return Failed("too-long", words)
    if status in (502, 503, 504):
        # Returned by a proxy in front of an engine, or by an overloaded engine.
        return Failed("unavailable", "the endpoint answers %d: %s" % (status, words))
    if status >= 500:
        return Failed("engine-dead", "the engine answers %d: %s" % (status, words))
    return Failed("rejected", words)


class Answer:
    """The answer so far. The time limit counts from the last token of any kind.

    The limit is ``first_s`` of ``request`` for the first token, then ``token_s``.
    """

    def __init__(self, request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell = tell
        self.began = self.moved = time.monotonic()
        self.limit_s: float = request["first_s"]
        self.token_s: float = request["token_s"]
        self.calls: dict[int, dict[str, str]] = {}
        self.found: dict[str, Any] = {
            "content": "", "reasoning": "", "finish_reason": None, "usage": None, "ttft_s": None, "status": 200
        }  # fmt: skip

    @property
    def remaining_s(self) -> float:
        """Seconds until the next token is late."""
        return max(0.001, self.moved + self.limit_s - time.monotonic())

    def late(self) -> str:
        """Message: no token arrived in time."""
        size = len(self.found["content"] + self.found["reasoning"])
        return "sent no token for %.0f s, after %d characters" % (self.limit_s, size)

    def feed(self, document: dict[str, Any]) -> None:
        """Process a chunk of the answer."""
        if document.get("error"):
            code = document["error"].get("code") if isinstance(document["error"], dict) else None
            raise explain(code if isinstance(code, int) else 500, json.dumps(document).encode())
        for choice in document.get("choices") or []:
            self.take(choice)
        self.found["usage"] = document.get("usage") or self.found["usage"]

    def take(self, choice: dict[str, Any]) -> None:
        """Process a choice of a chunk."""
        part = choice.get("delta") or {}
        # reasoning_content is the older name of the field
        thought = part.get("reasoning") or part.get("reasoning_content")
        calls = part.get("tool_calls") or []
        if part.get("content") or thought or calls:
            self.moved, self.limit_s = time.monotonic(), self.token_s
            self.found["ttft_s"] = self.found["ttft_s"] or round(self.moved - self.began, 4)
        for name, event, text in (("reasoning", "reasoning", thought), ("content", "text", part.get("content"))):
            if text:
                self.found[name] += text
                self.tell({event: text})
        for call in calls:
            function = call.get("function") or {}
            function_call = self.calls.setdefault(call.get("index", len(self.calls)), {"name": "", "arguments": ""})
            function_call["name"] += function.get("name") or ""
            function_call["arguments"] += function.get("arguments") or ""
        self.found["finish_reason"] = choice.get("finish_reason") or self.found["finish_reason"]

    def done(self) -> dict[str, Any]:
        """The final document; Failed if the engine aborted the answer, as vLLM does while it is being stopped."""
        if self.found["finish_reason"] == "abort":
            raise Failed("unavailable", "the engine aborted the request, as it does while it is being stopped")
        calls = [self.calls[index] for index in sorted(self.calls)]
        return {**self.found, "tool_calls": calls, "total_s": round(time.monotonic() - self.began, 4)}


@contextlib.contextmanager
def posted(
    request: dict[str, Any], path: str, body: dict[str, Any], late: Callable[[], str]
) -> Iterator[tuple[http.client.HTTPResponse, socket.socket]]:
    """The endpoint's response to ``body`` and its connection; ``late`` is the message for a timeout."""
    where = urllib.parse.urlsplit(request["endpoint"]).netloc
    connection, path = engine_api.connect(request["endpoint"] + path, request["first_s"])
    try:
        connection.request("POST", path, json.dumps(body).encode(), headers(request))
        # HTTPConnection clears ``sock`` if the response says Connection: close
        connected = connection.sock
        with connection.getresponse() as response:
            if response.status != 200:
                raise explain(response.status, response.read(65536))
            yield response, connected
    except TimeoutError as error:
        raise Failed("timeout", "%s %s" % (where, late())) from error
    except ConnectionRefusedError as error:
        raise Failed("refused", "nothing is listening at %s" % where) from error
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or error or type(error).__name__
        raise Failed("lost", "%s: %s" % (where, why)) from error
    finally:
        connection.close()


def complete(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Request a completion; return the final document."""
    body = {name: request[name] for name in _PASSED if request.get(name) not in (None, {})}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    where, answer = urllib.parse.urlsplit(request["endpoint"]).netloc, Answer(request, tell)
    with posted(request, "/chat/completions", body, answer.late) as (response, connected):
        while True:
            connected.settimeout(answer.remaining_s)
            line = response.readline()
            if not line:
                raise Failed("lost", "%s closed the connection in the middle of an answer" % where)
            data = line[5:].strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                return answer.done()
            if data:
                answer.feed(json.loads(data))


def compare(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Compare two texts with a question that one of them answers, by vectors or scores; return the final document.

    Failed if the other text is at least as similar: then the model is broken.
    """
    began, embeds = time.monotonic(), request["kind"] == "embeddings"
    body = {"input": [QUESTION, *TEXTS]} if embeds else {"query": QUESTION, "documents": TEXTS}
    path, late = "/embeddings" if embeds else "/rerank", "sent no answer for %.0f s" % request["first_s"]
    with posted(request, path, {"model": request["model"], **body}, lambda: late) as (response, _):
        found = json.loads(response.read(_MOST))
    listed = sorted(found["data" if embeds else "results"], key=lambda each: int(each["index"]))
    if embeds:
        asked, *vectors = [[float(number) for number in each["embedding"]] for each in listed]
        what, scores = "vectors of %d numbers" % len(asked), [_cosine(asked, each) for each in vectors]
    else:
        what, scores = "scores", [float(each["relevance_score"]) for each in listed]
    near, far = scores
    said = "%s: %.3f for a text that answers the question, %.3f for an unrelated text" % (what, near, far)
    if not near > far:  # also false for NaN
        raise Failed("malformed", said)
    tell({"text": said})
    return {
        "content": said, "reasoning": "", "tool_calls": [], "finish_reason": "stop", "usage": found.get("usage"),
        "ttft_s": None, "total_s": round(time.monotonic() - began, 4), "status": 200
    }  # fmt: skip


def _cosine(one: list[float], other: list[float]) -> float:
    norm = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / norm if norm else 0.0


def read_counters(request: dict[str, Any]) -> dict[str, float]:
    """The engine's counters by their names in ``request``, each summed over all engines; {} if they cannot be read."""
    if not request.get("counters"):
        return {}  # some engines reset their statistics when they are read
    try:
        _, text = engine_api.get(request["endpoint"].removesuffix("/v1") + "/metrics", headers(request))
    except (Failed, OSError, http.client.HTTPException):
        return {}
    found = engine_api.metrics(text, request["counters"])
    return {name: value for name, value in found.items() if value is not None}


def longest(request: dict[str, Any]) -> int | None:
    """Maximum length of prompt and answer in tokens, if the engine reports it."""
    try:
        _, text = engine_api.get(request["endpoint"] + "/models", headers(request))
        listed = json.loads(text)["data"]
        lengths = [each.get("max_model_len") or (each.get("meta") or {}).get("n_ctx") for each in listed]
    except (Failed, OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException):
        return None
    return max((length for length in lengths if isinstance(length, int)), default=None)


def tell_alive(request: dict[str, Any], over: threading.Event) -> None:
    """Print the engine's counters periodically until ``over``."""
    counting = bool(request.get("counters"))
    context = longest(request) if counting else None
    while not over.wait(TELL_S):
        common.emit({"counters": read_counters(request) if counting else None, "context": context})


def main(request: dict[str, Any], lines: BinaryIO | None = None) -> dict[str, Any]:
    """Send the request. Errors are returned as answers.

    The program ends with ``lines``: a hanging engine could keep it for hours.
    """
    if lines is not None:
        common.end_with(lines)
    over = threading.Event()
    threading.Thread(target=tell_alive, args=(request, over), daemon=True).start()
    ended = answer(request, common.emit)
    over.set()
    if request.get("counters") and ended.get("error", {}).get("kind") == "engine-dead":
        # Compared with the next attempt: an engine that answers other requests meanwhile is not dead.
        common.emit({"counters": read_counters(request), "context": None})
    return ended


def answer(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The result as ``done``, or the ``error``."""
    try:
        return {"done": (compare if request.get("kind") else complete)(request, tell)}
    except Failed as error:
        return {"error": {"kind": error.kind, "message": str(error)}}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return {"error": {"kind": "malformed", "message": "not an OpenAI answer: %s" % error}}
