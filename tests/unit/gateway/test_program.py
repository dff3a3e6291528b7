"""The gateway program as sent to the node: one file, in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from sparkcluster.hosts.program import standalone
from sparkcluster.node import gateway_control
from sparkcluster.node.common import cluster_dir
from tests.unit.gateway.served import CHAT, document, key, model, run, serving


class Program:
    """The gateway's process, in a directory whose path is too long for a socket."""

    def __init__(self, place: Path, port: int) -> None:
        self.place, self.port = place, port
        self.cluster = {"state_dir": str(place), "cluster": "long" * 30}
        self.control = Path(cluster_dir(*self.cluster.values())) / "run" / "control.sock"
        self.control.parent.mkdir(parents=True)
        self.config = place / "config.json"
        (place / "gateway.py").write_text(standalone("program", package="gateway"))

    def put(self, *models: dict[str, Any], secret: str) -> None:
        new = self.place / "new.json"
        new.write_text(document(models, key(secret), port=self.port))
        new.replace(self.config)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[aiohttp.ClientSession]:
        argv = [sys.executable, "-I", str(self.place / "gateway.py"), str(self.config), str(self.control.parent)]
        process = subprocess.Popen(argv, env={"HOME": str(self.place)})  # noqa: ASYNC220
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{self.port}") as client:
                yield client
            process.terminate()
            assert await asyncio.to_thread(process.wait, 10) == -signal.SIGTERM
        finally:
            process.kill()
            process.wait()

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        """The control socket's answer to the node program."""
        silent = "it does not answer"
        while silent in str(
            (found := gateway_control.main({**self.cluster, "method": method, "path": path})).get("error")
        ):
            await asyncio.sleep(0.05)
        return found

    async def trouble(self) -> str | None:
        found: str | None = (await self.ask("GET", "/state"))["trouble"]
        return found


async def status(client: aiohttp.ClientSession, secret: str) -> int:
    async with client.get("/v1/models", headers={"Authorization": f"Bearer {secret}"}) as answer:
        return answer.status


def test_a_new_config_is_loaded_without_ending_streams(tmp_path: Path) -> None:
    """A broken one is ignored; the control socket is accessible to its owner only, and reports the running config."""

    @run
    async def scenario() -> None:
        more = asyncio.Event()

        async def engine(request: web.BaseRequest) -> web.StreamResponse:
            if request.method == "GET":
                return web.json_response({"data": [{"id": "gpt", "max_model_len": 8192}]})
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"begin ")
            await more.wait()
            await response.write(b"end")
            return response

        with socket.create_server(("127.0.0.1", 0)) as busy:
            program = Program(tmp_path, busy.getsockname()[1])
            async with serving(engine) as url:
                program.put(model("gpt", url), secret="old")
                async with program.running() as client:
                    while "address already in use" not in (await program.trouble() or ""):
                        await asyncio.sleep(0.05)
                    busy.close()
                    while await program.trouble() is not None:
                        await asyncio.sleep(0.05)
                    assert program.control.stat().st_mode & 0o777 == 0o600
                    old = {"Authorization": "Bearer old"}
                    async with client.post(CHAT, json={"model": "gpt"}, headers=old) as answer:
                        assert await answer.content.readany() == b"begin "
                        program.config.write_text("{")
                        await asyncio.sleep(1.2)
                        assert await status(client, "old") == 200
                        program.put(model("gpt", url), model("late"), secret="new")
                        while await status(client, "new") != 200:
                            await asyncio.sleep(0.05)
                        assert await status(client, "old") == 401
                        state = await program.ask("GET", "/state")
                        assert (state["models"]["gpt"]["in_flight"], set(state["models"])) == (1, {"gpt", "late"})
                        assert "does not know no-such" in (await program.ask("POST", "/load/no-such"))["error"]
                        more.set()
                        assert await answer.content.read() == b"end"

    scenario()
