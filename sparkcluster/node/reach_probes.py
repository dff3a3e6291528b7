"""What one node sends to test what it reaches of others, all at once.

Two kinds of small packet tell a firewall from a dead cable: UDP to a socket of ours, and, where that stays silent, the
kernel's ICMP echo. The echo of a large UDP packet is small, so that each direction is judged by itself; ICMP answers
with as much as it was sent, and counts only where UDP is filtered.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

RETRIES_S = (0.0, 0.25, 0.7)  # within one time-out; a single packet may be lost on a network that works
ICMP_AFTER_S = 0.2

# Values of linux/in.h, which the socket module has no name for. PROBE: never fragment, and do not believe a
# smaller path MTU that was learned earlier.
IP_MTU_DISCOVER = 10
IP_PMTUDISC_PROBE = 3

HEAD = struct.Struct("!16sIH")
_HEADERS_BYTES = 28  # IPv4 and UDP, or IPv4 and ICMP
# Errors that another machine reported, as opposed to our own kernel.
_TOLD = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ECONNRESET}

Probe = dict[str, Any]
Key = tuple[int, str]


def why(error: OSError) -> str:
    """Text of a system error."""
    return (error.strerror or str(error)).lower()


def drop(sock: socket.socket) -> None:
    """Close without leaving the port in TIME_WAIT, where the launch will want it."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    sock.close()


