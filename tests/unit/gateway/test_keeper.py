"""The keeper with a real Unix socket to the guards and an engine that answers HTTP; the clock is passed in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sparkcluster.gateway.config import Config, Model
from sparkcluster.gateway.keeper import Keeper, repeat
from sparkcluster.gateway.schedule import Request, Unavailable
from sparkcluster.gateway.serve import session
from tests.unit.gateway.served import run, serving


class Door:
    """The guards' answers, and the requests they received."""

    def __init__(self, path: Path) -> None:
        self.path, self.state, self.told = path, "stopped", list[dict[str, Any]]()

    async def open(self) -> None:
        self.server = await asyncio.start_unix_server(self.answer, str(self.path))

    async def close(self) -> None:
        self.server.close()
        self.path.unlink(missing_ok=True)
        await asyncio.sleep(0.05)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            report = {"state": self.state, "why": None}
            if request["do"] == "want":
                self.told.append(request)
                self.state = "starting" if request["run"] else "stopped"
            writer.write(json.dumps({"chat": report}).encode() + b"\n")
        writer.close()


@dataclasses.dataclass
class Rig:
    door: Door
    keeper: Keeper
    url: str
    clock: list[float]
    keys: set[str | None]

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.keeper.view())

    def state(self, name: str = "chat") -> str:
        return self.keeper.seen[name].state

    def enter(self, name: str) -> Request:
        self.keeper.enter(found := Request(name))
        return found


@contextlib.asynccontextmanager
async def rig(path: Path) -> AsyncIterator[Rig]:
    keys = set()

    async def engine(request: web.BaseRequest) -> web.Response:
        keys.add(request.headers.get("Authorization"))
        return web.json_response({"data": [{"id": "base"}, {"id": "gpt"}]})

    door, clock = Door(path / "door.sock"), [1000.0]
    await door.open()
    async with serving(engine) as url, session() as engines:
        chat = Model("chat", ["gpt"], "chat", None, {"n1": 5}, 1200.0, 100.0, [url])
        other = Model("other", ["other"], "chat", None, {"n1": 5}, None, None, [url])
        base = Model("base", ["base"], "embeddings", 512, {"n1": 5}, None, None, [url])
        models = (base, other, chat)
        config = Config("", 1, {}, "secret", 20, models)
        keeper = Keeper(config, engines, lambda: clock[0])
        await asyncio.gather(keeper.look(), keeper.turn())
        tasks = [asyncio.create_task(repeat(*each)) for each in ((keeper.turn, 0.02), (keeper.look, 0.05))]
        try:
            yield Rig(door, keeper, url, clock, keys)
        finally:
            for task in tasks:
                task.cancel()
            await door.close()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_model_is_loaded_used_and_unloaded_when_idle(tmp_path: Path) -> None:
    """A request triggers a load, waits, and is sent to the engine; when idle, the model is unloaded."""

    @run
    async def story() -> None:
        async with rig(tmp_path) as it:
            ticket = it.enter("chat")
            await it.until(lambda: it.state() == "starting")
            it.clock[0] += 42
            assert not await ticket.ready(0.01)
            assert it.keeper.progress("chat") == "42 %"
            it.door.state = "ready"
            assert await ticket.ready(5)
            assert it.keeper.backend(ticket, ()) == it.url
            it.clock[0] += 5000
            assert it.keeper.view()["chat"] == {
                "state": "ready", "why": None, "waiting": 0, "in_flight": 1,
                "last_used_s": 5000.0, "progress": "",
            }  # fmt: skip
            it.keeper.leave(ticket)
            it.clock[0] += 1201
            await it.until(lambda: it.state() == "stopped")
            assert [each["run"] for each in it.door.told] == [True, False]

    story()


def test_always_on_engines(tmp_path: Path) -> None:
    """A serving one is ready; if another model answers, it is not. Both accept requests immediately."""

    @run
    async def story() -> None:
        async with rig(tmp_path) as it:
            assert (it.state("base"), it.state("other"), it.keys) == ("ready", "failed", {"Bearer secret"})
            assert it.keeper.view()["other"]["why"].endswith(": it serves another model")
            assert await it.enter("other").ready(0)

    story()


def test_running_models_keep_serving_while_the_guards_are_unreachable(tmp_path: Path) -> None:
    """Running models keep serving; others cannot be loaded, and waiting requests get an error after half a minute."""

    @run
    async def story() -> None:
        async with rig(tmp_path) as it:
            it.door.state = "ready"
            await it.until(lambda: it.state() == "ready")
            await it.door.close()
            for _ in range(12):
                it.clock[0] += 5
                await it.keeper.look()
            assert await it.enter("chat").ready(0)
            await it.door.open()
            it.door.state = "stopped"
            await it.until(lambda: it.state() == "stopped")
            await it.door.close()
            ticket = it.enter("chat")
            it.clock[0] += 29
            assert not await ticket.ready(0.1)
            it.clock[0] += 1
            with pytest.raises(Unavailable, match="chat cannot be loaded now"):
                await ticket.ready(5)
            await it.door.open()
            it.enter("chat")
            await it.until(lambda: it.state() == "starting")

    story()
