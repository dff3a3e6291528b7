"""Takes the gateway's word for models on demand, on its node, and passes it on to the guards of their heads.

Travels as one file (``hosts.program.standalone``), and runs as the guard of the gateway's own cluster. The gateway,
which is in a container and has no token of a guard, reaches it by a Unix socket in a directory that is mounted there.
A request is a line of JSON, and so is its answer::

    {"do": "states"}                                    {"states": {MODEL: {"state", "why"}}}
    {"do": "want", "model": MODEL, "run": true}         {"state": {"state", "why"}}, or {"failed": why}

A state is stopped, starting, ready, stopping, failed or unreachable. In the program's directory, config.json has
``socket``, its path, and ``models``: of each the ``node``, ``address``, ``port`` and ``token`` of its head's guard.
"""

from __future__ import annotations

import json
import os
import socketserver
import threading
import time
from typing import Any, NoReturn

from sparkcluster.node import common, unit
from sparkcluster.node.group_guard import LINE_BYTES, Peer
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import CONFIG_FILE

ASK_S = 1.0
"""Between two questions to a head, so that "states" is answered at once, whatever does not answer."""

State = dict[str, Any]


class Head:
    """The guard of the head of one model, as its ``place`` in config.json; ``state`` is what it said last."""

    def __init__(self, place: dict[str, Any]) -> None:
        self._place = place
        self._asking = threading.Lock()
        self._peer = self._dialled()
        self.state: State = {"state": "unreachable", "why": "its guard was not asked yet"}
        threading.Thread(target=self._follow, daemon=True).start()

    def ask(self, word: str, **more: Any) -> State:
        """What its guard answers; Failed where it refuses, or cannot be reached."""
        with self._asking:
            try:
                self.state = self._peer.ask(word, **more)
            except Failed:
                self._peer.close()
                self._peer = self._dialled()
                raise
            return self.state

    def _dialled(self) -> Peer:
        name, place = self._place["node"], self._place
        return Peer(name, place, {"peers": {name: place["address"]}, "address": ""})

    def _follow(self) -> None:
        while True:
            try:
                self.ask("states")
            except Failed as error:
                self.state = {"state": "unreachable", "why": str(error)}
            time.sleep(ASK_S)


def main(argv: list[str]) -> NoReturn:
    """Answer the gateway, by the config.json in the directory ``argv[1]``, until a signal ends it."""
    directory = os.path.abspath(argv[1])
    config = common.read_json(os.path.join(directory, CONFIG_FILE))
    lock = unit.alone(directory)  # noqa: F841 - as long as it is open
    heads = {name: Head(place) for name, place in config["models"].items()}

    class Conversation(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in iter(lambda: self.rfile.readline(LINE_BYTES), b""):
                self.wfile.write(json.dumps(answer(heads, json.loads(line))).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    folder, name = os.path.split(config["socket"])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.path.lexists(config["socket"]):
        os.unlink(config["socket"])
    os.umask(0o177)
    # Its whole path may be longer than the 108 bytes that an address has.
    with Server("/proc/self/fd/%d/%s" % (os.open(folder, os.O_PATH), name), Conversation) as server:
        server.serve_forever()
    raise SystemExit


def answer(heads: dict[str, Head], request: dict[str, Any]) -> dict[str, Any]:
    """What the gateway gets for ``request``."""
    if request["do"] == "states":
        return {"states": {name: head.state for name, head in heads.items()}}
    if request["do"] != "want" or request["model"] not in heads:
        return {"failed": "the door knows states, and want of %s" % ", ".join(heads)}
    try:
        return {"state": heads[request["model"]].ask("want", run=bool(request["run"]))}
    except Failed as error:
        return {"failed": str(error)}
