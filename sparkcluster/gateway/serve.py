"""Client requests: checks permissions, picks an engine, and forwards its answer as bytes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.connector import Connection
from yarl import URL

from sparkcluster.gateway.body import Body
from sparkcluster.gateway.config import Model
from sparkcluster.gateway.keeper import Keeper
from sparkcluster.gateway.metrics import Metrics
from sparkcluster.gateway.schedule import STREAM_WAIT_S, WAIT_S, Request, Unavailable

# Allowed engine paths; others stop the engine, load adapters, or reveal other clients.
PATHS = frozenset(
    "/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens /v1/embeddings"  # noqa: SIM905
    " /v1/rerank /rerank /v2/rerank /v1/score /score /pooling /classify /tokenize /detokenize"
    " /v1/audio/transcriptions /v1/audio/translations".split()
)
AUTO = "auto"

# Headers forwarded to the engine and back. No credentials, connection headers, or CORS headers, by which an engine may
# let any web page read its answers.
_SENT = ("Content-Type", "Accept", "X-Request-Id", "traceparent", "tracestate", "anthropic-version", "anthropic-beta")
_RETURNED = ("Content-Type", "Content-Length", "Cache-Control", "Retry-After", "X-Request-Id")
_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}
# The answer has no time-out; these detect a node that lost power: 10 + 4 x 5 s.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4, socket.TCP_USER_TIMEOUT: 30_000}
_EVENTS = "text/event-stream"
COMMENT_S, UNREAD_S, WATCH_S = 1.0, 300.0, 0.2
"""Seconds between comments while a model loads; for a client to read what was sent; until a lost client is noticed."""


class _Connector(aiohttp.TCPConnector):
    """Connections that end when the other node is gone."""

    async def connect(self, *args: Any, **options: Any) -> Connection:
        connection = await super().connect(*args, **options)
        if connection.transport is not None:
            peer = connection.transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                peer.setsockopt(socket.IPPROTO_TCP, option, value)
        return connection


def session() -> aiohttp.ClientSession:
    """A session for requests to engines."""
    return aiohttp.ClientSession(
        # Engines close idle connections, and a request on a closing connection would fail.
        connector=_Connector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )


class _Exchange:
    """A request, and its progress.

    ``may``: the models that its key may use, None for all. ``writing_since``: set while writing to the client.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.anthropic = request.path.startswith("/v1/messages")
        self.began = time.monotonic()
        self.may: Sequence[str] | None = ()
        self.model = ""
        self.response: web.StreamResponse | None = None
        self.writing_since: float | None = None

    async def start(self, status: int, headers: dict[str, str]) -> None:
        self.response = web.StreamResponse(status=status, headers=headers)
        await self.response.prepare(self.request)

    async def write(self, chunk: bytes) -> web.StreamResponse:
        """Write ``chunk``, or the end if it is empty."""
        assert self.response is not None  # noqa: S101
        self.writing_since = time.monotonic()
        await (self.response.write(chunk) if chunk else self.response.write_eof())
        self.writing_since = None
        return self.response

    async def write_error(self, data: bytes) -> web.StreamResponse:
        """Write the last event of a stream: an error as JSON."""
        event = b"event: error\n" if self.anthropic else b""
        await self.write(b"\n\n" + event + b"data: " + data.replace(b"\n", b" ") + b"\n\n")
        return await self.write(b"")


