"""Loops that keep the states of all models current: they ask the door what runs, request changes, and poll engines.

Handlers only enter, wait and leave. Everything runs in one thread, and ``schedule.States`` changes a request in one
step, so no request meets a model that has ended since the handler checked (llama-swap#946).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from sparkcluster.gateway.config import Config, Model
from sparkcluster.gateway.schedule import States

DOOR = "door.sock"
"""In the working directory, since the path of a Unix socket has at most 107 bytes (unix(7))."""
DOOR_S, POLL_S = 1.0, 5.0
"""How often the door is asked what runs, and each engine which models it serves."""
ANSWER_S, MODELS_S = 20.0, 2.0
"""Time limits for the door, which asks other nodes, and for an engine."""
_log = logging.getLogger("gateway")


class Keeper(States):
    """Tracks the state of every model, and has models loaded and unloaded; ``session`` is used to ask engines."""

    def __init__(
        self, config: Config, session: aiohttp.ClientSession, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(config, now)
        self._session = session

    async def turn(self) -> None:
        """Ask the door what runs, and request changes."""
        try:
            await asyncio.wait_for(self._talk(), ANSWER_S)
        except (OSError, EOFError, ValueError, KeyError, asyncio.TimeoutError) as error:
            self.step({}, f"the gateway's guard does not answer: {str(error) or 'time-out'}")

    async def look(self) -> None:
        """Ask the engines of always-on and loaded models which models they serve."""
        asked = [model for model in self.models.values() if model.idle_s is None or self.seen[model.name].is_up()]
        await asyncio.gather(*(self._ask_engine(model, url) for model in asked for url in model.backends))

    async def _ask_engine(self, model: Model, url: str) -> None:
        headers = {"Authorization": f"Bearer {self.config.engine_key}"} if self.config.engine_key else {}
        options: Any = {"allow_redirects": False, "timeout": aiohttp.ClientTimeout(total=MODELS_S)}
        try:
            async with self._session.get(f"{url}/v1/models", headers=headers, **options) as response:
                response.raise_for_status()
                listed = (await response.json())["data"]
                names = [name for each in listed for name in (each["id"], *(each.get("aliases") or ()))]
            why = None if model.served[0] in names else "it serves another model"
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, TypeError, KeyError) as error:
            why = str(error) or "no answer within 2 s"
        self.polled(model.name, url, why)

    async def _talk(self) -> None:
        for name, run in self.step(await _ask_door({"do": "states"})).items():
            await _ask_door({"do": "want", "model": name, "run": run})


async def _ask_door(request: dict[str, Any]) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(DOOR)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
    finally:
        writer.close()
    return answer


async def repeat(action: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Call ``action`` now and every ``every_s`` seconds, until cancelled; errors are logged."""
    while True:
        try:
            await action()
        except Exception:  # noqa: BLE001 logged; the next call may work
            _log.exception("error ignored; the gateway keeps running")
        await asyncio.sleep(every_s)
