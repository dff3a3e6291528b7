"""The guard of one node of a cluster that is enabled: brings its rank back after a reboot, and a dead group to life.

Travels as one file (``hosts.program.standalone``) and runs as ``python3 guard.py DIRECTORY`` until a signal ends it. On
the head of a group it watches the group (``group_guard``); on the other nodes it listens on the interconnect address
for the head's guard, which has the cluster's token.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from sparkcluster.node import common, unit, wire
from sparkcluster.node.group_guard import LINE_BYTES, GroupGuard, keep_alive, secret
from sparkcluster.node.own_rank import OwnRank
from sparkcluster.node.programs import Failed


class Listener:
    """Answers the guard of this group's head: says how the rank is, and does what it asks under the lease."""

    def __init__(self, own: OwnRank) -> None:
        self._own = own
        self._address: str | None = None
        self._greeter: wire.Greeter | None = None

    def listen(self, address: str | None) -> None:
        """Listen on the interconnect ``address`` of the recorded release, or with None no longer.

        Raises:
            Failed: that is not possible now.
        """
        if address == self._address:
            return
        if self._greeter is not None:
            self._greeter.close()
        self._address, self._greeter = None, None
        if address is not None:
            config = self._own.config
            self._greeter = wire.Greeter(address, secret(config["token"], config["node"]), config["port"])
            self._address = address

    def wait(self, limit_s: float) -> None:
        """Wait for ``limit_s`` at most, and answer whoever proves to have the token."""
        if self._greeter is None:
            time.sleep(limit_s)
            return
        for sock in self._greeter.poll(limit_s):
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        """Do what the head's guard asks, until the connection ends; its lease ends with that."""
        own = OwnRank(self._own.directory)
        with contextlib.closing(own), contextlib.suppress(OSError), sock, sock.makefile("rb") as lines:
            keep_alive(sock)
            sock.settimeout(None)
            for line in iter(lambda: lines.readline(LINE_BYTES), b""):
                answer: dict[str, Any] = {}
                try:
                    answer["report"] = own.ask(str(json.loads(line)["do"]))
                except (Failed, OSError) as error:
                    answer["failed"] = str(error)[:1000]
                sock.sendall(json.dumps(answer).encode() + b"\n")


def main(argv: list[str]) -> NoReturn:
    """Run the guard of the directory ``argv[1]``: watch the group on its head, and listen on its other nodes."""
    own = OwnRank(os.path.abspath(argv[1]))
    lock = common.try_lock(os.path.join(own.directory, unit.LOCK_FILE))
    if lock is None:
        sys.exit("the guard of %s runs already" % own.directory)
    lock.truncate()
    lock.write(b"%d\n" % os.getpid())
    lock.flush()
    listener, group = Listener(own), GroupGuard(own)
    own.say("guards %(cluster)s on %(node)s" % own.config)
    while True:
        try:
            start = own.start_document()
            listener.listen(start["address"] if start and not start["head"] else None)
            if start and start["head"]:
                group.look(start)
            else:
                own.wait_for(None)
        except Failed as error:
            own.wait_for(str(error))
        except Exception as error:
            # A full disk, or an answer of a peer that is none: without systemd nothing starts it again.
            own.wait_for("it cannot look at the group: %s: %s" % (type(error).__name__, error))
        listener.wait(float(group.limits["look_s"]))
