"""Asks the endpoint from the node itself, so that neither the user's network nor an open port is needed.

Streams JSON lines and ends with exactly one document::

    {"text": "…"} {"reasoning": "…"}
    {"counters": {…}, "context": N}       every 2 s, where ``counters`` names metrics; empty where none can be read;
                                          once more before the error ``engine-dead``
    {"done": {"content", "reasoning", "tool_calls", "finish_reason", "usage", "ttft_s", "total_s",
              "status"}}
    {"error": {"status", "kind", "message"}}
    {"waiting": true}                     every 2 s, where ``idle_s`` is set and ``counters`` is not: a sign of life

The kind of an error is ``refused``, ``timeout``, ``lost``, ``unauthorized``, ``unknown-model``, ``too-long`` (prompt
and answer exceed the context), ``engine-dead``, ``unavailable``, ``rejected`` or ``malformed``.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, engine_metrics

TELL_S = 2.0
METRICS_S = 3.0
# Of a request, what the engine is sent as it is.
_PASSED = ("model", "messages", "tools", "max_tokens", "temperature", "top_p", "top_k", "chat_template_kwargs")
# vLLM and other servers use the words of OpenAI's API (vllm-project/vllm#20409); some say it with status 500.
_TOO_LONG = re.compile(
    r"maximum context length|maximum model length|context_(?:length|window)_exceeded"
    r"|max_tokens must be at least 1, got -",
    re.I,
)
# Of vLLM's EngineDeadError (vllm/v1/engine/exceptions.py): the trace is in its log alone.
_TRACE = " See stack trace (above) for the root cause."


class Failed(Exception):
    """The endpoint did not do what was asked."""

    def __init__(self, kind: str, message: str, status: int | None = None) -> None:
        Exception.__init__(self, message)
        self.kind = kind
        self.status = status


def key_from(path: str | None, variable: str | None) -> str | None:
    """The API key, called ``variable``, in an env file that only its owner may read; None where the file has none."""
    if not path:
        return None
    path = common.expand(path)
    try:
        if os.path.islink(os.path.dirname(path)) or os.lstat(path).st_mode & 0o077:
            raise PermissionError("it is not in a rank's own directory, or others may read it")
        return common.read_env_file(path).get(variable or "") or None
    except OSError as error:
        why = error.strerror or error
        raise Failed("unauthorized", "the API key cannot be read from %s: %s" % (path, why)) from error


def is_own(host: str, port: int) -> bool:
    """Whether ``host`` is an address of this node: to itself a machine sends from the address that it sends to.

    No packet is sent to find out, and no name is resolved.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(address[0]).startswith("127.") or bool(probe.getsockname()[0] == address[0])
    except (OSError, ValueError):
        return False


def explain(status: int, body: bytes, keyed: bool = True) -> Failed:
    """What an HTTP error says, in one line; ``keyed`` is whether an API key was sent."""
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
        refused = "rejects the API key that its rank was started with"
        what = refused if keyed else "requires an API key, and its rank was started without one"
        return Failed("unauthorized", "the endpoint %s: %s" % (what, words), status)
    if _TOO_LONG.search(text):
        return Failed("too-long", words, status)
    if status == 404 and "model" in words.lower():
        return Failed("unknown-model", words, status)
    if status in (502, 503, 504):
        # Said by what stands before an engine, or by one that is overloaded.
        return Failed("unavailable", "the endpoint answers %d: %s" % (status, words), status)
    if status >= 500:
        return Failed("engine-dead", "the engine answers %d: %s" % (status, words), status)
    return Failed("rejected", words, status)


