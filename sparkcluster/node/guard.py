"""The guard of one node of a cluster that is enabled: brings its rank back after a reboot, and a dead group to life.

Travels as one file (``hosts.program.standalone``) and runs as ``python3 guard.py DIRECTORY`` until a signal ends it. On
the head of a group it watches the group (``group_guard``); on the other nodes it listens on the interconnect address
for the head's guard, which has the cluster's token. Where the model is loaded on demand, the head listens on the
address of its API for the ``door``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import Any, NoReturn

from sparkcluster.node import unit, wire
from sparkcluster.node.group_guard import LINE_BYTES, GroupGuard, door_address, keep_alive, secret
from sparkcluster.node.own_rank import OwnRank
from sparkcluster.node.programs import Failed


def main(argv: list[str]) -> NoReturn:
    """Run the guard of the directory ``argv[1]``: watch the group on its head, and listen on its other nodes."""
    own = OwnRank(os.path.abspath(argv[1]))
    lock = unit.alone(own.directory)  # noqa: F841 - as long as it is open
    own.say("guards %(cluster)s on %(node)s" % own.config)
    group = GroupGuard(own)
    listening: dict[str, wire.Greeter] = {}
    while True:
        try:
            start = own.start_document()
            head = start.get("head", True)
            address = own.config.get("on_demand") and door_address(start) if head else start["address"]
            listen(own, listening, address, group if head else None)
            if start and head:
                group.look(start)
            else:
                own.wait_for(None)
        except Exception as error:
            # Also a full disk, or an answer of a peer that is none: without systemd nothing starts it again.
            own.wait_for("it cannot look at the group: %s" % error)
        time.sleep(group.limits["look_s"])


def listen(own: OwnRank, listening: dict[str, wire.Greeter], address: str | None, group: GroupGuard | None) -> None:
    """Listen at ``address``, None for nowhere, and at no other: for the head of this group, or for the door.

    Whoever comes is answered in a thread, also while ``group``, that of a head, starts its ranks.

    Raises:
        Failed: that is not possible now.
    """
    for other in listening.keys() - {address}:
        listening.pop(other).close()
    if address and not listening:
        token = own.config["door_token" if group else "token"]
        listening[address] = wire.Greeter(address, secret(token, own.node), own.config["port"])
        threading.Thread(target=welcome, args=(own.directory, listening[address], group), daemon=True).start()


def welcome(directory: str, greeter: wire.Greeter, group: GroupGuard | None) -> None:
    """Answer everybody who proves the token, until ``greeter`` is closed."""
    with contextlib.suppress(OSError, ValueError):  # it was
        while True:
            for sock in greeter.poll(1.0):
                threading.Thread(target=answer, args=(directory, sock, group), daemon=True).start()


def answer(directory: str, sock: socket.socket, group: GroupGuard | None) -> None:
    """Say how the rank is, and do what the head's guard asks, until the connection ends; its lease ends with that.

    On a head, say how the ``group`` is, and note what the gateway wants.
    """
    own = OwnRank(directory)
    with contextlib.closing(own), contextlib.suppress(OSError), sock, sock.makefile("rb") as lines:
        keep_alive(sock)
        sock.settimeout(None)
        for line in iter(lambda: lines.readline(LINE_BYTES), b""):
            said: dict[str, Any] = {}
            try:
                asked = json.loads(line)
                said["report"] = group.tell(asked) if group else own.ask(str(asked["do"]))
            except (Failed, OSError) as error:
                said["failed"] = str(error)[:1000]
            sock.sendall(json.dumps(said).encode() + b"\n")
