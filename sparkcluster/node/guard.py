"""The guard of one node of a cluster that is enabled: brings its rank back after a reboot, and a dead group to life.

Travels as one file (``hosts.program.standalone``) and runs as ``python3 guard.py DIRECTORY`` as long as the cluster is
enabled. It listens on the node's interconnect address for the guards of its group, which have the cluster's token. On
the group's head it also watches the group (``group_guard``).
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
from typing import Any

from sparkcluster.node import common, enabled, guard_protocol
from sparkcluster.node.group_guard import GroupGuard
from sparkcluster.node.guard_protocol import Conversation, Forged, Refused
from sparkcluster.node.own_rank import OwnRank
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import TOKEN_FILE

TTL_S = 15.0
"""A guard that took the lease here and falls silent has lost it then, as an operator would."""
CONVERSATIONS = 16
BIND_AGAIN_S = 2.0
AFTER_ERROR_S = 10.0


def say(text: str) -> None:
    """Write a line of the log."""
    sys.stdout.write("[sparkcluster] %s\n" % text)
    sys.stdout.flush()


class Listener:
    """Answers the guards of this node's group: says how its rank is, and does what a head asks under the lease."""

    def __init__(self, own: OwnRank, token: bytes) -> None:
        self.own = own
        self.refused = 0
        self.address: str | None = None
        self._token = token
        self._socket: socket.socket | None = None
        self._slots = threading.Semaphore(CONVERSATIONS)

    def listen(self) -> None:
        """Listen on the interconnect address of the recorded release.

        Raises:
            Failed: that is not possible now.
        """
        start = self.own.start_document()
        address = start.get("address") if start.get("peers") else None
        if address == self.address and (self._socket is not None or address is None):
            return
        self.close()
        self.address = address
        if address is None:
            return
        try:
            self._socket = socket.create_server((address, self.own.config["port"]), backlog=CONVERSATIONS)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise Failed("its interconnect address %s" % address) from None
            why = (error.strerror or str(error)).lower()
            raise Failed("port %s of %s: %s" % (self.own.config["port"], address, why)) from None
        threading.Thread(target=guard_protocol.serve, args=(self._socket, self._accepted), daemon=True).start()

    def close(self) -> None:
        """Listen no longer."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _accepted(self, sock: socket.socket, address: str) -> None:
        if address not in self.own.start_document().get("peers", {}).values():
            self._refuse(address, "no node of the group has this address")
            sock.close()
        elif not self._slots.acquire(blocking=False):
            sock.close()
        else:
            threading.Thread(target=self._converse, args=(sock, address), daemon=True).start()

    def _converse(self, sock: socket.socket, address: str) -> None:
        try:
            own = self.own
            peers = own.start_document().get("peers", {})
            names = [name for name, at in peers.items() if at == address]
            try:
                talk = guard_protocol.answer(sock, self._token, cluster=own.cluster, name=own.node, peers=names)
            except Refused as error:
                self._refuse(address, str(error))
                return
            self._serve(talk, address)
        except Exception as error:
            say("a conversation with %s failed: %s: %s" % (address, type(error).__name__, error))
        finally:
            self._slots.release()

    def _serve(self, talk: Conversation, address: str) -> None:
        """Do what the head's guard asks, until it ends the conversation or falls silent; its lease ends with that."""
        holds = False
        try:
            while True:
                asked = talk.hear(TTL_S)
                answer: dict[str, Any] = {}
                try:
                    self._do(str(asked.get("do")), holds)
                    holds = holds or asked.get("do") == "take"
                except (Failed, OSError) as error:
                    answer["failed"] = str(error)[:1000]
                talk.say(dict(answer, report=self.own.report()))
        except Forged as error:
            self._refuse(address, str(error))
        except Refused:
            return
        finally:
            talk.close()
            if holds:
                self.own.release()

    def _do(self, word: str, holds: bool) -> None:
        """Do what is asked by a guard that ``holds`` the lease of this node.

        Raises:
            Failed: it cannot be done, or must not.
        """
        if word == "take":
            self.own.take()
        elif word in ("start", "stop"):
            if not holds:
                raise Failed("the lease of %s was not taken" % self.own.node)
            say("%ss its rank" % word)
            {"start": self.own.start, "stop": self.own.stop}[word]()
        elif word != "hello":
            raise Failed("unknown: %s" % word[:40])

    def _refuse(self, address: str, why: str) -> None:
        self.refused += 1
        if self.refused < 20 or self.refused % 100 == 0:
            say("refused a hello from %s: %s (%d refused)" % (address, why, self.refused))


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
        with open(os.path.join(directory, TOKEN_FILE), "rb") as file:
            token = file.read().strip()
        lock = common.try_lock(os.path.join(directory, enabled.LOCK_FILE))
    except (Failed, OSError, KeyError) as error:
        sys.stderr.write("%s\n" % error)
        return 0 if not os.path.isdir(directory) else 1
    if lock is None:
        sys.stderr.write("the guard of %s runs already\n" % directory)
        return 1
    if len(token) < 32:
        sys.stderr.write("the token of %s is too short\n" % directory)
        return 1
    lock.truncate()
    lock.write(b"%d\n" % os.getpid())
    lock.flush()
    run(own, token)
    return 0


def run(own: OwnRank, token: bytes) -> None:
    """Listen, and watch the group on its head, until the cluster is disabled."""
    listener, group = Listener(own, token), GroupGuard(own, token, say)
    say("guards %s on %s" % (own.cluster, own.node))
    try:
        while own.is_enabled:
            try:
                listener.listen()
                pause_s = group.look()
            except Failed as error:
                group.wait_for(str(error))
                pause_s = BIND_AGAIN_S
            except Exception as error:
                # A full disk, or an answer of a peer that is none: without systemd nothing starts it again.
                group.wait_for("it cannot look at the group: %s: %s" % (type(error).__name__, error))
                pause_s = AFTER_ERROR_S
            group.sleep(pause_s)
    finally:
        listener.close()
        own.release()
    say("%s is disabled" % own.cluster)


def _end(_signal: int, _frame: object) -> None:
    # At once, whatever it is in the middle of: the locks end with the process.
    os._exit(0)