class Gateway:
    """Answers requests using the config and states of ``keeper``; ``session`` is for requests to engines."""

    def __init__(self, keeper: Keeper, session: aiohttp.ClientSession) -> None:
        self._keeper, self._session, self._metrics = keeper, session, Metrics(keeper)
        self._exchanges: dict[asyncio.Task[Any], _Exchange] = {}

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Listen at this address; OSError if that fails."""
        server = web.Server(self._handle, access_log=None, auto_decompress=False)
        return await asyncio.get_running_loop().create_server(server, host, port, backlog=1024)

    async def watch(self) -> None:
        """End the requests of clients that disconnected or do not read.

        A handler only notices a lost client when it writes; its engine might compute for minutes before that.
        """
        unread_since = time.monotonic() - UNREAD_S
        for task, exchange in self._exchanges.items():
            transport = exchange.request.transport
            if transport is None or transport.is_closing():
                task.cancel()
            elif exchange.writing_since is not None and exchange.writing_since < unread_since:
                transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = _Exchange(request)
        task: Any = asyncio.current_task()
        self._exchanges[task] = exchange
        try:
            response = await self._answer(exchange)
            code = response.status
        except Unavailable as refused:
            code = refused.status
            response = await self._refuse(exchange, refused)
        except ConnectionError:  # client disconnected; raising would log an error
            return exchange.response or web.Response()
        finally:
            del self._exchanges[task]
        self._metrics.requests.labels(exchange.model, code).inc()
        return response

    async def _answer(self, exchange: _Exchange) -> web.StreamResponse:
        request = exchange.request
        asked = f"{request.method} {request.path}"
        if asked == "GET /health":
            return web.json_response({"status": "ok"})
        if asked not in {"GET /metrics", "GET /v1/models"} and not (request.method == "POST" and request.path in PATHS):
            raise Unavailable("not found: the gateway has model APIs, /v1/models, /health and /metrics", status=404)
        exchange.may = self._may(request)
        if asked == "GET /metrics":
            if exchange.may is not None:
                raise Unavailable("/metrics needs a key for all models", status=403)
            return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})
        if asked == "GET /v1/models":
            return web.json_response({"object": "list", "data": list(self._listed(self._allowed(exchange.may)))})
        body = Body()
        try:
            await body.find_model(request)
            model = self._model(body, self._allowed(exchange.may))
            exchange.model = model.name
            ticket = Request(model.name, STREAM_WAIT_S if body.stream else WAIT_S)
            self._keeper.enter(ticket)
            try:
                return await self._relay(exchange, ticket, body)
            finally:
                self._keeper.leave(ticket)
        finally:
            body.release()

    def _may(self, request: web.BaseRequest) -> Sequence[str] | None:
        """The models that the request's key may use, None for all; without keys everyone may use all."""
        keys = self._keeper.config.keys
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            secret = request.headers.get("x-api-key", "")
        digest = hashlib.sha256(secret.strip().encode(errors="replace")).hexdigest()
        if keys and digest not in keys:
            raise Unavailable("the API key is missing or wrong: send Authorization: Bearer KEY", status=401)
        return keys.get(digest)

    def _allowed(self, may: Sequence[str] | None) -> list[Model]:
        return [model for model in self._keeper.config.models if may is None or model.name in may]

    def _is_ready(self, model: Model) -> bool:
        return self._keeper.seen[model.name].state == "ready"

    def _model(self, body: Body, allowed: list[Model]) -> Model:
        chat = [model for model in allowed if model.kind == "chat"]
        if body.model == AUTO and chat and body.is_json:
            ready = filter(self._is_ready, chat)
            found = max(ready, key=lambda model: sum(size or 0 for size in model.sizes.values()), default=chat[0])
            body.rename(found.served[0])
            return found
        for model in allowed:
            if body.model in model.served:
                return model
        raise Unavailable("missing or unknown model: GET /v1/models lists the models of this key", status=404)

    async def _relay(self, exchange: _Exchange, ticket: Request, body: Body) -> web.StreamResponse:
        while not await ticket.ready(COMMENT_S):
            if body.stream and exchange.response is None:
                await exchange.start(200, {"Content-Type": _EVENTS, "Cache-Control": "no-cache"})
            if body.stream:
                await exchange.write(f": loading {self._keeper.progress(ticket.model)}\n\n".encode())
        answer = await self._ask(exchange.request, ticket, body)
        body.release()
        try:
            self._metrics.first_byte.labels(ticket.model).observe(time.monotonic() - exchange.began)
            if exchange.response is None:
                await exchange.start(answer.status, _only(answer.headers, _RETURNED))
            elif answer.status != 200:
                return await exchange.write_error(await answer.read())
            async for chunk in answer.content.iter_any():
                await exchange.write(chunk)
        except ConnectionError:  # client disconnected
            raise
        except aiohttp.ClientError:
            raise _broke(ticket) from None
        finally:
            answer.close()
        return await exchange.write(b"")

    async def _ask(self, request: web.BaseRequest, ticket: Request, body: Body) -> aiohttp.ClientResponse:
        """The beginning of an engine's answer; tries another engine if one cannot be reached or is full."""
        headers, engine_key = _only(request.headers, _SENT), self._keeper.config.engine_key
        headers["Content-Length"] = str(len(body.read))
        if engine_key:
            headers["Authorization"] = f"Bearer {engine_key}"
        tried: set[str] = set()
        while url := self._keeper.backend(ticket, tried):
            tried.add(url)
            target = URL(url + request.path).with_query(request.query)
            try:
                answer = await self._session.post(target, data=body.whole(), headers=headers, allow_redirects=False)
            except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError):
                continue
            except (aiohttp.ClientError, OSError):
                raise _broke(ticket) from None
            if answer.status not in {401, 403, 503}:
                return answer
            answer.close()
            if answer.status != 503:
                raise Unavailable(f"{ticket.model} was started with another api.key: its operator must restart it")
        raise Unavailable(f"{ticket.model} is not available: its engine accepts no requests at the moment", 5)

    def _listed(self, models: list[Model]) -> Iterator[dict[str, Any]]:
        common = {"object": "model", "created": 0, "owned_by": "sparkcluster"}
        for model in models:
            more = {"max_model_len": model.context, "state": self._keeper.seen[model.name].state}
            for name in model.served:
                yield {"id": name, **common, **more}
        if any(model.kind == "chat" for model in models):
            yield {"id": AUTO, **common}

    async def _refuse(self, exchange: _Exchange, refused: Unavailable) -> web.StreamResponse:
        """``refused`` as an answer in Anthropic's or OpenAI's format; as an event if the stream has begun."""
        status, text, headers = refused.status, refused.text, {}
        if status == 503:
            ready = [model.served[0] for model in self._allowed(exchange.may) if self._is_ready(model)]
            text += f"; loaded: {', '.join(ready) or 'none'}"
            headers["Retry-After"] = str(refused.retry_after_s)
        error = {"message": text, "type": _TYPES.get(status, "invalid_request_error")}
        document = {"type": "error", "error": error} if exchange.anthropic else {"error": {**error, "code": status}}
        if exchange.response is None:
            answer = web.json_response(document, status=status, headers=headers)
            answer.force_close()  # its body may be unread and endless
            return answer
        if exchange.response.content_type == _EVENTS:
            return await exchange.write_error(json.dumps(document).encode())
        if exchange.request.transport is not None:
            exchange.request.transport.abort()  # a clean end would look like a complete answer
        return exchange.response


def _broke(ticket: Request) -> Unavailable:
    return Unavailable(f"the connection to the engine of {ticket.model} was lost", 5)


def _only(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}
