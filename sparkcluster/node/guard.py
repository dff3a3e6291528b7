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


def main(argv: list[str]) -> NoReturn:
    """Run the guard of the directory ``argv[1]``: watch the group on its head, and listen on its other nodes."""
    own = OwnRank(os.path.abspath(argv[1]))
    lock = common.try_lock(os.path.join(own.directory, unit.LOCK_FILE))
    if lock is None:
        sys.exit("the guard of %s runs already" % own.directory)
    lock.truncate()
    lock.write(b"%d\n" % os.getpid())
    lock.flush()
    own.say("guards %(cluster)s on %(node)s" % own.config)
    group = GroupGuard(own)
    listening: dict[str, wire.Greeter] = {}
    while True:
        try:
            start = own.start_document()
            listen(own.config, listening, start["address"] if start and not start["head"] else None)
            if start and start["head"]:
                group.look(start)
            else:
                own.wait_for(None)
        except Exception as error:
            # Also a full disk, or an answer of a peer that is none: without systemd nothing starts it again.
            own.wait_for("it cannot look at the group: %s" % error)
        if not listening:
            time.sleep(group.limits["look_s"])
        for greeter in listening.values():
            for sock in greeter.poll(group.limits["look_s"]):
                threading.Thread(target=answer, args=(OwnRank(own.directory), sock), daemon=True).start()


def listen(config: dict[str, Any], listening: dict[str, wire.Greeter], address: str | None) -> None:
    """Listen for this group's head on the interconnect ``address`` of the recorded release, and on no other.

    Raises:
        Failed: that is not possible now.
    """
    for other in listening.keys() - {address}:
        listening.pop(other).close()
    if address and not listening:
        listening[address] = wire.Greeter(address, secret(config["token"], config["node"]), config["port"])


def answer(own: OwnRank, sock: socket.socket) -> None:
    """Say how the rank is, and do what the head's guard asks, until the connection ends; its lease ends with that."""
    with contextlib.closing(own), contextlib.suppress(OSError), sock, sock.makefile("rb") as lines:
        keep_alive(sock)
        sock.settimeout(None)
        for line in iter(lambda: lines.readline(LINE_BYTES), b""):
            said: dict[str, Any] = {}
            try:
                said["report"] = own.ask(str(json.loads(line)["do"]))
            except (Failed, OSError) as error:
                said["failed"] = str(error)[:1000]
            sock.sendall(json.dumps(said).encode() + b"\n")
