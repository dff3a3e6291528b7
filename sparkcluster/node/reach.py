"""Whether this node reaches others and they reach it.

It needs no privileges and writes no file.

Three exchanges over one connection. First it listens: on every address of ``addresses`` by UDP and by TCP on ports that
the kernel chooses, and on the ports of ``fixed`` unless somebody may be about to use them; it says where. Then it is
sent what to try, and tries everything at once, in a thread each. Last it says, when asked, what it heard of the others:
a packet that arrived while its answer did not is lost on the way back.

Two kinds of small packet tell a firewall from a dead cable: UDP to a socket of ours, and, where that stays silent,
``ping``. The echo of a large UDP packet is small, so that each direction is judged by itself; ICMP answers with as much
as it was sent, and counts only where UDP is filtered.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from subprocess import DEVNULL
from typing import Any, BinaryIO

from sparkcluster.node import common

LIFE_S = 20.0
AGAIN_S = (0.25, 0.7)  # when a packet is sent again; a single one may be lost on a network that works
_BACKLOG = 1024  # a connection is never accepted: its other end drops it as soon as it is there
_STATES = {"01", "03"}  # established, SYN received: in /proc/net/tcp a connection that came this far
# Values of linux/in.h, which the socket module has no name for. PROBE: never fragment, and do not believe a
# smaller path MTU that was learned earlier.
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_HEAD = struct.Struct("!16sIH")  # token, number, size of the packet that it answers
_HEADERS_BYTES = 28  # IPv4 and UDP, or IPv4 and ICMP
_SMALL_BYTES = 64
# Errors that another machine reported, as opposed to our own kernel.
_REPORTED = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ECONNRESET}

Result = dict[str, Any]


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Listen, try, and end when the input does or after ``LIFE_S``.

    ``request`` has ``addresses``, ``fixed`` as [address, port], ``token`` (32 hex digits that every node of this run
    knows), ``state_dir``, ``cluster``, ``epoch`` of our own lease or None, and ``limit_s`` for a silent target.

    Says ``{"udp": {address: port}, "tcp": {address: port}, "fixed": [[address, port]], "failed": {address:
    why}}``. A line ``{"try": [...]}`` is answered by ``{"results": {id: {...}}}``, ``{"heard": true}`` by
    ``{"udp": [ids], "tcp": [[address, port, source, source port]]}``. A try has ``id`` (UDP is ``id`` and its large
    packet ``id`` + 1), ``source``, ``target``, ``udp`` (port), ``size_bytes`` of a packet that fills the MTU or None,
    and ``tcp``: ports.
    """
    node = Node(request)
    life = threading.Timer(LIFE_S, os._exit, (0,))
    life.daemon = True
    life.start()
    common.emit(node.listen())
    for line in iter(lines.readline, b""):
        asked = json.loads(line)
        common.emit({"results": node.attempt(asked["try"])} if "try" in asked else node.heard())
    sys.stdout.flush()
    os._exit(0)  # the kernel closes every socket


def lease_is_held(request: dict[str, Any]) -> bool:
    """Whether another operator may be about to start something here."""
    lock, record, _ = common.lease_files(request["state_dir"], request["cluster"], "cluster")
    if not common.is_locked(lock):
        return False
    return request.get("epoch") is None or bool(common.read_json(record).get("epoch") != request["epoch"])


def why(error: OSError) -> str:
    """Text of a system error."""
    return (error.strerror or str(error)).lower()


class Node:
    """The sockets of one run, and what it tries."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.token = bytes.fromhex(request["token"])
        self.limit_s = float(request["limit_s"])
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
        for address, port in [] if lease_is_held(self.request) else self.request["fixed"]:
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
        """Answer our packets with their sizes."""
        while True:
            with contextlib.suppress(OSError):  # a packet that could not be answered
                data, source = sock.recvfrom(1 << 16)
                if len(data) >= _HEAD.size and data[:16] == self.token:
                    number = _HEAD.unpack_from(data)[1]
                    self.heard_udp.add(number)
                    sock.sendto(_HEAD.pack(self.token, number, min(len(data), 0xFFFF)), source)

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
            tries.append((self.packet, probe, probe["id"], _SMALL_BYTES, "", found))
            if probe["size_bytes"]:
                size = probe["size_bytes"] - _HEADERS_BYTES
                tries.append((self.packet, probe, probe["id"] + 1, size, "_full", found))
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
            sock.settimeout(self.limit_s)
            try:
                sock.bind((probe["source"], 0))
                result["from"] = sock.getsockname()[1]
                sock.connect((probe["target"], port))
                result["ok"] = True
            except OSError as error:
                result.update(self.reason(error))

    def reason(self, error: OSError | None) -> Result:
        """Why there was no answer; ``own``: nothing left this node."""
        if error is None or isinstance(error, TimeoutError):
            return {"seen": "no answer within %.1f s" % self.limit_s}
        return {"seen": why(error), "own": error.errno not in _REPORTED}

    def packet(self, probe: dict[str, Any], number: int, size: int, suffix: str, found: dict[str, Result]) -> None:
        """Send one packet of ``size`` bytes by UDP until it is answered, and by ICMP if it is not."""
        result = found["udp" + suffix] = {"ok": False}
        data = _HEAD.pack(self.token, number, 0).ljust(size, b"\0")
        ping: subprocess.Popen[bytes] | None = None
        failure: OSError | None = None
        began = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            sock.bind((probe["source"], 0))
            for end_s in (*AGAIN_S, self.limit_s):
                sent = time.monotonic()
                sock.settimeout(max(0.001, began + end_s - sent))
                try:
                    sock.sendto(data, (probe["target"], probe["udp"]))
                    answer = sock.recv(1 << 16)
                except OSError as error:
                    failure = error
                else:
                    ok = answer == _HEAD.pack(self.token, number, size)
                    result.update(ok=ok, rtt_ms=round((time.monotonic() - sent) * 1000, 3))
                    return
                if failure.errno == errno.EMSGSIZE:
                    break
                ping = ping or start_ping(probe, size)
                time.sleep(max(0.0, began + end_s - time.monotonic()))
        result.update(self.reason(failure))
        code = 2 if ping is None else ping.poll()
        if code != 2:  # of 1, or while it waits, there was no answer; 2 is an error of its own, which tells nothing
            found["icmp" + suffix] = {"ok": code == 0, **self.reason(None)}


def start_ping(probe: dict[str, Any], size: int) -> subprocess.Popen[bytes] | None:
    """A running ``ping`` with as large a packet; None where it is not installed."""
    options = ["-n", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", str(size), "-I", probe["source"]]
    try:
        return subprocess.Popen(["ping", *options, probe["target"]], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    except OSError:
        return None


def endpoint(text: str) -> tuple[str, int]:
    """Address and port of ``0100007F:1F90``, as /proc/net/tcp writes them in the machine's own byte order."""
    address, _, port = text.partition(":")
    return socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)
