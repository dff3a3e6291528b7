"""The HTTP server: OpenAI's endpoints as vLLM serves them, health and metrics."""

import hmac
import itertools
import json
import os
import threading
import time
import zlib
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stubengine import faults, log, model
from stubengine.engine import DEAD, EngineDead

REASONING_TOKENS = 100  # tokens of reasoning before the answer: with fewer max_tokens the content is null
GARBAGE = ("!", "\ufffd")  # tokens without a preceding blank


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, code, kind, message, param=None):
        super().__init__(message)
        self.code = code
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


DEAD_ENGINE = Refusal(500, "InternalServerError", DEAD)


class Server(ThreadingHTTPServer):
    """State shared by the handlers; its socket is bound long before it listens."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, sock, engine, options, handler=None):
        super().__init__(sock.getsockname(), handler or Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.engine = engine
        self.options = options
        self.failed = threading.Event()  # set when a request failed because of a dead engine
        self.stopping = threading.Event()  # set by SIGTERM: from then on requests are aborted
        self.answering = 0  # completions that are not completely sent
        self.lock = threading.Lock()

    def handle_error(self, request, client_address):
        """Ignores clients that disconnected."""


def prompt_of(body):
    """The text that the answer depends on; raises Refusal if it is missing."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "BadRequestError", "messages: field required", "messages")
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = " ".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        parts.append("%s: %s" % (message.get("role") if isinstance(message, dict) else "?", content))
    return "\n".join(parts)


