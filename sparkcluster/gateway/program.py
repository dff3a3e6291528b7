"""``python3 gateway.py CONFIG RUN``: runs until it is killed; applies changes of CONFIG without dropping a stream.

RUN is the directory of its sockets and the door's. ``status``, ``load`` and ``unload`` use the control socket: HTTP on
a Unix socket that only its owner can open.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from aiohttp import web

from sparkcluster.gateway.config import read
from sparkcluster.gateway.keeper import DOOR_S, POLL_S, Keeper, repeat
from sparkcluster.gateway.schedule import Unavailable
from sparkcluster.gateway.serve import WATCH_S, Gateway, session

FILE_S = 1.0
"""How often it reads its file, and retries listening."""


def main(argv: list[str]) -> None:
    """Run with the file ``argv[1]`` until a signal ends it."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(Program(Path(argv[1]).absolute()).run(argv[2]))


class Program:
    """The gateway, configured by the file ``path``."""

    def __init__(self, path: Path) -> None:
        self._path, self._config = path, read(path.read_text())
        self._trouble: str | None = "it is starting"  # why it does not listen for clients

    async def run(self, directory: str) -> None:
        """Serve until a signal ends the process: streams end with it, and loaded models stay loaded."""
        os.chdir(directory)
        async with session() as engines:
            self._keeper = keeper = Keeper(self._config, engines)
            self._gateway = Gateway(keeper, engines)
            os.umask(0o177)
            control = web.Server(self._control, access_log=None)
            await asyncio.get_running_loop().create_unix_server(control, "control.sock")
            await asyncio.gather(
                repeat(keeper.look, POLL_S),
                repeat(keeper.turn, DOOR_S),
                repeat(self._gateway.watch, WATCH_S),
                repeat(self._look, FILE_S),
            )

    async def _look(self) -> None:
        if self._trouble is not None:
            try:
                await self._gateway.listen(self._config.listen, self._config.port)
                self._trouble = None
            except OSError as error:  # at boot the address may appear later
                self._trouble = str(error)
        self._keeper.reload(read(self._path.read_text()))

    async def _control(self, request: web.BaseRequest) -> web.Response:
        acts = {"load": self._keeper.load, "unload": self._keeper.unload}
        act, _, name = request.path[1:].partition("/")
        try:
            if act in acts:
                return web.json_response({"text": acts[act](name)})
        except Unavailable as refused:
            return web.json_response({"error": refused.text})
        return web.json_response({"trouble": self._trouble, "models": self._keeper.view()})
