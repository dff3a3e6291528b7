"""A gateway on loopback, in front of engines that are aiohttp handlers, with a keeper that does what a test sets."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

from sparkcluster.gateway.config import Backend, Config, from_document
from sparkcluster.gateway.keeper import Unavailable
from sparkcluster.gateway.serve import Gateway, Limits

Engine = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
CHAT = "/v1/chat/completions"
REFUSING = "http://127.0.0.1:9"  # discard, RFC 863: nothing listens there


def run(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapped() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    wrapped.__name__ = test.__name__
    wrapped.__doc__ = test.__doc__
    return wrapped


class FakeKeeper:
    """``loading`` and ``failed`` name the models that are not ready."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.loading: set[str] = set()
        self.failed: set[str] = set()
        self.left = 0

    def view(self) -> dict[str, dict[str, Any]]:
        common = {"context": None, "waiting": 0, "in_flight": 0, "loads": 0}
        return {
            m.name: {"state": "stopped" if m.name in self.loading else "ready", **common} for m in self.config.models
        }

    def enter(self, name: str) -> FakeTicket:
        return FakeTicket(self, name)


class FakeTicket:
    progress = "42 %"

    def __init__(self, keeper: FakeKeeper, name: str) -> None:
        self.keeper, self.name = keeper, name

    async def ready(self, limit_s: float) -> bool:
        if self.name not in self.keeper.loading:
            return True
        for _ in range(max(1, int(limit_s / 0.05))):
            await asyncio.sleep(min(limit_s, 0.05))
            if self.name in self.keeper.failed or self.name not in self.keeper.loading:
                break
        if self.name in self.keeper.failed:
            raise Unavailable(f"{self.name} failed to load", 60)
        return self.name not in self.keeper.loading

    def backend(self, tried: set[str]) -> Backend | None:
        model = self.keeper.config.model(self.name)
        return next((backend for backend in model.backends if backend.url not in tried), None)

    def leave(self) -> None:
        self.keeper.left += 1


def model(name: str, *urls: str, kind: str = "chat", size: int = 1) -> dict[str, Any]:
    backends = [{"group": str(at), "url": url} for at, url in enumerate(urls)]
    more = {"context": 4096, "idle_s": None, "start_s": None}
    return {
        "name": name,
        "served": [name, f"{name}-alias"],
        "kind": kind,
        "sizes": {"a": size},
        "backends": backends,
        **more,
    }


def key(name: str, secret: str, models: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), "models": models}


def document(models: list[dict[str, Any]], keys: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    where = {"cluster": "pair", "node": "a", "listen": "127.0.0.1", "port": 0, "door": None, "control": "", "room": {}}
    return {"version": 1, **where, "engine_key": None, "models": models, "keys": keys, **more}


@contextlib.asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[str]:
    """The URL of an engine."""
    runner = web.ServerRunner(web.Server(engine))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Served:
    def __init__(self, url: str, client: aiohttp.ClientSession, keeper: FakeKeeper) -> None:
        self.url, self.client, self.keeper = url, client, keeper
        self.address = url.removeprefix("http://").rsplit(":", 1)

    def post(self, path: str = CHAT, **options: Any) -> Any:
        return self.client.post(self.url + path, **options)

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(self.url + path, **options)

    def connect(self) -> Any:
        return asyncio.open_connection(self.address[0], int(self.address[1]))


@contextlib.asynccontextmanager
async def gateway(
    *models: dict[str, Any],
    keys: list[dict[str, Any]] | None = None,
    engine_key: str | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Served]:
    config = from_document(document(list(models), keys or [], engine_key=engine_key))
    keeper = FakeKeeper(config)
    it = Gateway(config, keeper, limits or Limits(look_s=0.02))  # type: ignore[arg-type]
    server = await it.start()
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        try:
            yield Served(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", client, keeper)
        finally:
            await client.close()
            listening.close()
            await server.shutdown(1)
            await it.close()
