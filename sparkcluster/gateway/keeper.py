"""The loops that keep the states of all models true: they ask the door what runs, say what is wanted, and poll engines.

Handlers only ask it: they enter, wait, and leave. All of it runs in one thread, and what ``schedule.States`` does to a
request it does in one step; so no request meets a model that has ended since the handler looked (llama-swap#946).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from sparkcluster.gateway.config import Config, Model
from sparkcluster.gateway.schedule import States

DOOR_S, POLL_S = 1.0, 5.0
"""How often the door is asked what runs, and each engine for its models."""
ANSWER_S, MODELS_S = 20.0, 2.0
"""The longest that the door takes, which asks other nodes, and an engine."""
_log = logging.getLogger("gateway")


class Keeper(States):
    """Knows what every model does, and has models loaded and unloaded."""

    def __init__(self, config: Config, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config, now)
        self._door: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def start(self) -> None:
        """Begin, with what runs already known where that is answered."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=MODELS_S))
        await asyncio.gather(self.look(), self.turn())
        self._tasks = [asyncio.create_task(_repeat(*each)) for each in ((self.look, POLL_S), (self.turn, DOOR_S))]

    async def close(self) -> None:
        """End; what is loaded stays loaded."""
        for task in self._tasks:
            task.cancel()
        self._hang_up()
        await self._session.close()

    async def turn(self) -> None:
        """Ask the door what runs, and tell it what has to."""
        if self.config.door is None:
            return
        try:
            await asyncio.wait_for(self._talk(self.config.door), ANSWER_S)
        except (OSError, EOFError, ValueError, KeyError, asyncio.TimeoutError) as error:
            self._hang_up()
            self.step({}, f"the gateway's guard does not answer: {str(error) or 'time-out'}")

    async def look(self) -> None:
        """Ask the engines of what is always on, and of what is loaded, which models they serve."""
        asked = [model for model in self.models.values() if model.idle_s is None or self.seen[model.name].is_up()]
        await asyncio.gather(*(self._ask_engine(model, url) for model in asked for url in model.backends))

    async def _ask_engine(self, model: Model, url: str) -> None:
        headers = {"Authorization": f"Bearer {self.config.engine_key}"} if self.config.engine_key else {}
        try:
            async with self._session.get(f"{url}/v1/models", headers=headers, allow_redirects=False) as response:
                response.raise_for_status()
                lengths = {each["id"]: each.get("max_model_len") for each in (await response.json())["data"]}
            why, length = None, lengths[model.served[0]]
        except KeyError:
            why, length = "it serves another model", None
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, TypeError) as error:
            why, length = str(error) or "no answer within 2 s", None
        self.polled(model.name, url, why, length)

    async def _talk(self, path: str) -> None:
        for name, run in self.step((await self._ask(path, {"do": "states"}))["states"]).items():
            answer = await self._ask(path, {"do": "want", "model": name, "run": run})
            if run and "failed" in answer and name in self.seen:
                self.fail(name, answer["failed"])

    async def _ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        if self._door is None:
            self._door = await asyncio.open_unix_connection(os.path.relpath(path))  # noqa: ASYNC240 it asks no disk
        reader, writer = self._door
        writer.write(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
        return answer

    def _hang_up(self) -> None:
        """An answer that comes late would be taken for that to the next question."""
        if self._door is not None:
            self._door[1].close()
            self._door = None


async def _repeat(action: Callable[[], Awaitable[None]], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await action()
        except Exception:  # noqa: BLE001 it is logged, and the next turn may work
            _log.exception("the gateway goes on")
