"""Whether this node reaches others and they reach it.

It needs no privileges and writes no file.

Three exchanges over one connection. First it listens: on every address of ``addresses`` by UDP and by TCP on ports that
the kernel chooses, and on the ports of ``fixed``; it says where. Then it is sent what to try, and tries everything at
once, in a thread each. Last it says, when asked, what it heard of the others: a packet that arrived while its answer
did not is lost on the way back.

Two kinds of small packet tell a firewall from a dead cable: UDP to a socket of ours, and ``ping``. The echo of a large
UDP packet is small, so that each direction is judged by itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import signal
import socket
import struct
import subprocess
import threading
import time
from subprocess import DEVNULL
from typing import Any, BinaryIO

from sparkcluster.node import common
from sparkcluster.node.network import endpoint

LIMIT_S = 1.5  # for a silent target: the kernel repeats a lost SYN after one second
AGAIN_S = (0.25, 0.7)  # when a packet is sent again; a single one may be lost on a network that works
_LIFE_S = 20  # a connection that was lost is noticed after hours, and the ports are those of a launch
_BACKLOG = 1024  # a connection is never accepted: its other end drops it as soon as it is there
_STATES = {"01", "03"}  # established, SYN received: in /proc/net/tcp a connection that came this far
# Values of linux/in.h, which the socket module has no name for. PROBE: never fragment, and do not believe a
# smaller path MTU that was learned earlier.
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_HEAD = struct.Struct("!16sI")  # token, number
_HEADERS_BYTES = 28  # IPv4 and UDP
_SMALL_BYTES = 64
# Errors that another machine reported, as opposed to our own kernel.
_REPORTED = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ECONNRESET}

Result = dict[str, Any]


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Listen, try, and end when the input does.

    ``request`` has ``addresses``, ``fixed`` as [address, port], and ``token`` (32 hex digits that every node of this
    run knows).

    Says ``{"udp": {address: port}, "tcp": {address: port}, "fixed": [[address, port]], "failed": {address:
    why}}``. A line ``{"try": [...]}`` is answered by ``{"results": {id: {...}}}``, ``{"heard": true}`` by
    ``{"udp": [ids], "tcp": [[address, port, source, source port]]}``. A try has ``id`` (UDP is ``id`` and its large
    packet ``id`` + 1), ``source``, ``target``, ``udp`` (port), ``size_bytes`` of a packet that fills the MTU or None,
    and ``tcp``: ports.
    """
    signal.alarm(_LIFE_S)
    node = Node(request)
    common.emit(node.listen())
    for line in iter(lines.readline, b""):
        asked = json.loads(line)
        common.emit({"results": node.attempt(asked["try"])} if "try" in asked else node.heard())


def why(error: OSError) -> str:
    """Text of a system error."""
    return (error.strerror or str(error)).lower()