class Endpoint:
    """One connection to the OpenAI-compatible endpoint of ``request``; ``timeout_s`` is for the whole exchange.

    With ``idle_s`` it is the limit for the first token, and ``idle_s`` that for each next one.
    """

    def __init__(self, request: dict[str, Any], timeout_s: float, idle_s: float | None = None) -> None:
        parts = urllib.parse.urlsplit(request["endpoint"])
        self.base = parts.path.rstrip("/")
        self.where = parts.netloc
        self.timeout_s = timeout_s
        self.idle_s = idle_s
        self.received = 0
        self.until = time.monotonic() + timeout_s
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        if not is_own(host, port):
            raise Failed("lost", "%s is not an address of this node, so its API is not there" % host)
        maker = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection = maker(host, port, timeout=timeout_s)
        self.headers = {"Content-Type": "application/json", "Accept": "*/*"}
        key = key_from(request.get("key_file"), request.get("key_name"))
        if key:
            self.headers["Authorization"] = "Bearer " + key

    def moved(self, received: int) -> None:
        """Take in that ``received`` characters of the answer have come: with ``idle_s`` its limit starts again."""
        if self.idle_s is not None and received > self.received:
            self.received = received
            self.timeout_s = self.idle_s
            self.until = time.monotonic() + self.idle_s

    def late(self) -> Failed:
        """The error of an exchange that took too long."""
        if self.idle_s is not None:
            after = ", after %d characters" % self.received if self.received else ""
            return Failed("timeout", "%s sent no token for %.0f s%s" % (self.where, self.timeout_s, after))
        return Failed("timeout", "%s gave no complete answer within %.0f s" % (self.where, self.timeout_s))

    def lines(self, method: str, path: str, body: Any = None) -> Iterator[bytes]:
        """Lines of the answer; the limit holds between them as well. Failed on any status but 200."""
        try:
            data = None if body is None else json.dumps(body).encode()
            self.connection.request(method, path, data, self.headers)
            # the connection forgets it with the headers of an answer that is to end it
            connected: socket.socket = self.connection.sock
            response = self.connection.getresponse()
            if response.status != 200:
                raise explain(response.status, response.read(65536), "Authorization" in self.headers)
            while True:
                remaining_s = self.until - time.monotonic()
                if remaining_s <= 0:
                    raise self.late()
                connected.settimeout(remaining_s)
                line = response.readline()
                if not line:
                    return
                yield line.rstrip(b"\r\n")
        except TimeoutError as error:
            raise self.late() from error
        except ConnectionRefusedError as error:
            raise Failed("refused", "nothing is listening at %s" % self.where) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Failed("lost", "%s: %s" % (self.where, error or type(error).__name__)) from error
        finally:
            self.connection.close()


def body_of(request: dict[str, Any]) -> dict[str, Any]:
    """The completion that ``request`` asks for."""
    body = {name: request[name] for name in _PASSED if request.get(name) not in (None, {})}
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


