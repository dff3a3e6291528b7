"""Tests whether this node reaches others and they reach it.

It needs no privileges and writes no file. There are three exchanges over one connection. First it listens on each of
``addresses`` by UDP and TCP, on ports that the kernel chooses, and on the ports in ``fixed``, and reports them. Then it
gets the list of probes, and runs all at the same time, each in a thread. Last it reports, on request, what it received
from others: if a packet arrived but its answer did not, the answer was lost.

Two kinds of small packets distinguish a firewall from a dead cable: UDP to our own socket, and ``ping``. The echo of a
large UDP packet is small, so that each direction is tested separately.
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

LIMIT_S = 1.5  # for a silent target; the kernel resends a lost SYN after one second
RETRY_S = (0.25, 0.7)  # times to resend a packet; a single loss is normal
_LIFE_S = 20  # a lost connection is noticed only after hours, and a launch needs these ports
_BACKLOG = 1024  # connections are never accepted: the client closes them when they are established
_STATES = {"01", "03"}  # established, SYN received: states in /proc/net/tcp of a connection that arrived
# Values of linux/in.h, missing in the socket module. PROBE: never fragment, and ignore a smaller path MTU that was
# learned earlier.
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_HEAD = struct.Struct("!16sI")  # token, number
_HEADERS_BYTES = 28  # IPv4 and UDP
_SMALL_BYTES = 64
# Errors reported by another machine, not by our own kernel.
_REPORTED = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ECONNRESET}

Result = dict[str, Any]


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Listen, run the probes, and exit when the input ends.

    ``request`` has ``addresses``, ``fixed`` as [address, port], and ``token`` (32 hex digits, known to all nodes of
    this run).

    Prints ``{"udp": {address: port}, "tcp": {address: port}, "fixed": [[address, port]], "failed": {address:
    why}}``. A line ``{"try": [...]}`` is answered by ``{"results": {id: {...}}}``, ``{"heard": true}`` by
    ``{"udp": [ids], "tcp": [[address, port, source, source port]]}``. A try has ``id`` (the number of the UDP packet;
    ``id`` + 1 for the large one), ``source``, ``target``, ``udp`` (port), ``size_bytes`` of a packet that fills the MTU
    or None, and ``tcp``: ports.
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
    """The sockets and probes of a run."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.token = bytes.fromhex(request["token"])
        self.heard_udp: set[int] = set()
        self.listeners: dict[tuple[str, int], socket.socket] = {}

    def listen(self) -> dict[str, Any]:
        """Open every socket that others will probe, and return them."""
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
        """Listen on TCP; return the port."""
        listener = socket.create_server((address, port), backlog=_BACKLOG)
        chosen = int(listener.getsockname()[1])
        self.listeners[address, chosen] = listener
        return chosen

    def echo(self, sock: socket.socket) -> None:
        """Answer packets with our token by their header."""
        while True:
            with contextlib.suppress(OSError):  # ignore packets that cannot be answered
                data, source = sock.recvfrom(1 << 16)
                if len(data) >= _HEAD.size and data[:16] == self.token:
                    self.heard_udp.add(_HEAD.unpack_from(data)[1])
                    sock.sendto(data[: _HEAD.size], source)

    def heard(self) -> dict[str, Any]:
        """Numbers of packets that arrived, and connections to our listeners that were not completed.

        A connection is [address, port, source, source port]; the source port distinguishes it from those of an earlier
        run.
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
        """Run all ``probes`` at the same time; return the results by ID."""
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
        """Test a TCP connection."""
        result = found[str(port)] = {"ok": False}
        with socket.socket() as sock:
            # avoids TIME_WAIT on a port that the launch will need
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
        """Send a UDP packet of ``size`` bytes until it is answered."""
        result = found[kind] = {"ok": False}
        head = _HEAD.pack(self.token, number)
        pinging = threading.Thread(target=self.ping, args=(probe, found))
        began = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            sock.bind((probe["source"], 0))
            for end_s in (*RETRY_S, LIMIT_S):
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
        """Send an ICMP packet, if ``ping`` is installed."""
        argv = ["ping", "-n", "-q", "-c", "1", "-W", "1", "-I", probe["source"], probe["target"]]
        with contextlib.suppress(OSError):
            code = subprocess.run(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, check=False).returncode
            if code != 2:  # 2: an error of ping itself
                found["icmp"] = {"ok": code == 0, **reason(None)}


def reason(error: OSError | None) -> Result:
    """Why there was no answer; ``own``: the packet did not leave this node."""
    if error is None or isinstance(error, TimeoutError):
        return {"seen": "no answer within %.1f s" % LIMIT_S}
    return {"seen": why(error), "own": error.errno not in _REPORTED}