class Node:
    """The sockets of one run, and what it tries."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.token = bytes.fromhex(request["token"])
        self.heard_udp: set[int] = set()
        self.listeners: dict[tuple[str, int], socket.socket] = {}

    def listen(self) -> dict[str, Any]:
        """Open every socket that others will probe, and report which."""
        udp: dict[str, int] = {}
        tcp: dict[str, int] = {}
        failed: dict[str, str] = {}
        for address in self.request["addresses"]:
            try:
                echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                echo.bind((address, 0))
                threading.Thread(target=self.echo, args=(echo,), daemon=True).start()
                udp[address] = echo.getsockname()[1]
                tcp[address] = self.listen_on(address, 0)
            except OSError as error:
                failed[address] = why(error)
        fixed = []
        for address, port in self.request["fixed"]:
            with contextlib.suppress(OSError):  # the port is in use; another check reports by what
                self.listen_on(address, port)
                fixed.append([address, port])
        return {"udp": udp, "tcp": tcp, "fixed": fixed, "failed": failed}

    def listen_on(self, address: str, port: int) -> int:
        """Listen on TCP; returns the port."""
        listener = socket.create_server((address, port), backlog=_BACKLOG)
        chosen = int(listener.getsockname()[1])
        self.listeners[address, chosen] = listener
        return chosen

    def echo(self, sock: socket.socket) -> None:
        """Answer our packets with their heads."""
        while True:
            with contextlib.suppress(OSError):  # a packet that could not be answered
                data, source = sock.recvfrom(1 << 16)
                if len(data) >= _HEAD.size and data[:16] == self.token:
                    self.heard_udp.add(_HEAD.unpack_from(data)[1])
                    sock.sendto(data[: _HEAD.size], source)

    def heard(self) -> dict[str, Any]:
        """Numbers of packets that arrived, and connections to our listeners that began but never came about.

        A connection is [address, port, source, source port]: one that an earlier run left half open has another port.
        """
        found = []
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in table.readlines()[1:]]
        for row in rows:
            if row[3] in _STATES:
                (address, port), (source, source_port) = (endpoint(text) for text in row[1:3])
                if (address, port) in self.listeners:
                    found.append([address, port, source, source_port])
        return {"udp": sorted(self.heard_udp), "tcp": found}

    def attempt(self, probes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The results of everything in ``probes``, all at once, by their IDs."""
        results: dict[str, dict[str, Any]] = {str(probe["id"]): {"tcp": {}} for probe in probes}
        threads = []
        for probe in probes:
            found = results[str(probe["id"])]
            tries: list[tuple[Any, ...]] = [(self.connect, probe, port, found["tcp"]) for port in probe["tcp"]]
            tries.append((self.packet, probe, probe["id"], _SMALL_BYTES, found, "udp"))
            if probe["size_bytes"]:
                size = probe["size_bytes"] - _HEADERS_BYTES
                tries.append((self.packet, probe, probe["id"] + 1, size, found, "udp_full"))
            threads += [threading.Thread(target=call, args=args, daemon=True) for call, *args in tries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def connect(self, probe: dict[str, Any], port: int, found: Result) -> None:
        """Try one TCP connection."""
        result = found[str(port)] = {"ok": False}
        with socket.socket() as sock:
            # the port would be left in TIME_WAIT, where the launch will want it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.settimeout(LIMIT_S)
            try:
                sock.bind((probe["source"], 0))
                result["from"] = sock.getsockname()[1]
                sock.connect((probe["target"], port))
                result["ok"] = True
            except OSError as error:
                result.update(reason(error))

    def packet(self, probe: dict[str, Any], number: int, size: int, found: dict[str, Result], kind: str) -> None:
        """Send one packet of ``size`` bytes by UDP until it is answered."""
        result = found[kind] = {"ok": False}
        head = _HEAD.pack(self.token, number)
        pinging = threading.Thread(target=self.ping, args=(probe, found))
        began = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            sock.bind((probe["source"], 0))
            for end_s in (*AGAIN_S, LIMIT_S):
                sent = time.monotonic()
                sock.settimeout(max(0.001, began + end_s - sent))
                try:
                    sock.sendto(head.ljust(size, b"\0"), (probe["target"], probe["udp"]))
                    ok = sock.recv(1 << 16) == head
                except OSError as error:
                    result.update(reason(error))
                    if error.errno == errno.EMSGSIZE:
                        return
                    if kind == "udp" and pinging.ident is None:
                        pinging.start()
                    time.sleep(max(0.0, began + end_s - time.monotonic()))
                else:
                    found[kind] = {"ok": ok, "rtt_ms": round((time.monotonic() - sent) * 1000, 3)}
                    return
        if pinging.ident is not None:
            pinging.join()

    def ping(self, probe: dict[str, Any], found: dict[str, Result]) -> None:
        """Send one packet by ICMP, where ``ping`` is installed."""
        argv = ["ping", "-n", "-q", "-c", "1", "-W", "1", "-I", probe["source"], probe["target"]]
        with contextlib.suppress(OSError):
            code = subprocess.run(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, check=False).returncode
            if code != 2:  # an error of its own, which tells nothing
                found["icmp"] = {"ok": code == 0, **reason(None)}


def reason(error: OSError | None) -> Result:
    """Why there was no answer; ``own``: nothing left this node."""
    if error is None or isinstance(error, TimeoutError):
        return {"seen": "no answer within %.1f s" % LIMIT_S}
    return {"seen": why(error), "own": error.errno not in _REPORTED}
