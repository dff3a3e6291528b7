"""The guard of one node of a cluster that is enabled: brings its rank back after a reboot, and a dead group to life.

Travels as one file (``hosts.program.standalone``) and runs as ``python3 guard.py DIRECTORY`` as long as the cluster is
enabled. On the head of a group it watches the group (``group_guard``); on the other nodes it listens on the
interconnect address for the head's guard, which has the cluster's token.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from sparkcluster.node import common, enabled, wire
from sparkcluster.node.group_guard import LINE_BYTES, GroupGuard, keep_alive, secret
from sparkcluster.node.own_rank import OwnRank, Session
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import TOKEN_FILE


class Listener:
    """Answers the guard of this group's head: says how the rank is, and does what it asks under the lease."""

    def __init__(self, own: OwnRank, token: str) -> None:
        self._own, self._secret = own, secret(token, own.node)
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
            self._greeter = wire.Greeter(address, self._secret, self._own.config["port"])
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
        session = Session(self._own)
        try:
            keep_alive(sock)
            sock.settimeout(None)
            lines = sock.makefile("rb")
            for line in iter(lambda: lines.readline(LINE_BYTES), b""):
                answer: dict[str, Any] = {}
                try:
                    answer["report"] = session.ask(str(json.loads(line)["do"]))
                except (Failed, OSError) as error:
                    answer["failed"] = str(error)[:1000]
                sock.sendall(json.dumps(answer).encode() + b"\n")
        except Exception as error:
            self._own.say("a conversation failed: %s: %s" % (type(error).__name__, error))
        finally:
            session.close()
            sock.close()


def main(argv: list[str]) -> int:
    """Run the guard of the directory ``argv[1]`` until the cluster is disabled."""
    if len(argv) != 2:
        sys.stderr.write("usage: guard.py DIRECTORY\n")
        return 2
    directory = os.path.abspath(argv[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    try:
        own = OwnRank(directory)
        with open(os.path.join(directory, TOKEN_FILE)) as file:
            token = file.read().strip()
        lock = common.try_lock(os.path.join(directory, enabled.LOCK_FILE))
    except (Failed, OSError) as error:
        sys.stderr.write("%s\n" % error)
        return 0 if not os.path.isdir(directory) else 1
    if lock is None or len(token) < 32:
        sys.stderr.write("%s: the guard runs already, or its token is too short\n" % directory)
        return 1
    lock.truncate()
    lock.write(b"%d\n" % os.getpid())
    lock.flush()
    run(own, token)
    return 0


def run(own: OwnRank, token: str) -> None:
    """Watch the group on its head, and listen on its other nodes, until the cluster is disabled."""
    listener, group = Listener(own, token), GroupGuard(own, token)
    own.say("guards %s on %s" % (own.cluster, own.node))
    while own.is_enabled:
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
    own.say("%s is disabled" % own.cluster)


def _end(_signal: int, _frame: object) -> None:
    # At once, whatever it is in the middle of: the locks end with the process.
    os._exit(0)
