"""The keeper with a door on a real Unix socket and an engine that answers HTTP; the clock is passed in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sparkcluster.gateway import keeper as keeper_module
from sparkcluster.gateway.config import Backend, Config, Model
from sparkcluster.gateway.keeper import Keeper, Unavailable


class Door:
    """What the guards say, and what they are told."""

    def __init__(self, path: Path) -> None:
        self.path, self.state, self.told = path, "stopped", list[dict[str, Any]]()
        self.failed: str | None = None
        self.writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self.server = await asyncio.start_unix_server(self.answer, str(self.path))

    async def close(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()
        self.writers.clear()
        self.path.unlink(missing_ok=True)
        await asyncio.sleep(0.05)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while line := await reader.readline():
            request = json.loads(line)
            report = {"state": self.state, "why": None}
            answer: dict[str, Any] = {"states": {"chat": report}}
            if request["do"] == "want":
                self.told.append(request)
                self.state = "starting" if request["run"] and not self.failed else "stopped"
                answer = {"failed": self.failed} if self.failed else {"state": report}
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()


@dataclasses.dataclass
class Rig:
    door: Door
    keeper: Keeper
    config: Config
    clock: list[float]
    requests: list[str | None]

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.keeper.view())

    def state(self, name: str = "chat") -> str:
        return str(self.keeper.view()[name]["state"])


@contextlib.asynccontextmanager
async def rig(path: Path) -> AsyncIterator[Rig]:
    requests: list[str | None] = []

    async def models(request: web.Request) -> web.Response:
        requests.append(request.headers.get("Authorization"))
        return web.json_response({"data": [{"id": "base"}, {"id": "gpt", "max_model_len": 4096}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0])
    door = Door(path / "door.sock")
    await door.open()
    here = (Backend("default", url),)
    chat = Model("chat", ("gpt",), "chat", None, {"n1": 5}, 1200.0, 100.0, here)
    other = Model("other", ("other",), "chat", None, {"n1": 5}, None, None, here)
    base = Model("base", ("base",), "embeddings", 512, {"n1": 5}, None, None, here)
    config = Config("c", "n1", "", 1, (), "secret", str(door.path), "control", {"n1": 20}, (base, other, chat))
    clock = [1000.0]
    keeper = Keeper(config, lambda: clock[0])
    await keeper.start()
    try:
        yield Rig(door, keeper, config, clock, requests)
    finally:
        await keeper.close()
        await door.close()
        await runner.cleanup()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "DOOR_S", 0.02)
    monkeypatch.setattr(keeper_module, "POLL_S", 0.05)


def run(tmp_path: Path, story: Callable[[Rig], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with rig(tmp_path) as found:
            await story(found)

    asyncio.run(asyncio.wait_for(all_of_it(), 30))


def test_load_use_idle_unload(tmp_path: Path) -> None:
    """A request has its model loaded, waits, is sent to its engine; unused, the model is unloaded."""

    async def story(rig: Rig) -> None:
        ticket = rig.keeper.enter("chat")
        await rig.until(lambda: rig.state() == "starting")
        rig.clock[0] += 42
        assert not await ticket.ready(0.01)
        assert ticket.progress == "42 %"
        rig.door.state = "ready"
        assert await ticket.ready(5)
        assert ticket.backend(set()) == rig.config.models[2].backends[0]
        await rig.until(lambda: rig.keeper.view()["chat"]["context"] == 4096)
        rig.clock[0] += 5000
        assert rig.keeper.view()["chat"] == {
            "state": "ready", "why": None, "context": 4096, "since_s": 5000.0, "idle_s_left": 1200.0, "waiting": 0,
            "in_flight": 1, "last_used_s": 5000.0, "progress": "", "loads": 1,
        }  # fmt: skip
        ticket.leave()
        rig.clock[0] += 1201
        await rig.until(lambda: rig.state() == "stopped")
        assert [each["run"] for each in rig.door.told] == [True, False]

    run(tmp_path, story)


def test_engines_that_are_always_on(tmp_path: Path) -> None:
    """One that serves is ready; where another model answers, it is not. Both take requests at once."""

    async def story(rig: Rig) -> None:
        view = rig.keeper.view()
        assert (view["base"]["state"], view["base"]["context"]) == ("ready", 512)
        assert (view["other"]["state"], view["other"]["why"].endswith(": it serves another model")) == ("failed", True)
        assert await rig.keeper.enter("other").ready(0)
        assert set(rig.requests) == {"Bearer secret"}
        with pytest.raises(Unavailable, match="base is always on") as refused:
            rig.keeper.unload("base")
        assert refused.value.status == 409

    run(tmp_path, story)


def test_the_gateway_restarts_while_a_model_runs(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.door.state = "ready"
        again = Keeper(rig.config, lambda: rig.clock[0])
        await again.start()
        try:
            assert await again.enter("chat").ready(0)
        finally:
            await again.close()
        assert rig.door.told == []

    run(tmp_path, story)


def test_a_door_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """What runs serves on; what does not run cannot be loaded, which those who wait are told after half a minute."""

    async def story(rig: Rig) -> None:
        rig.door.state = "ready"
        await rig.until(lambda: rig.state() == "ready")
        await rig.door.close()
        rig.clock[0] += 60
        await asyncio.sleep(0.1)
        assert await rig.keeper.enter("chat").ready(0)
        await rig.door.open()
        rig.door.state = "stopped"
        await rig.until(lambda: rig.state() == "stopped")
        await rig.door.close()
        ticket = rig.keeper.enter("chat")
        rig.clock[0] += 29
        assert not await ticket.ready(0.1)
        rig.clock[0] += 1
        with pytest.raises(Unavailable, match="chat cannot be loaded: the gateway's guard does not answer"):
            await ticket.ready(5)
        await rig.door.open()
        ticket = rig.keeper.enter("chat")
        await rig.until(lambda: rig.state() == "starting")
        rig.door.state = "ready"
        assert await ticket.ready(5)

    run(tmp_path, story)


def test_a_load_that_the_guard_refuses(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.door.failed = "spark-2 does not answer"
        rig.keeper.load("chat")
        with pytest.raises(Unavailable, match="chat cannot be loaded: spark-2 does not answer"):
            await rig.keeper.enter("chat").ready(5)
        rig.door.failed = None
        await rig.until(lambda: rig.state() == "stopped")
        rig.keeper.load("chat")
        await rig.until(lambda: rig.state() == "starting")

    run(tmp_path, story)


def test_a_client_that_goes_away_while_it_waits(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        ticket = rig.keeper.enter("chat")
        waits = asyncio.create_task(ticket.ready(60))
        await asyncio.sleep(0.05)
        waits.cancel()
        ticket.leave()
        assert (rig.keeper.view()["chat"]["waiting"], rig.keeper.view()["chat"]["in_flight"]) == (0, 0)

    run(tmp_path, story)
