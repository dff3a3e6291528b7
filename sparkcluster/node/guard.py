"""The guard of a node of an enabled cluster: restarts its rank after a reboot, and a dead group.

It is sent as one file (``hosts.program.standalone``) and runs as ``python3 guard.py DIRECTORY`` until a signal arrives.
On the head of a group it watches the group (``group_guard``). On the other nodes it listens on the interconnect address
for the head's guard, which has the cluster's token. If the model is loaded on demand, the head listens on the address
of its API for the ``door``.
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
    """Run the guard with the directory ``argv[1]``: watch the group on its head, listen on its other nodes."""
    own = OwnRank(os.path.abspath(argv[1]))
    lock = unit.lock_guard(own.directory)  # noqa: F841 - held while it is open
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
                group.check(start)
            else:
                own.wait_for(None)
        except Exception as error:
            # Includes a full disk and an invalid answer of a peer: without systemd nothing would restart the guard.
            own.wait_for("it cannot check the group: %s" % error)
        time.sleep(group.limits["look_s"])


def listen(own: OwnRank, listening: dict[str, wire.Greeter], address: str | None, group: GroupGuard | None) -> None:
    """Listen only at ``address`` (None: nowhere), for the head of this group or for the door.

    Each client is answered in a thread, even while the ``group`` of a head starts its ranks.

    Raises:
        Failed: it cannot listen now.
    """
    for other in listening.keys() - {address}:
        listening.pop(other).close()
    if address and not listening:
        token = own.config["door_token" if group else "token"]
        listening[address] = wire.Greeter(address, secret(token, own.node), own.config["port"])
        threading.Thread(target=welcome, args=(own.directory, listening[address], group), daemon=True).start()


def welcome(directory: str, greeter: wire.Greeter, group: GroupGuard | None) -> None:
    """Answer all clients that prove the token, until ``greeter`` is closed."""
    with contextlib.suppress(OSError, ValueError):  # closed
        while True:
            for sock in greeter.poll(1.0):
                threading.Thread(target=answer, args=(directory, sock, group), daemon=True).start()


def answer(directory: str, sock: socket.socket, group: GroupGuard | None) -> None:
    """Report the rank's state, and run the commands of the head's guard, until the connection and so its lease ends.

    On a head, report the state of the ``group``, and note what the gateway wants.
    """
    own = OwnRank(directory)
    with contextlib.closing(own), contextlib.suppress(OSError), sock, sock.makefile("rb") as lines:
        keep_alive(sock)
        sock.settimeout(None)
        for line in iter(lambda: lines.readline(LINE_BYTES), b""):
            said: dict[str, Any] = {}
            try:
                asked = json.loads(line)
                said["report"] = group.reply(asked) if group else own.ask(str(asked["do"]))
            except (Failed, OSError) as error:
                said["failed"] = str(error)[:1000]
            sock.sendall(json.dumps(said).encode() + b"\n")