class Answer:
    """What came so far. The first token of any kind is the sign of life."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell = tell
        self.began = time.monotonic()
        self.first: float | None = None
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.size = 0
        self.finish: str | None = None
        self.usage: dict[str, Any] | None = None

    def feed(self, document: dict[str, Any]) -> None:
        """Take in a chunk of the answer."""
        for choice in document.get("choices") or []:
            self.take(choice)
        self.usage = document.get("usage") or self.usage

    def take(self, choice: dict[str, Any]) -> None:
        """Take in one choice of a chunk."""
        part = choice.get("delta") or {}
        text = part.get("content") or ""
        # the older name of the field is reasoning_content
        thought = part.get("reasoning") or part.get("reasoning_content") or ""
        calls = part.get("tool_calls") or []
        self.size += len(text) + len(thought) + len(calls)
        if (text or thought or calls) and self.first is None:
            self.first = time.monotonic()
        if thought:
            self.reasoning.append(thought)
            self.tell({"reasoning": thought})
        if text:
            self.content.append(text)
            self.tell({"text": text})
        for call in calls:
            function = call.get("function") or {}
            function_call = self.calls.setdefault(call.get("index", len(self.calls)), {"name": "", "arguments": ""})
            function_call["name"] += function.get("name") or ""
            function_call["arguments"] += function.get("arguments") or ""
        self.finish = choice.get("finish_reason") or self.finish

    def done(self) -> dict[str, Any]:
        """The final document; Failed where the engine broke the answer off, as vLLM does while it is stopped."""
        if self.finish == "abort":
            raise Failed("unavailable", "the engine aborted the request, as it does while it is being stopped")
        return {
            "content": "".join(self.content),
            "reasoning": "".join(self.reasoning),
            "tool_calls": [self.calls[index] for index in sorted(self.calls)],
            "finish_reason": self.finish,
            "usage": self.usage,
            "ttft_s": None if self.first is None else round(self.first - self.began, 4),
            "total_s": round(time.monotonic() - self.began, 4),
            "status": 200,
        }


def complete(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """One completion; the final document."""
    endpoint = Endpoint(request, float(request.get("timeout_s") or 120), request.get("idle_s"))
    answer = Answer(tell)
    for line in endpoint.lines("POST", endpoint.base + "/chat/completions", body_of(request)):
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if data == b"[DONE]":
            return answer.done()
        if not data:
            continue
        document = decode(data)
        if document.get("error"):
            error = document["error"]
            code = error.get("code") if isinstance(error, dict) else None
            raise explain(code if isinstance(code, int) else 500, data)
        answer.feed(document)
        endpoint.moved(answer.size)
    raise Failed("lost", "%s closed the connection in the middle of an answer" % endpoint.where)


def decode(data: bytes) -> dict[str, Any]:
    """A JSON object; Failed where it is none."""
    try:
        document = json.loads(data.decode(errors="replace"))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Failed("malformed", "not an OpenAI answer: %s" % data[:120].decode(errors="replace"))
    return document


def read_counters(request: dict[str, Any]) -> dict[str, float]:
    """The engine's counters by the names that ``request`` has for them, each the sum over all engines; {} without."""
    try:
        text = b"\n".join(Endpoint(request, METRICS_S).lines("GET", "/metrics")).decode(errors="replace")
    except Failed:
        return {}
    found = engine_metrics.metrics(text, request["counters"])
    return {name: value for name, value in found.items() if value is not None}


def longest(request: dict[str, Any]) -> int | None:
    """Tokens of the longest prompt and answer that the engine takes, where it says so."""
    try:
        endpoint = Endpoint(request, METRICS_S)
        models = decode(b"".join(endpoint.lines("GET", endpoint.base + "/models"))).get("data") or []
    except Failed:
        return None
    lengths = [model.get("max_model_len") for model in models if isinstance(model, dict)]
    return max((length for length in lengths if isinstance(length, int)), default=None)


def tell_alive(request: dict[str, Any], tell: Callable[[dict[str, Any]], None], over: threading.Event) -> None:
    """Tell the engine's counters, or else that the program runs, again and again until ``over``."""
    context = longest(request) if request.get("counters") else None
    while not over.wait(TELL_S):
        tell({"counters": read_counters(request), "context": context} if request.get("counters") else {"waiting": True})


def main(request: dict[str, Any], lines: BinaryIO | None = None) -> dict[str, Any]:
    """Ask. Every error is an answer.

    The request ends with ``lines``: an engine that hangs may hold it for hours.
    """
    if lines is not None:
        common.end_with(lines)
    lock, over = threading.Lock(), threading.Event()

    def tell(event: dict[str, Any]) -> None:
        with lock:
            if not over.is_set():
                common.emit(event)

    if request.get("counters") or request.get("idle_s"):
        threading.Thread(target=tell_alive, args=(request, tell, over), daemon=True).start()
    ended = answer(request, tell)
    if request.get("counters") and ended.get("error", {}).get("kind") == "engine-dead":
        # Compared with those of the next attempt: an engine that answers others meanwhile is not dead.
        tell({"counters": read_counters(request), "context": None})
    with lock:
        over.set()
    return ended


def answer(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """One completion as ``done``, or its ``error``."""
    try:
        return {"done": complete(request, tell)}
    except Failed as error:
        return {"error": {"status": error.status, "kind": error.kind, "message": str(error)}}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = "%s: %s" % (type(error).__name__, error)
        return {"error": {"status": None, "kind": "malformed", "message": message}}
