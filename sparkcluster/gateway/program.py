"""``python3 gateway.py CONFIG``: runs until it is ended, and takes in a new CONFIG without dropping a stream.

``status``, ``load`` and ``unload`` reach it over the control socket: HTTP on a Unix socket of its owner alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from aiohttp import web

from sparkcluster.gateway.config import read
from sparkcluster.gateway.keeper import Keeper
from sparkcluster.gateway.schedule import Unavailable
from sparkcluster.gateway.serve import Gateway

_LOOK_S = 1
_log = logging.getLogger("gateway")


def main(argv: list[str]) -> int:
    """Serve what the file ``argv[1]`` says until SIGTERM or SIGINT."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(Program(Path(argv[1]).absolute()).run())
    return 0


class Program:
    """The gateway, by the file ``path``; ``trouble`` is why it does not listen for clients."""

    def __init__(self, path: Path) -> None:
        self._path, self._changed_ns = path, path.stat().st_mtime_ns
        self._keeper = Keeper(read(path))
        self.trouble: str | None = "it is starting"

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; streams end with it."""
        ended, loop, config = asyncio.Event(), asyncio.get_running_loop(), self._keeper.config
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        os.chdir(Path(config.control).parent)  # a socket's path has 107 bytes at most (unix(7)); the door's is here too
        await self._keeper.start()
        gateway = Gateway(self._keeper)
        server = await gateway.start()
        await self._listen(Path(config.control).name)
        while not ended.is_set():
            if self.trouble is not None:
                try:
                    await loop.create_server(server, config.listen, config.port, backlog=1024)
                    self.trouble = None
                except OSError as error:  # at boot the address may come after this program
                    self.trouble = str(error)
            self._take_in()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), _LOOK_S)
        await gateway.close()
        await self._keeper.close()

    def _take_in(self) -> None:
        try:
            before, self._changed_ns = self._changed_ns, self._path.stat().st_mtime_ns
            if self._changed_ns != before:
                self._keeper.reload(read(self._path))
        except (OSError, KeyError, TypeError, ValueError):
            _log.exception("%s is ignored", self._path)

    async def _listen(self, control: str) -> None:
        app = web.Application()
        app.add_routes([web.get("/state", self._state), web.post("/{act:load|unload}/{name}", self._change)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        os.umask(0o177)
        await web.UnixSite(runner, control).start()

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response({"trouble": self.trouble, "models": self._keeper.view()})

    async def _change(self, request: web.Request) -> web.Response:
        act = self._keeper.load if request.match_info["act"] == "load" else self._keeper.unload
        try:
            return web.json_response({"text": act(request.match_info["name"])})
        except Unavailable as unavailable:
            return web.json_response({"error": unavailable.text}, status=unavailable.status)
