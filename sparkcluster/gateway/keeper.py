"""The loop that owns the state of all models: it asks the door what runs, says what is wanted, and polls the engines.

Handlers only ask it: they enter, wait, and leave. All of it runs in one thread, and what ``schedule.States`` does to a
request it does in one step; so no request meets a model that has ended since the handler looked (llama-swap#946).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from sparkcluster.gateway.config import Backend, Config
from sparkcluster.gateway.schedule import Request, States, Unavailable

__all__ = ["Keeper", "Ticket", "Unavailable"]

DOOR_S, POLL_S = 1.0, 5.0
"""How often the door is asked what runs, and each engine for its models."""
ANSWER_S, MODELS_S = 20.0, 2.0
"""The longest that the door takes, which asks other nodes, and an engine."""
_log = logging.getLogger("gateway")


class Ticket(Request):
    """A request for a model, from ``Keeper.enter`` until it leaves."""

    def __init__(self, model: str, keeper: Keeper) -> None:
        super().__init__(model)
        self._keeper, self._ended = keeper, asyncio.Event()

    def end(self, refused: Unavailable | None = None) -> None:
        """End the wait."""
        super().end(refused)
        self._ended.set()

    async def ready(self, limit_s: float) -> bool:
        """True once it may go on; False if it has to wait longer than ``limit_s``.

        Raises:
            Unavailable: it waits in vain.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), limit_s)
        if self.refused is not None:
            raise self.refused
        return self.admitted

    @property
    def progress(self) -> str:
        """Such as "42 %", of what the last start took; empty if the model does not start, or that is unknown."""
        return self._keeper.states.progress(self.model, self._keeper.now())

    def backend(self, tried: set[str]) -> Backend | None:
        """The engine to send it to, none of the URLs ``tried``; None if there is no other."""
        return self._keeper.states.backend(self, tried)

    def leave(self) -> None:
        """Say that it has ended, answered or not."""
        self._keeper.leave(self)


class Keeper:
    """Knows what every model does, and has models loaded and unloaded; ``now`` is its clock."""

    def __init__(self, config: Config, now: Callable[[], float] = time.monotonic) -> None:
        self.config, self.now = config, now
        self.states = States(config, now())
        self._wake = asyncio.Event()
        self._door: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Begin, with what runs already known where that is answered."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=MODELS_S))
        await asyncio.gather(self.look(), self.turn())
        loops = self._repeat(self.look, POLL_S, asyncio.Event()), self._repeat(self.turn, DOOR_S, self._wake)
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def close(self) -> None:
        """End; what is loaded stays loaded."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()
        await self._session.close()

    def reload(self, config: Config) -> None:
        """Take in another ``config``, without dropping a request whose model is still in it."""
        self.config = config
        self.states.reload(config, self.now())
        self._wake.set()

    def enter(self, name: str) -> Ticket:
        """A ticket for a request for the model ``name``, which has to leave at its end.

        Raises:
            Unavailable: it would wait in vain, or too many wait.
        """
        ticket = Ticket(name, self)
        self.states.enter(ticket, self.now())
        if not ticket.admitted:
            self._wake.set()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Forget ``ticket``."""
        self.states.leave(ticket, self.now())
        if ticket.seen.state == "draining":
            self._wake.set()

    def load(self, name: str) -> str:
        """Have the model ``name`` loaded; what happens now.

        Raises:
            Unavailable: it is not on demand, or cannot be loaded.
        """
        self._wake.set()
        return self.states.load(name, self.now())

    def unload(self, name: str) -> str:
        """Have the model ``name`` unloaded once its requests have ended; what happens now.

        Raises:
            Unavailable: it is not on demand.
        """
        self._wake.set()
        return self.states.unload(name, self.now())

    def view(self) -> dict[str, dict[str, Any]]:
        """What is known of each model, for people and metrics; times are seconds from then to now."""
        now, found = self.now(), {}
        for name, model in self.states.models.items():
            seen = self.states.seen[name]
            view = {key: getattr(seen, key) for key in ("state", "why", "in_flight", "loads")}
            view |= {"context": seen.context or model.context, "since_s": now - seen.since}
            view |= {"waiting": len(seen.waiting), "progress": self.states.progress(name, now)}
            view["last_used_s"] = None if seen.last_used is None else now - seen.last_used
            if model.idle_s is not None and seen.state == "ready":
                view["idle_s_left"] = max(0.0, model.idle_s - (now - seen.used(now)))
            found[name] = view
        return found

    async def turn(self) -> None:
        """Ask the door what runs, and tell it what has to."""
        if self.config.door is None:
            return
        try:
            await asyncio.wait_for(self._talk(self.config.door), ANSWER_S)
        except (OSError, EOFError, ValueError, KeyError, asyncio.TimeoutError) as error:
            self._hang_up()
            self.states.step(self.now(), {}, f"the gateway's guard does not answer: {str(error) or 'time-out'}")

    async def look(self) -> None:
        """Ask the engines of what is always on, and of what is loaded, which models they serve."""
        states = self.states
        names = [name for name, model in states.models.items() if model.idle_s is None or states.seen[name].is_up()]
        await asyncio.gather(*map(self._look_at, names))

    async def _look_at(self, name: str) -> None:
        model = self.states.models[name]
        found = await asyncio.gather(*(self._ask_engine(each.url, model.served) for each in model.backends))
        answers = {each.url: why for each, (why, _) in zip(model.backends, found, strict=True)}
        if name in self.states.models:
            self.states.polled(name, self.now(), answers, max((length or 0 for _, length in found), default=0))

    async def _ask_engine(self, url: str, served: tuple[str, ...]) -> tuple[str | None, int | None]:
        """Why an engine does not serve ``served``, None if it does; and its context length."""
        headers = {"Authorization": f"Bearer {self.config.engine_key}"} if self.config.engine_key else {}
        try:
            async with self._session.get(f"{url}/v1/models", headers=headers, allow_redirects=False) as response:
                response.raise_for_status()
                lengths = {each["id"]: each.get("max_model_len") for each in (await response.json())["data"]}
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError, TypeError) as error:
            return str(error) or "no answer within 2 s", None
        mine = [lengths[name] for name in served if name in lengths]
        return (None, mine[0]) if mine else ("it serves another model", None)

    async def _talk(self, path: str) -> None:
        wants = self.states.step(self.now(), (await self._ask(path, {"do": "states"}))["states"])
        for name, run in wants.items():
            answer = await self._ask(path, {"do": "want", "model": name, "run": run})
            if run and "failed" in answer and name in self.states.seen:
                self.states.fail(name, self.now(), answer["failed"])

    async def _ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        if self._door is None:
            # A socket's own path has 107 bytes at most (unix(7)).
            directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._door = await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{Path(path).name}")
            finally:
                os.close(directory)
        reader, writer = self._door
        writer.write(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
        return answer

    def _hang_up(self) -> None:
        """An answer that comes late would be taken for that to the next question."""
        if self._door is not None:
            self._door[1].close()
            self._door = None

    async def _repeat(self, action: Callable[[], Any], every_s: float, wake: asyncio.Event) -> None:
        while not self._closed:  # before Python 3.12 wait_for may swallow a cancellation (cpython#86296)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), every_s)
            wake.clear()
            try:
                await action()
            except Exception:  # noqa: BLE001 it is logged, and the next turn may work
                _log.exception("the gateway goes on")
