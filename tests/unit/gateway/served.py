"""A gateway on loopback, in front of engines that are aiohttp handlers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from unittest import mock

import aiohttp
from aiohttp import web
from aiohttp.log import server_logger

from sparkcluster.gateway import body, serve
from sparkcluster.gateway.config import read
from sparkcluster.gateway.keeper import Keeper, repeat
from sparkcluster.gateway.serve import Gateway, session

Engine = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
CHAT = "/v1/chat/completions"
REFUSING = "http://127.0.0.1:9"  # discard, RFC 863: nothing listens there


def run(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapped() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    wrapped.__name__ = test.__name__
    wrapped.__doc__ = test.__doc__
    return wrapped


def model(name: str, *urls: str, kind: str = "chat", size: int = 1, idle_s: float | None = None) -> dict[str, Any]:
    names = {"name": name, "served": [name, f"{name}-alias"], "kind": kind, "context": 4096}
    return {**names, "sizes": {"a": size}, "idle_s": idle_s, "start_s": 100.0, "backends": urls}


def key(secret: str, models: list[str] | None = None) -> dict[str, list[str] | None]:
    return {hashlib.sha256(secret.encode()).hexdigest(): models}


def document(models: Sequence[dict[str, Any]], keys: dict[str, list[str] | None], **more: Any) -> str:
    where = {"listen": "127.0.0.1", "port": 0, "room": 9}
    return json.dumps({**where, "engine_key": None, "models": models, "keys": keys, **more})


@contextlib.asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[str]:
    """The URL of an engine."""
    runner = web.ServerRunner(web.Server(engine, logger=logging.getLogger("engine")))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Served:
    """A gateway whose keeper gets states of models on demand from ``report``; all others are ready."""

    def __init__(self, url: str, client: aiohttp.ClientSession, keeper: Keeper) -> None:
        self.url, self.client, self.keeper = url, client, keeper
        self.address = url.removeprefix("http://").rsplit(":", 1)

    def post(self, path: str = CHAT, **options: Any) -> Any:
        return self.client.post(self.url + path, **options)

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(self.url + path, **options)

    def connect(self) -> Any:
        return asyncio.open_connection(self.address[0], int(self.address[1]))

    def report(self, **states: str) -> None:
        self.keeper.step({name: {"state": state, "why": "because"} for name, state in states.items()})


@contextlib.asynccontextmanager
async def gateway(
    *models: dict[str, Any],
    keys: dict[str, list[str] | None] | None = None,
    engine_key: str | None = None,
    **limits: float,
) -> AsyncIterator[Served]:
    with contextlib.ExitStack() as patches, mock.patch.object(server_logger, "exception") as logged:
        for name, value in limits.items():
            patches.enter_context(mock.patch.object(serve if hasattr(serve, name) else body, name, value))
        async with session() as engines, aiohttp.ClientSession() as client:
            keeper = Keeper(read(document(models, keys or {}, engine_key=engine_key)), engines)
            for each in keeper.config.models:
                keeper.seen[each.name].state = "ready" if each.idle_s is None else "stopped"
            it = Gateway(keeper, engines)
            listening = await it.listen("127.0.0.1", 0)
            watching = asyncio.create_task(repeat(it.watch, 0.02))
            try:
                yield Served(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", client, keeper)
            finally:
                await client.close()
                listening.close()
                while it._exchanges:
                    await asyncio.sleep(0.01)
                watching.cancel()
    assert not any(seen.in_flight or seen.waiting for seen in keeper.seen.values()), "a request has not left"
    assert not logged.called, "an error of a client or engine is logged as an error of the gateway"
