"""Whether this node reaches others and they reach it.

It needs no privileges and writes no file.

Three exchanges over one connection. First it listens: on every address of ``addresses`` by UDP and by TCP on ports that
the kernel chooses, and on the ports of ``fixed`` unless somebody may be about to use them; it says where. Then it is
sent what to try, and tries everything at once. Last it says, when asked, what it heard of the others: a packet that
arrived while its answer did not is lost on the way back.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import sys
import time
from typing import Any, BinaryIO

from sparkcluster.node import common
from sparkcluster.node.reach_probes import HEAD, Probes, Sockets, why

LIFE_S = 20.0
_STATES = {"01", "03"}  # established, SYN received: in /proc/net/tcp a connection that came this far


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Listen, try, and end when the input does or after ``LIFE_S``.

    ``request`` has ``addresses``, ``fixed`` as [address, port], ``token`` (32 hex digits that every node of this run
    knows), ``state_dir``, ``cluster``, ``epoch`` of our own lease or None, and ``limit_s`` for a silent target.

    Says ``{"udp": {address: port}, "tcp": {address: port}, "fixed": [[address, port]], "failed": {address:
    why}}``. A line ``{"try": [...]}`` is answered by ``{"results": {id: {...}}}``, ``{"heard": true}`` by
    ``{"udp": [ids], "tcp": [[address, port, source, source port]]}``.
    """
    node = Node(request)
    common.emit(node.listen())
    node.serve(lines)
    sys.stdout.flush()
    os._exit(0)  # the kernel closes every socket


def lease_is_held(request: dict[str, Any]) -> bool:
    """Whether another operator may be about to start something here."""
    directory = common.cluster_dir(request["state_dir"], request["cluster"])
    if not common.is_locked(os.path.join(directory, "lease.lock")):
        return False
    last = common.read_json(os.path.join(directory, "lease.json"))
    return request.get("epoch") is None or bool(last.get("epoch") != request["epoch"])


class Node(Sockets):
    """The sockets of one run and their results."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(bytes.fromhex(request["token"]), float(request["limit_s"]))
        self.request = request
        self.heard_udp: set[int] = set()
        self.listeners: dict[tuple[str, int], socket.socket] = {}
        self.accepted: list[socket.socket] = []
        self.disconnected = False
        self.probes: Probes | None = None

    # listening

    def listen(self) -> dict[str, Any]:
        """Open every socket that others will probe, and report which."""
        udp: dict[str, int] = {}
        tcp: dict[str, int] = {}
        failed: dict[str, str] = {}
        for address in self.request["addresses"]:
            try:
                echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                echo.bind((address, 0))
                self.watch(echo, self.echo)
                udp[address] = echo.getsockname()[1]
                tcp[address] = self.accept_on(address, 0)
            except OSError as error:
                failed[address] = why(error)
        fixed = []
        for address, port in [] if lease_is_held(self.request) else self.request["fixed"]:
            try:
                self.accept_on(address, port)
                fixed.append([address, port])
            except OSError:
                continue  # the port is in use; another check reports by what
        return {"udp": udp, "tcp": tcp, "fixed": fixed, "failed": failed}

    def accept_on(self, address: str, port: int) -> int:
        """Listen on TCP; returns the port."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(64)
        except OSError:
            listener.close()
            raise
        self.watch(listener, self.accept)
        chosen = int(listener.getsockname()[1])
        self.listeners[address, chosen] = listener
        return chosen

    def echo(self, sock: socket.socket) -> None:
        """Answer one of our packets with its size."""
        data, source = sock.recvfrom(1 << 16)
        if len(data) >= HEAD.size and data[:16] == self.token:
            number = HEAD.unpack(data[: HEAD.size])[1]
            self.heard_udp.add(number)
            sock.sendto(HEAD.pack(self.token, number, min(len(data), 0xFFFF)), source)

    def accept(self, sock: socket.socket) -> None:
        """Take a connection and keep it until its other end drops it."""
        accepted, _ = sock.accept()
        self.accepted.append(accepted)

    # the controller's connection

    def serve(self, lines: BinaryIO) -> None:
        """Answer other nodes and the controller until the latter disconnects."""
        # The controller sends a line only after the answer to the last one, so no line waits in the buffer of lines.
        self.selector.register(lines, selectors.EVENT_READ, self.obey)
        limit = time.monotonic() + LIFE_S
        while not self.disconnected and time.monotonic() < limit:
            self.turn(self.probes.wait_s() if self.probes is not None else 1.0)
            if self.probes is not None and self.probes.over():
                common.emit({"results": self.probes.results})
                self.probes = None

    def turn(self, wait_s: float) -> None:
        """Handle everything that arrived."""
        for key, _ in self.selector.select(wait_s):
            try:
                key.data(key.fileobj)
            except OSError:
                continue  # a connection that broke again, a packet that could not be answered

    def obey(self, lines: BinaryIO) -> None:
        """Handle one line from the controller."""
        line = lines.readline()
        request = json.loads(line) if line else {}
        self.disconnected = not line
        if "try" in request:
            self.probes = Probes(self, request["try"])
        elif request.get("heard"):
            common.emit({"udp": sorted(self.heard_udp), "tcp": self.heard_tcp()})

    def heard_tcp(self) -> list[list[Any]]:
        """Connections to our listeners that began, also those that never came about.

        Each as [address, port, source, source port]: one that an earlier run left half open has another port.
        """
        found = []
        try:
            with open("/proc/net/tcp") as table:
                rows = [line.split() for line in table.readlines()[1:]]
        except OSError:
            rows = []
        for row in rows:
            if row[3] in _STATES:
                (address, port), (source, source_port) = (endpoint(text) for text in row[1:3])
                if (address, port) in self.listeners:
                    found.append([address, port, source, source_port])
        return found


def endpoint(text: str) -> tuple[str, int]:
    """Address and port of ``0100007F:1F90``, as /proc/net/tcp writes them in the machine's own byte order."""
    address, _, port = text.partition(":")
    return socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)
