"""Asks the endpoint from the node itself, so that neither the user's network nor an open port is needed.

A model for embeddings or rerank (``kind`` in the request) is asked to compare texts.
Streams JSON lines and ends with exactly one of the last two::

    {"text": "…"} {"reasoning": "…"}
    {"counters": {…}, "context": N}       every 2 s: a sign of life. ``counters`` is empty where none can be read, and
                                          null where the request names none; once more before the error ``engine-dead``
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
"""What models for embeddings or rerank are asked: the first text answers the question."""
_MOST = 16 << 20
# Of a request, what the engine is sent as it is.
_PASSED = ("model", "messages", "tools", "max_tokens", "temperature", "top_p", "top_k", "chat_template_kwargs")
# vLLM and other servers use the words of OpenAI's API (vllm-project/vllm#20409); some say it with status 500.
_TOO_LONG = re.compile(
    r"maximum context length|maximum model length|context_(?:length|window)_exceeded"
    r"|max_tokens must be at least 1, got -|exceeds the available context size",
    re.I,
)
# Of vLLM's EngineDeadError (vllm/v1/engine/exceptions.py): the trace is in its log alone.
_TRACE = " See stack trace (above) for the root cause."


class Failed(Exception):
    """The endpoint did not do what was asked."""

    def __init__(self, kind: str, message: str) -> None:
        Exception.__init__(self, message)
        self.kind = kind


def headers(request: dict[str, Any]) -> dict[str, str]:
    """Headers with the API key, called ``key_name``, of ``key_file``, which only its owner may read, if it has one."""
    try:
        return {"Content-Type": "application/json", **engine_api.keyed(request)}
    except OSError as error:
        why = "the API key cannot be read from %s: %s" % (request["key_file"], error.strerror or error)
        raise Failed("unauthorized", why) from error


def explain(status: int, body: bytes) -> Failed:
    """What an HTTP error says, in one line."""
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
        return Failed("unauthorized", "the endpoint requires another API key than its rank was started with: " + words)
    if _TOO_LONG.search(text):
        return Failed("too-long", words)
    if status in (502, 503, 504):
        # Said by what stands before an engine, or by one that is overloaded.
        return Failed("unavailable", "the endpoint answers %d: %s" % (status, words))
    if status >= 500:
        return Failed("engine-dead", "the engine answers %d: %s" % (status, words))
    return Failed("rejected", words)


class Answer:
    """What came so far. The first token of any kind is the sign of life.

    The first is late after ``first_s`` of ``request``, each next one after ``token_s``.
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
        """Until the next token is late."""
        return max(0.001, self.moved + self.limit_s - time.monotonic())

    def late(self) -> str:
        """That no token came in time."""
        size = len(self.found["content"] + self.found["reasoning"])
        return "sent no token for %.0f s, after %d characters" % (self.limit_s, size)

    def feed(self, document: dict[str, Any]) -> None:
        """Take in a chunk of the answer."""
        if document.get("error"):
            code = document["error"].get("code") if isinstance(document["error"], dict) else None
            raise explain(code if isinstance(code, int) else 500, json.dumps(document).encode())
        for choice in document.get("choices") or []:
            self.take(choice)
        self.found["usage"] = document.get("usage") or self.found["usage"]

    def take(self, choice: dict[str, Any]) -> None:
        """Take in one choice of a chunk."""
        part = choice.get("delta") or {}
        # the older name of the field is reasoning_content
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
        """The final document; Failed where the engine broke the answer off, as vLLM does while it is stopped."""
        if self.found["finish_reason"] == "abort":
            raise Failed("unavailable", "the engine aborted the request, as it does while it is being stopped")
        calls = [self.calls[index] for index in sorted(self.calls)]
        return {**self.found, "tool_calls": calls, "total_s": round(time.monotonic() - self.began, 4)}


@contextlib.contextmanager
def posted(
    request: dict[str, Any], path: str, body: dict[str, Any], late: Callable[[], str]
) -> Iterator[tuple[http.client.HTTPResponse, socket.socket]]:
    """The answer of the endpoint to ``body``, and its connection; ``late`` says what did not come in time."""
    where = urllib.parse.urlsplit(request["endpoint"]).netloc
    connection, path = engine_api.connect(request["endpoint"] + path, request["first_s"])
    try:
        connection.request("POST", path, json.dumps(body).encode(), headers(request))
        # the connection forgets it with the headers of an answer that is to end it
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
    """One completion; the final document."""
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
    """How near two texts are to a question, of which one answers it: by vectors, or scores; the final document.

    Its content says so in words. Failed where the other one is as near: then the model is broken.
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
    said = "%s: %.3f for a text that answers the question, %.3f for another one" % (what, near, far)
    if not near > far:  # nor if they are no numbers
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
    """The engine's counters by the names that ``request`` has for them, each the sum over all engines; {} without."""
    try:
        _, text = engine_api.get(request["endpoint"].removesuffix("/v1") + "/metrics", headers(request))
    except (Failed, OSError, http.client.HTTPException):
        return {}
    found = engine_api.metrics(text, request["counters"])
    return {name: value for name, value in found.items() if value is not None}


def longest(request: dict[str, Any]) -> int | None:
    """Tokens of the longest prompt and answer that the engine takes, where it says so."""
    try:
        _, text = engine_api.get(request["endpoint"] + "/models", headers(request))
        listed = json.loads(text)["data"]
        lengths = [each.get("max_model_len") or (each.get("meta") or {}).get("n_ctx") for each in listed]
    except (Failed, OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException):
        return None
    return max((length for length in lengths if isinstance(length, int)), default=None)


def tell_alive(request: dict[str, Any], over: threading.Event) -> None:
    """Tell the engine's counters again and again until ``over``."""
    counting = bool(request.get("counters"))
    context = longest(request) if counting else None
    while not over.wait(TELL_S):
        common.emit({"counters": read_counters(request) if counting else None, "context": context})


def main(request: dict[str, Any], lines: BinaryIO | None = None) -> dict[str, Any]:
    """Ask. Every error is an answer.

    The request ends with ``lines``: an engine that hangs may hold it for hours.
    """
    if lines is not None:
        common.end_with(lines)
    over = threading.Event()
    threading.Thread(target=tell_alive, args=(request, over), daemon=True).start()
    ended = answer(request, common.emit)
    over.set()
    if request.get("counters") and ended.get("error", {}).get("kind") == "engine-dead":
        # Compared with those of the next attempt: an engine that answers others meanwhile is not dead.
        common.emit({"counters": read_counters(request), "context": None})
    return ended


def answer(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """One completion as ``done``, or its ``error``."""
    try:
        return {"done": (compare if request.get("kind") else complete)(request, tell)}
    except Failed as error:
        return {"error": {"kind": error.kind, "message": str(error)}}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return {"error": {"kind": "malformed", "message": "not an OpenAI answer: %s" % error}}
