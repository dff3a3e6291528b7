"""The control socket, by which ``status``, ``load`` and ``unload`` reach the gateway: HTTP on a Unix socket."""

from __future__ import annotations

import os
from pathlib import Path

from aiohttp import web

from sparkcluster.gateway.keeper import Unavailable
from sparkcluster.gateway.serve import Gateway


class Control:
    """Answers GET /state, and POST /load/NAME and /unload/NAME; ``trouble`` is why the port is not listened on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.trouble: str | None = "it is starting"

    async def listen(self, path: Path) -> None:
        """Listen on the socket ``path``, which its owner alone may use."""
        app = web.Application()
        app.add_routes([web.get("/state", self._state), web.post("/{act:load|unload}/{name}", self._change)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        # A socket's own path has 107 bytes at most (unix(7)).
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.umask(0o177)
        await web.UnixSite(runner, f"/proc/self/fd/{directory}/{path.name}").start()

    async def _state(self, _: web.Request) -> web.Response:
        cluster, models = self._gateway.config.cluster, self._gateway.keeper.view()
        return web.json_response({"cluster": cluster, "trouble": self.trouble, "models": models})

    async def _change(self, request: web.Request) -> web.Response:
        act, name = request.match_info["act"], request.match_info["name"]
        if name not in {model.name for model in self._gateway.config.models}:
            return web.json_response({"error": f"the gateway has no model {name}"}, status=404)
        try:
            text = getattr(self._gateway.keeper, act)(name)
        except Unavailable as unavailable:
            return web.json_response({"error": unavailable.text}, status=unavailable.status)
        return web.json_response({"text": text})
