"""The requests of clients: who may ask what, which engine answers, and its answer, passed on as bytes."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.connector import Connection
from multidict import CIMultiDict
from yarl import URL

from sparkcluster.gateway.body import Body
from sparkcluster.gateway.config import Config, Key, Model
from sparkcluster.gateway.keeper import Keeper, Ticket, Unavailable
from sparkcluster.gateway.metrics import Metrics

# Of an engine's paths, these; the others stop it, load adapters, or tell of other clients.
PATHS = frozenset(
    "/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens /v1/embeddings"  # noqa: SIM905
    " /v1/rerank /rerank /v2/rerank /v1/score /score /pooling /classify /tokenize /detokenize"
    " /v1/audio/transcriptions /v1/audio/translations".split()
)
AUTO = "auto"

# Of one connection, not of what it carries (RFC 9110, 7.6.1), and what is set anew.
_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"  # noqa: SIM905
    " upgrade".split()
)
# Credentials, and who asks.
_NOT_SENT = _HOP | frozenset(
    "authorization x-api-key api-key cookie expect forwarded host x-forwarded-for x-forwarded-host"  # noqa: SIM905
    " x-forwarded-proto x-real-ip content-length".split()
)
_NOT_RETURNED = _HOP | {"server", "date", "set-cookie"}
_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}
_NO_MODEL = "no such model: GET /v1/models lists those that this key may use"
_SERVER: dict[str, Any] = {"auto_decompress": False, "max_line_size": 1 << 16, "max_field_size": 1 << 16}
# Without a timeout of the answer, the end of a connection to a node that has lost power: 10 + 4 x 5 s.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4, socket.TCP_USER_TIMEOUT: 30_000}
_EVENTS = "text/event-stream"
_log = logging.getLogger("gateway")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of a request: its size, the seconds that it has to arrive, and those that it waits for its model.

    ``comment_s``: between two comments meanwhile. ``unread_s``: until its client has read what was sent. ``look_s``:
    until a client that has gone is noticed. The clients of OpenAI and Anthropic give up after 600 s.
    """

    body_bytes: int = 64 << 20
    body_s: float = 60
    wait_s: float = 540
    comment_s: float = 5
    unread_s: float = 300
    look_s: float = 0.2


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


class _Exchange:
    """A request, and what became of it so far; ``writing_since`` is a time while the client is written to."""

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.anthropic = request.path.startswith("/v1/messages")
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.key: Key | None = None
        self.model = ""
        self.response: web.StreamResponse | None = None
        self.writing_since: float | None = None

    async def start(self, status: int, headers: CIMultiDict[str]) -> None:
        self.response = web.StreamResponse(status=status, headers=headers)
        await self.response.prepare(self.request)

    async def write(self, chunk: bytes, *, last: bool = False) -> web.StreamResponse:
        assert self.response is not None  # noqa: S101
        self.writing_since = self.loop.time()
        await (self.response.write_eof(chunk) if last else self.response.write(chunk))
        self.writing_since = None
        return self.response

    async def write_error(self, data: bytes) -> web.StreamResponse:
        """The last event of a stream: what went wrong, as JSON."""
        event = b"event: error\n" if self.anthropic else b""
        return await self.write(b"\n\n" + event + b"data: " + data.replace(b"\n", b" ") + b"\n\n", last=True)


