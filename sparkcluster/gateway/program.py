"""``python3 gateway.py CONFIG``: runs until it is ended, and takes in a new CONFIG without dropping a stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from pathlib import Path

from aiohttp import web

from sparkcluster.gateway.config import Config, read
from sparkcluster.gateway.control import Control
from sparkcluster.gateway.keeper import Keeper
from sparkcluster.gateway.serve import Gateway

_LOOK_S = 1
_log = logging.getLogger("gateway")


def main(argv: list[str]) -> int:
    """Serve what the file ``argv[1]`` says until SIGTERM or SIGINT."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(serve(Path(argv[1])))
    return 0


async def serve(path: Path) -> None:
    """Serve what ``path`` says until SIGTERM or SIGINT; streams end with it."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    changed_ns, config = _changed_ns(path), read(path)
    keeper = Keeper(config)
    gateway = Gateway(config, keeper)
    control = Control(gateway)
    await keeper.start()
    server = await gateway.start()
    await control.listen(Path(config.control))
    while not ended.is_set():
        if control.trouble is not None:
            control.trouble = await _listen(server, config, control.trouble)
        if changed_ns != (changed_ns := _changed_ns(path)):
            try:
                gateway.config = read(path)
                keeper.reload(gateway.config)
            except (OSError, KeyError, TypeError, ValueError):
                _log.exception("%s is ignored", path)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ended.wait(), _LOOK_S)
    await gateway.close()
    await keeper.close()


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


async def _listen(server: web.Server, config: Config, before: str) -> str | None:
    """Listen on the port; else why not: at boot the address may come after this program."""
    try:
        await asyncio.get_running_loop().create_server(server, config.listen, config.port, backlog=1024)
    except OSError as error:
        if str(error) != before:
            _log.warning("%s", error)
        return str(error)
    return None