class Handler(BaseHTTPRequestHandler):
    """Handles a connection."""

    owner = "vllm"
    protocol_version = "HTTP/1.1"
    server_version = "uvicorn"
    sys_version = ""
    reasoning = "reasoning"  # field of an answer
    label = 'engine="0"'
    names = {}  # of metrics, if they differ from vLLM's; "-": the metric does not exist

    def log_message(self, format, *args):
        """Does nothing: log_request writes uvicorn's line."""

    def log_request(self, code="-", size="-"):
        """Writes uvicorn's access line."""
        log.uvicorn(
            '%s:%d - "%s %s HTTP/1.1" %d %s'
            % (*self.client_address[:2], self.command, self.path, int(code), HTTPStatus(int(code)).phrase)
        )

    def _json(self, code, body):
        data = json.dumps(body).encode()
        self._bytes(code, data, "application/json")

    def _bytes(self, code, data, kind):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _authorised(self):
        keys = self.server.options["api_keys"]
        if not keys or not self.path.startswith(("/v1", "/v2")):
            return True
        scheme, _, key = (self.headers.get("Authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and any(hmac.compare_digest(key.encode(), k.encode()) for k in keys)

    def do_GET(self):
        """Answers according to ``ROUTES``; errors have the same JSON as vLLM's."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.options.get("routes", ROUTES).get((self.path.split("?")[0], self.command))
        try:
            if not self._authorised():
                self._json(401, {"error": "Unauthorized"})
            elif answer is None:
                self._json(404, {"detail": "Not Found"})
            else:
                getattr(self, answer)(raw)
        except Refusal as refusal:
            self._json(refusal.code, refusal.body)
        except EngineDead:
            self.server.failed.set()
            self._json(500, DEAD_ENGINE.body)

    do_POST = do_GET

    def health(self, _raw):
        """Returns 503 only after the engine has reported its death."""
        self._bytes(503 if self.server.engine.errored else 200, b"", "text/plain")

    def models(self, _raw):
        """The served names."""
        options = self.server.options
        model_fields = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": self.owner,
            "root": options["model"],
            "max_model_len": options["max_model_len"],
        }
        self._json(200, {"object": "list", "data": [dict(model_fields, id=name) for name in options["names"]]})

    def metrics(self, _raw):
        """The counters of the engine, as Prometheus reads them."""
        engine = self.server.engine
        rows = (
            ("num_requests_running", "gauge", engine.running),
            ("num_requests_waiting", "gauge", 0),
            ("kv_cache_usage_perc", "gauge", min(1.0, engine.running * 16.0 / max(1, engine.kv_tokens))),
            ("prompt_tokens_total", "counter", engine.prompted),
            ("generation_tokens_total", "counter", engine.generated),
            ("request_success_total", "counter", engine.finished),
            ("prefix_cache_queries_total", "counter", engine.prompted),
            ("prefix_cache_hits_total", "counter", 0),
            ("num_preemptions_total", "counter", 0),
        )
        label = '%s,model_name="%s"' % (self.label, self.server.options["names"][0])
        lines = []
        for row, kind, value in (each for each in rows if self.names.get(each[0]) != "-"):
            name, _, more = ("%s:%s" % (self.owner, self.names.get(row, row))).partition("{")
            lines += ["# HELP %s Of the stub engine." % name, "# TYPE %s %s" % (name, kind)]
            lines.append("%s{%s} %s" % (name, ",".join([label, *filter(None, [more.rstrip("}")])]), float(value)))
        counts, name = list(itertools.accumulate(engine.ttft)), self.owner + ":time_to_first_token_seconds"
        lines += ["# HELP %s Of the stub engine." % name, "# TYPE %s histogram" % name]
        for bound, count in zip((*engine.bounds_s, "+Inf"), counts):
            lines.append('%s_bucket{%s,le="%s"} %s' % (name, label, bound, float(count)))
        for part, value in (("count", counts[-1]), ("sum", engine.ttft_sum_s)):
            lines.append("%s_%s{%s} %s" % (name, part, label, float(value)))
        self._bytes(200, "\n".join([*lines, ""]).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _request(self, body):
        """Checks a request and starts it; returns (iterator of words, facts for the answer)."""
        options = self.server.options
        if body.get("tools") and body.get("tool_choice", "auto") == "auto" and not options["tools"]:
            raise Refusal(
                400,
                "BadRequestError",
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            )
        prompt = prompt_of(body)
        prompt_tokens = len(model.tokens(prompt)) + 4
        room = options["max_model_len"] - prompt_tokens
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        limit = room if limit is None else limit
        if not isinstance(limit, int) or limit < 1:
            raise Refusal(400, "BadRequestError", "max_tokens must be at least 1, got %s." % limit, "max_tokens")
        if room < 1 or limit > room:
            raise Refusal(
                400,
                "BadRequestError",
                "This model's maximum context length is %d tokens. However, you requested %d output tokens "
                "and your prompt contains %d input tokens." % (options["max_model_len"], limit, prompt_tokens),
                "max_tokens",
            )
        thinks = options["reasoning"] and (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        facts = {
            # Always the first name, as in vLLM.
            "head": {"id": "chatcmpl-" + os.urandom(8).hex(), "created": int(time.time()), "model": options["names"][0]},
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 0,
            "reasoning": REASONING_TOKENS if thinks else 0,
            "call": call_of(body) if options["tools"] else None,
        }
        if "lie-health" in faults.active():
            raise EngineDead(DEAD)
        if self.server.stopping.is_set():
            return iter([("", "abort")]), facts
        words = self.server.engine.generate(
            prompt,
            prompt_tokens,
            max_tokens=limit,
            min_tokens=body.get("min_tokens") or 0,
            extra=facts["reasoning"],
            ignore_eos=bool(body.get("ignore_eos")),
        )
        return words, facts

    def _parsed(self, raw, pooling):
        """The JSON of a request; refuses a pooling request to a generating model, and the reverse."""
        try:
            body = json.loads(raw)
        except ValueError:
            raise Refusal(400, "BadRequestError", "JSON decode error")
        if not isinstance(body, dict):
            raise Refusal(400, "BadRequestError", "Input should be a valid dictionary")
        if self.server.options["pooling"] != pooling:
            raise Refusal(400, "BadRequestError", "The model does not support this API")
        if body.get("model") and body["model"] not in self.server.options["names"]:
            raise Refusal(404, "NotFoundError", "The model `%s` does not exist." % body["model"], "model")
        return body

    def embeddings(self, raw):
        """Embeddings whose angle depends on the number of words that two texts share."""
        found = [{"object": "embedding", "index": at, "embedding": each} for at, each in self._vectors(raw, "input")]
        head = {"object": "list", "model": self.server.options["names"][0]}
        self._json(200, dict(head, data=found, usage={"prompt_tokens": 1, "total_tokens": 1}))

    def rerank(self, raw):
        """Scores: the number of words that each text shares with the query."""
        query, *texts = self._vectors(raw, "query", "documents")
        scores = [(at - 1, sum(a * b for a, b in zip(query[1], each))) for at, each in texts]
        results = [{"index": at, "relevance_score": score} for at, score in sorted(scores, key=lambda row: -row[1])]
        self._json(200, {"results": results})

    def _vectors(self, raw, *names):
        body = self._parsed(raw, True)
        if "lie-health" in faults.active():
            raise EngineDead(DEAD)
        texts = [text for name in names for text in ([body[name]] if isinstance(body[name], str) else body[name])]
        for at, text in enumerate(texts):
            vector = [0.0] * 64
            for word in {} if "garbage" in faults.active() else set(text.lower().split()):
                vector[zlib.crc32(word.encode()) % 64] = 1.0
            yield at, vector

    def completion(self, raw):
        """Sends an answer as one body or as a stream."""
        body = self._parsed(raw, False)
        with self.server.lock:
            self.server.answering += 1
        try:
            self._answer(body)
        finally:
            with self.server.lock:
                self.server.answering -= 1

    def _answer(self, body):
        words, facts = self._request(body)
        pieces = in_pieces(words, facts)
        if body.get("stream"):
            self._stream(pieces, facts, bool((body.get("stream_options") or {}).get("include_usage")))
            return
        text, finish = {"reasoning": "", "content": ""}, None
        for field, piece, finish in pieces:
            if field != "tool_calls":
                text[field] += piece
        message = {
            "role": "assistant",
            "content": text["content"] or None,
            self.reasoning: text["reasoning"] or None,
            "tool_calls": [facts["call"]] if finish == "tool_calls" else [],
        }
        choice = {"index": 0, "finish_reason": finish, "message": message}
        self._json(200, dict(facts["head"], object="chat.completion", choices=[choice], usage=usage(facts)))

    def _chunk(self, data):
        line = b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _stream(self, pieces, facts, with_usage):
        first = next(pieces)  # a dead engine is answered with 500, not with a stream
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = dict(facts["head"], object="chat.completion.chunk")

        def send(finish, delta):
            self._chunk(dict(head, choices=[{"index": 0, "delta": delta, "finish_reason": finish}]))

        try:
            send(None, {"role": "assistant", "content": ""})
            for field, piece, finish in itertools.chain([first], pieces):
                send(finish, {self.reasoning if field == "reasoning" else field: piece} if piece else {})
            if with_usage:
                self._chunk(dict(head, choices=[], usage=usage(facts)))
        except EngineDead:
            self.server.failed.set()
            self._chunk(DEAD_ENGINE.body)
        self._chunk(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")


ROUTES = {
    ("/health", "GET"): "health",
    ("/metrics", "GET"): "metrics",
    ("/v1/models", "GET"): "models",
    ("/v1/chat/completions", "POST"): "completion",
    ("/v1/embeddings", "POST"): "embeddings",
    ("/v1/rerank", "POST"): "rerank",
}


def in_pieces(words, facts):
    """Yields (field of the answer, text, finish reason or None) for each word; counts the words in ``facts``."""
    for word, finish in words:
        position = facts["completion_tokens"]
        facts["completion_tokens"] += finish != "abort"
        piece = word if position in (0, facts["reasoning"]) or word in GARBAGE else " " + word
        if facts["call"] and position >= facts["reasoning"]:
            done = finish == "stop"
            yield "tool_calls", [dict(facts["call"], index=0)] if done else "", "tool_calls" if done else finish
        elif position < facts["reasoning"]:
            yield "reasoning", piece, finish
        else:
            yield "content", piece, finish


def call_of(body):
    """A call of the first tool in the request, with a word for each argument; None without tools."""
    tools = body.get("tools") or []
    if not tools or body.get("tool_choice") == "none":
        return None
    function = tools[0].get("function") or {}
    properties = (function.get("parameters") or {}).get("properties") or {}
    arguments = json.dumps({name: "river" for name in properties})
    return {
        "id": "chatcmpl-tool-" + os.urandom(8).hex(),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def usage(facts):
    """OpenAI's usage object."""
    return {
        "prompt_tokens": facts["prompt_tokens"],
        "completion_tokens": facts["completion_tokens"],
        "total_tokens": facts["prompt_tokens"] + facts["completion_tokens"],
    }