class Gateway:
    """Answers requests; ``config`` may be replaced while it does."""

    def __init__(self, config: Config, keeper: Keeper, limits: Limits = Limits()) -> None:
        self.config = config
        self.keeper = keeper
        self.metrics = Metrics(keeper.view)
        self._limits = limits
        self._exchanges: dict[asyncio.Task[Any], _Exchange] = {}
        self._began = int(time.time())

    async def start(self) -> web.Server:
        """Get ready to answer; what this returns is for ``loop.create_server``."""
        self._session = aiohttp.ClientSession(
            # An engine closes idle connections: a request on one that it is about to close would fail.
            connector=_Connector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )
        self._watch = asyncio.ensure_future(self._watch_clients())
        return web.Server(self._handle, access_log=None, **_SERVER)

    async def close(self) -> None:
        """End what ``start`` began."""
        self._watch.cancel()
        await self._session.close()

    async def _watch_clients(self) -> None:
        """A handler learns that its client has gone when it writes; its engine may compute for minutes before."""
        while True:
            await asyncio.sleep(self._limits.look_s)
            unread_since = asyncio.get_running_loop().time() - self._limits.unread_s
            for task, exchange in list(self._exchanges.items()):
                transport = exchange.request.transport
                if transport is None or transport.is_closing():
                    task.cancel()
                elif exchange.writing_since is not None and exchange.writing_since < unread_since:
                    transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange, code = _Exchange(request), 499  # nginx's, for a client that left
        task: Any = asyncio.current_task()
        self._exchanges[task] = exchange
        try:
            try:
                response = await self._answer(exchange)
                code = response.status
            except Unavailable as refused:
                code = refused.status
                response = await self._refuse(exchange, refused)
            except ConnectionError:  # of the client, which has gone
                raise
            except Exception:  # noqa: BLE001 it is logged
                _log.exception("%s", request.path)
                code = 500
                response = await self._refuse(exchange, Unavailable("the gateway failed; its log says why", status=500))
        finally:
            del self._exchanges[task]
            self.metrics.requests.labels(exchange.model, code).inc()
        return response

    async def _answer(self, exchange: _Exchange) -> web.StreamResponse:
        request = exchange.request
        method, path = request.method, request.path
        if (method, path) == ("GET", "/health"):
            return web.json_response({"status": "ok"})
        lists = path == "/metrics" or f"{path}/".startswith("/v1/models/")
        if not (lists if method == "GET" else method == "POST" and path in PATHS):
            raise Unavailable("the gateway serves no such path", status=404)
        exchange.key = self._key(request)
        if lists:
            return self._tell(path, exchange.key)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # curl waits for it where a body is large
        body = Body(request, self._limits.body_bytes, self._limits.body_s)
        try:
            await body.find_model()
            model = self._model(body, exchange.key)
            exchange.model = model.name
            ticket = self.keeper.enter(model.name)
            try:
                return await self._relay(exchange, model, ticket, body)
            finally:
                ticket.leave()
        finally:
            body.release()

    def _key(self, request: web.BaseRequest) -> Key | None:
        """The key of a request, None if none is needed."""
        if not self.config.keys:
            return None
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            secret = request.headers.get("x-api-key", "")
        digest = hashlib.sha256(secret.strip().encode(errors="replace")).hexdigest()
        for key in self.config.keys:
            if key.sha256 == digest:
                return key
        raise Unavailable("the API key is missing or wrong: send Authorization: Bearer KEY", status=401)

    def _allowed(self, key: Key | None) -> list[Model]:
        return [model for model in self.config.models if key is None or key.allows(model.name)]

    def _is_ready(self, model: Model) -> bool:
        return bool(self.keeper.view()[model.name]["state"] == "ready")

    def _model(self, body: Body, key: Key | None) -> Model:
        allowed = self._allowed(key)
        chat = [model for model in allowed if model.kind == "chat"]
        if body.model == AUTO and chat and body.whole:
            ready = filter(self._is_ready, chat)
            found = max(ready, key=lambda model: sum(size or 0 for size in model.sizes.values()), default=chat[0])
            body.rename(found.served[0])
            return found
        for model in allowed:
            if body.model in model.served:
                return model
        raise Unavailable(_NO_MODEL, status=404)

    async def _relay(self, exchange: _Exchange, model: Model, ticket: Ticket, body: Body) -> web.StreamResponse:
        if body.stream and not await ticket.ready(0.05):
            await exchange.start(200, CIMultiDict({"Content-Type": _EVENTS, "Cache-Control": "no-cache"}))
            await exchange.write(f": loading {ticket.progress}\n\n".encode())
            while not await ticket.ready(self._limits.comment_s):
                await exchange.write(f": loading {ticket.progress}\n\n".encode())
        elif not body.stream and not await ticket.ready(self._limits.wait_s):
            raise Unavailable(f"{model.name} is not loaded after {self._limits.wait_s:g} s", 30)
        answer = await self._ask(exchange, model, ticket, body)
        body.release()
        try:
            self.metrics.first_byte.labels(model.name).observe(exchange.loop.time() - exchange.began)
            if exchange.response is None:
                dropped = _NOT_RETURNED | _named(answer.headers)
                kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in dropped]
                await exchange.start(answer.status, CIMultiDict(kept))
            elif answer.status != 200:
                return await exchange.write_error(await answer.read())
            async for chunk in answer.content.iter_any():
                await exchange.write(chunk)
        except ConnectionError:  # of the client, which has gone
            raise
        except aiohttp.ClientError:
            raise Unavailable(f"the connection to the engine of {model.name} broke", 5) from None
        finally:
            answer.close()
        return await exchange.write(b"", last=True)

    async def _ask(self, exchange: _Exchange, model: Model, ticket: Ticket, body: Body) -> aiohttp.ClientResponse:
        """The beginning of an engine's answer; another engine is asked where one is not reached or has no room."""
        request = exchange.request
        dropped = _NOT_SENT | _named(request.headers)
        headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in dropped)
        if body.whole:
            headers["Content-Length"] = str(body.size)
        if self.config.engine_key:
            headers["Authorization"] = f"Bearer {self.config.engine_key}"
        tried: set[str] = set()
        while body.repeatable and (backend := ticket.backend(tried)) is not None:
            tried.add(backend.url)
            url = URL(backend.url + request.path).with_query(request.query)
            try:
                answer = await self._session.post(url, data=body.chunks(), headers=headers, allow_redirects=False)
            except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError):
                continue
            except (aiohttp.ClientError, OSError, Unavailable):
                raise body.failed or Unavailable(f"the connection to the engine of {model.name} broke", 5) from None
            if answer.status not in (401, 403, 503):
                return answer
            answer.close()
            if answer.status != 503:
                raise Unavailable(f"{model.name} was started with another api.key: its operator has to restart it")
        raise Unavailable(f"no engine of {model.name} takes the request now", 5)

    def _tell(self, path: str, key: Key | None) -> web.Response:
        if path == "/metrics":
            if key and key.models is not None:
                raise Unavailable("this key is limited to some models, and /metrics tells of all", status=403)
            return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})
        listed = list(self._listed(self._allowed(key)))
        if path == "/v1/models":
            return web.json_response({"object": "list", "data": listed})
        for entry in listed:
            if entry["id"] == path[len("/v1/models/") :]:
                return web.json_response(entry)
        raise Unavailable(_NO_MODEL, status=404)

    def _listed(self, models: list[Model]) -> Iterator[dict[str, Any]]:
        view = self.keeper.view()
        common = {"object": "model", "created": self._began, "owned_by": "sparkcluster"}
        for model in models:
            state = view[model.name]
            more = {"max_model_len": state["context"] or model.context, "state": state["state"]}
            for name in model.served:
                yield {"id": name, **common, **more, "aliases": [each for each in model.served if each != name]}
        if any(model.kind == "chat" for model in models):
            yield {"id": AUTO, **common}

    async def _refuse(self, exchange: _Exchange, refused: Unavailable) -> web.StreamResponse:
        """``refused`` as the answer, in Anthropic's or OpenAI's form; as an event where a stream has begun."""
        status, text = refused.status, refused.text
        if status == 503:
            ready = [model.served[0] for model in self._allowed(exchange.key) if self._is_ready(model)]
            text += f"; loaded: {', '.join(ready) or 'none'}"
        error = {"message": text, "type": _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")}
        document = {"type": "error", "error": error} if exchange.anthropic else {"error": {**error, "code": status}}
        if exchange.response is None:
            headers = {"Retry-After": str(refused.retry_after_s)} if status == 503 else {}
            answer = web.json_response(document, status=status, headers=headers)
            if not exchange.request.content.at_eof():
                answer.force_close()
            return answer
        if exchange.response.content_type != _EVENTS:
            if exchange.request.transport is not None:
                exchange.request.transport.abort()  # an end without a break would look like a whole answer
            return exchange.response
        return await exchange.write_error(json.dumps(document).encode())


def _named(headers: Any) -> set[str]:
    """The headers that are of the connection alone, since ``Connection`` names them."""
    return {name.strip().lower() for name in ",".join(headers.getall("Connection", [])).split(",")}
