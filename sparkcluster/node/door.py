"""Forwards the gateway's requests for models on demand to the guards of their heads; runs on the gateway's node.

It is sent as one file (``hosts.program.standalone``), and runs as the guard of the gateway's cluster. The gateway runs
in a container without a guard's token; it connects by a Unix socket in a mounted directory. Requests and answers are
lines of JSON::

    {"do": "states"}                                    {MODEL: {"state", "why"}} of all models
    {"do": "want", "model": MODEL, "run": true}         {MODEL: {"state", "why"}} of this model

A state is stopped, starting, ready, stopping, failed or unreachable. An invalid request ends the connection.
config.json in the program's directory has ``socket``, the path, and ``models``: for each the ``node``, ``address``,
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
from sparkcluster.node.own_rank import Document
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import CONFIG_FILE


def main(argv: list[str]) -> None:
    """Answer the gateway until a signal arrives; config.json is in the directory ``argv[1]``."""
    directory = os.path.abspath(argv[1])
    config = common.read_json(os.path.join(directory, CONFIG_FILE))
    lock = unit.lock_guard(directory)  # noqa: F841 - held while it is open
    guards = {name: Peer(**place) for name, place in config["models"].items()}

    class Conversation(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in iter(lambda: self.rfile.readline(LINE_BYTES), b""):
                self.wfile.write(json.dumps(answer(guards, json.loads(line))).encode() + b"\n")

    folder, name = os.path.split(config["socket"])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chdir(folder)  # the path of a Unix socket has at most 107 bytes (unix(7))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    os.umask(0o177)
    socketserver.UnixStreamServer(name, Conversation).serve_forever()


def answer(guards: dict[str, Peer], request: dict[str, Any]) -> dict[str, Document]:
    """The answer to ``request``; nodes are asked at the same time, since a silent one takes 5 or 10 s."""
    asked = [request["model"]] if "model" in request else list(guards)

    def ask(name: str) -> Document:
        try:
            return guards[name].ask(request["do"], run=request.get("run"))
        except Failed as error:
            return {"state": "unreachable", "why": str(error)}

    with ThreadPoolExecutor() as pool:
        return dict(zip(asked, pool.map(ask, asked), strict=True))
