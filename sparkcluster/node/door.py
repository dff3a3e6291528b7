"""Takes the gateway's word for models on demand, on its node, and passes it on to the guards of their heads.

Travels as one file (``hosts.program.standalone``), and runs as the guard of the gateway's own cluster. The gateway,
which is in a container and has no token of a guard, reaches it by a Unix socket in a directory that is mounted there.
A request is a line of JSON, and so is its answer::

    {"do": "states"}                                    {MODEL: {"state", "why"}} of all models
    {"do": "want", "model": MODEL, "run": true}         {MODEL: {"state", "why"}} of that one

A state is stopped, starting, ready, stopping, failed or unreachable. What is no such request ends the connection. In
the program's directory, config.json has ``socket``, its path, and ``models``: of each the ``node``, ``address``,
``port`` and ``token`` of its head's guard.
"""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkcluster.node import common, unit
from sparkcluster.node.group_guard import LINE_BYTES, Peer
from sparkcluster.node.own_rank import Report
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import CONFIG_FILE


def main(argv: list[str]) -> None:
    """Answer the gateway, by the config.json in the directory ``argv[1]``, until a signal ends it."""
    directory = os.path.abspath(argv[1])
    config = common.read_json(os.path.join(directory, CONFIG_FILE))
    lock = unit.alone(directory)  # noqa: F841 - as long as it is open
    guards = {name: Peer(**place) for name, place in config["models"].items()}

    class Conversation(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in iter(lambda: self.rfile.readline(LINE_BYTES), b""):
                self.wfile.write(json.dumps(answer(guards, json.loads(line))).encode() + b"\n")

    folder, name = os.path.split(config["socket"])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chdir(folder)  # the whole path may be longer than the 108 bytes that an address has
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    os.umask(0o177)
    socketserver.UnixStreamServer(name, Conversation).serve_forever()


def answer(guards: dict[str, Peer], request: dict[str, Any]) -> dict[str, Report]:
    """What the gateway gets for ``request``: a node that does not answer takes 5 s, or twice that, not all in turn."""
    asked = [request["model"]] if "model" in request else list(guards)

    def ask(name: str) -> Report:
        try:
            return guards[name].ask(request["do"], run=request.get("run"))
        except Failed as error:
            return {"state": "unreachable", "why": str(error)}

    with ThreadPoolExecutor() as pool:
        return dict(zip(asked, pool.map(ask, asked), strict=True))