def checksum(data: bytes) -> int:
    """The internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total = int(sum(struct.unpack("!%dH" % (len(data) // 2), data)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def payload_bytes(probe: Probe, what: str, small: int) -> int:
    """Bytes of a packet without its headers: a full one fills the MTU."""
    return int(probe["size_bytes"]) - _HEADERS_BYTES if what.endswith("_full") else small


class Sockets:
    """What every probe needs: the token of this run, the time limit, and one event loop."""

    def __init__(self, token: bytes, limit_s: float) -> None:
        self.token = token
        self.limit_s = limit_s
        self.selector = selectors.DefaultSelector()

    def watch(self, sock: socket.socket, call: Callable[[socket.socket], None], write: bool = False) -> None:
        """Call ``call`` when ``sock`` is readable or connected."""
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_WRITE if write else selectors.EVENT_READ, call)

    def sender(self, address: str, call: Callable[[socket.socket], None], *kind: int) -> socket.socket:
        """A watched socket that sends packets from ``address`` and never fragments them."""
        sock = socket.socket(socket.AF_INET, *kind)
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        sock.bind((address, 0))
        self.watch(sock, call)
        return sock


class Probes:
    """Everything that this node probes, all at once.

    A try has ``id`` (UDP is ``id`` and its large packet ``id`` + 1), ``source``, ``target``, ``udp`` (port),
    ``size_bytes`` of a packet that fills the MTU or None, and ``tcp``: ports.
    """

    def __init__(self, node: Sockets, probes: list[Probe]) -> None:
        self.node = node
        self.began = time.monotonic()
        self.results: dict[str, dict[str, Any]] = {}
        self.pending: set[Key] = set()
        self.sent: dict[Key, float] = {}
        self.ports: dict[Key, int] = {}
        self.rounds = 0
        self.probes = {probe["id"]: probe for probe in probes}
        self.udp: dict[str, socket.socket] = {}
        self.icmp: Icmp | None = None
        for probe in probes:
            self.results[str(probe["id"])] = {"tcp": {}}
            for port in probe["tcp"]:
                self.connect(probe, port)
            self.pending.add((probe["id"], "udp"))
            if probe["size_bytes"]:
                self.pending.add((probe["id"], "udp_full"))

    def wait_s(self) -> float:
        """Seconds until something has to be done, unless something arrives."""
        past = time.monotonic() - self.began
        due = [at for at in (*RETRIES_S[self.rounds :], ICMP_AFTER_S, self.node.limit_s) if at > past]
        return max(0.001, min(due) - past) if due and self.rounds else 0.0

    def over(self) -> bool:
        """Whether every probe has a result; sends what is due."""
        past = time.monotonic() - self.began
        if self.rounds < len(RETRIES_S) and past >= RETRIES_S[self.rounds]:
            self.rounds += 1
            self.send_udp()
            if self.icmp is not None:
                self.icmp.send()
        if self.icmp is None and past >= ICMP_AFTER_S and any(what.startswith("udp") for _, what in self.pending):
            self.icmp = Icmp(self)
            self.icmp.send()
        if self.pending and past < self.node.limit_s:
            return False
        for number, what in list(self.pending):
            self.finish(number, what, ok=False, seen="no answer within %.1f s" % self.node.limit_s)
        if self.icmp is not None:
            self.icmp.close()
        return True

    def finish(self, number: int, what: str, *, ok: bool, seen: str = "", own: bool = False) -> None:
        """Record the result of a pending probe; later results are ignored. ``own``: it never left this node."""
        if (number, what) not in self.pending:
            return
        self.pending.discard((number, what))
        result: dict[str, Any] = {"ok": ok}
        if ok and (number, what) in self.sent:
            result["rtt_ms"] = round((time.monotonic() - self.sent[number, what]) * 1000, 3)
        if seen:
            result["seen"] = seen
        if own:
            result["own"] = True
        if not ok and (number, what) in self.ports:
            result["from"] = self.ports[number, what]
        results = self.results[str(number)]
        if what.startswith("tcp:"):
            results["tcp"][what[4:]] = result
        else:
            results[what] = result
        if ok and what.startswith("udp"):
            self.pending.discard((number, what.replace("udp", "icmp")))

    # UDP

    def send_udp(self) -> None:
        """Send every packet that has no answer yet."""
        for number, what in sorted(self.pending):
            if not what.startswith("udp"):
                continue
            probe, full = self.probes[number], what == "udp_full"
            size = payload_bytes(probe, what, 64)
            data = HEAD.pack(self.node.token, number + full, size & 0xFFFF).ljust(size, b"\0")
            self.sent[number, what] = time.monotonic()
            try:
                self.udp_from(probe["source"]).sendto(data, (probe["target"], probe["udp"]))
            except BlockingIOError:
                continue
            except OSError as error:
                if self.rounds == len(RETRIES_S) or error.errno == errno.EMSGSIZE:
                    self.finish(number, what, ok=False, seen=why(error), own=error.errno not in _TOLD)

    def udp_from(self, address: str) -> socket.socket:
        """The socket that sends from ``address``."""
        if address not in self.udp:
            self.udp[address] = self.node.sender(address, self.answered, socket.SOCK_DGRAM)
        return self.udp[address]

    def answered(self, sock: socket.socket) -> None:
        """Handle an answer."""
        data, _ = sock.recvfrom(1 << 16)
        if len(data) < HEAD.size or data[:16] != self.node.token:
            return
        _, number, size = HEAD.unpack(data[: HEAD.size])
        if number in self.probes:
            self.finish(number, "udp", ok=True)
        elif number - 1 in self.probes:
            self.finish(number - 1, "udp_full", ok=size + _HEADERS_BYTES == self.probes[number - 1]["size_bytes"])

    # TCP

    def connect(self, probe: Probe, port: int) -> None:
        """Start a connection."""
        what = "tcp:%d" % port
        key = (probe["id"], what)
        self.pending.add(key)
        self.sent[key] = time.monotonic()
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)

        def connected(sock: socket.socket) -> None:
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self.node.selector.unregister(sock)
            drop(sock)
            self.finish(probe["id"], what, ok=number == 0, seen=os.strerror(number).lower() if number else "")

        try:
            sock.bind((probe["source"], 0))
            self.ports[key] = sock.getsockname()[1]
            sock.connect((probe["target"], port))
        except BlockingIOError:
            pass
        except OSError as error:
            sock.close()
            # The refusal may arrive before connect returns.
            self.finish(probe["id"], what, ok=False, seen=why(error), own=error.errno not in _TOLD)
            return
        self.node.watch(sock, connected, write=True)


class Icmp:
    """ICMP echo, for targets that do not answer UDP: by socket where that is allowed, else by ``ping``."""

    def __init__(self, probes: Probes) -> None:
        self.probes = probes
        self.mark = os.getpid() & 0xFFFF
        self.raw = False
        self.sockets: dict[str, socket.socket] = {}
        self.programs: list[subprocess.Popen[bytes]] = []
        waiting = {(number, what.replace("udp", "icmp")) for number, what in probes.pending if what.startswith("udp")}
        # Where only the large packet was lost the small one is sent too: only together do they tell.
        self.keys: list[Key] = sorted(waiting | {(number, "icmp") for number, _ in waiting})
        probes.pending.update(self.keys)
        try:
            for address in {probes.probes[number]["source"] for number, _ in self.keys}:
                self.sockets[address] = self.open(address)
        except OSError:
            self.sockets = {}
            self.spawn()

    def open(self, address: str) -> socket.socket:
        """A socket for echoes: net.ipv4.ping_group_range allows it to all on Ubuntu, else root alone has one."""
        node = self.probes.node
        try:
            return node.sender(address, self.answered, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
        except PermissionError:
            self.raw = True
            return node.sender(address, self.answered, socket.SOCK_RAW, socket.IPPROTO_ICMP)

    def send(self) -> None:
        """Send every echo request that has no answer yet."""
        for place, (number, what) in enumerate(self.keys):
            if (number, what) not in self.probes.pending or not self.sockets:
                continue
            probe = self.probes.probes[number]
            size = payload_bytes(probe, what, 56)
            head = struct.pack("!BBHHH", 8, 0, 0, self.mark, place)
            data = b"\0" * size
            head = struct.pack("!BBHHH", 8, 0, checksum(head + data), self.mark, place)
            self.probes.sent[number, what] = time.monotonic()
            try:
                self.sockets[probe["source"]].sendto(head + data, (probe["target"], 0))
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self.probes.finish(number, what, ok=False, seen=why(error), own=True)

    def answered(self, sock: socket.socket) -> None:
        """An echo came back, with the IP header in front of it on a raw socket."""
        data = sock.recv(1 << 16)
        if self.raw:
            data = data[(data[0] & 0xF) * 4 :]
        kind, _, _, mark, place = struct.unpack("!BBHHH", data[:8])
        if kind == 0 and (not self.raw or mark == self.mark) and place < len(self.keys):
            self.probes.finish(*self.keys[place], ok=True)

    def spawn(self) -> None:
        """One ``ping`` for each echo; without it there is no result."""
        for number, what in self.keys:
            probe = self.probes.probes[number]
            size = payload_bytes(probe, what, 56)
            argv = ["ping", "-n", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", str(size)]
            argv += ["-I", probe["source"], probe["target"]]
            try:
                program = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            except OSError:
                self.probes.pending.difference_update(self.keys)
                return
            self.programs.append(program)
            threading.Thread(target=self.follow, args=(program, number, what), daemon=True).start()

    def follow(self, program: subprocess.Popen[bytes], number: int, what: str) -> None:
        """Record the result of a ``ping``; 0 means an answer, 1 none, 2 an error of its own."""
        code = program.wait()
        if code == 2:
            self.probes.pending.discard((number, what))
        elif code == 0:
            self.probes.finish(number, what, ok=True)

    def close(self) -> None:
        """Stop what still runs."""
        for program in self.programs:
            if program.poll() is None:
                program.kill()
