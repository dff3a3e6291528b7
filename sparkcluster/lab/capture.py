"""Frames that enter the switches of a lab, so that a test can say which addresses were contacted, and from where."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from typing import IO, NamedTuple

from sparkcluster.errors import LabError
from sparkcluster.lab import network
from sparkcluster.lab.state import State

MARK_PORT = 9
"""Port of a datagram that ends a capture (discard, RFC 863)."""

PATTERNS = (
    # The port is the last part after a dot; an IPv4 address has three dots of its own.
    re.compile(
        r"^\S+ (?P<interface>\S+) +\S+ +(?P<protocol>IP6?) "
        r"(?P<source>\d+\.\d+\.\d+\.\d+|[0-9a-f:]+)(?:\.\d+)? > "
        r"(?P<destination>\d+\.\d+\.\d+\.\d+|[0-9a-f:]+)(?:\.(?P<port>\d+))?: "
    ),
    re.compile(
        r"^\S+ (?P<interface>\S+) +\S+ +(?P<protocol>ARP), Request who-has (?P<destination>[0-9.]+)(?: \(\S+\))? "
        r"tell (?P<source>[0-9.]+),"
    ),
)
"""Lines of `tcpdump -nn -q` on all interfaces: tcpdump 4.99, print-ip.c, print-ip6.c and print-arp.c."""


class Packet(NamedTuple):
    """A frame at the port of the switch or cable where it came in.

    Attributes:
        interface: that port: ``uplink`` is the machine, ``s0mgmt`` the management interface of the first Spark,
            ``s0p1s0f0`` one of its ConnectX-7 interfaces (the name of its HCA without ``roce``).
        protocol: ``IP``, ``IP6``, or ``ARP`` for a question who has the address ``destination``.
        port: destination port of TCP and UDP, else None.
    """

    interface: str
    protocol: str
    source: str
    destination: str
    port: int | None


@contextlib.contextmanager
def capture(state: State) -> Iterator[list[Packet]]:
    """Yield a list; when the block has ended, it holds all packets that were sent meanwhile, in their order.

    Raises:
        LabError: tcpdump is not installed, or ended early.
    """
    packets: list[Packet] = []
    command = ["ip", "netns", "exec", state.switch, "tcpdump", "-i", "any", "-Q", "in", "-nn", "-q", "-l"]
    command.append("--immediate-mode")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            _read(process.stdout, "listening on")
            yield packets
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mark:
                mark.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                mark.bind((state.gateway, 0))
                broadcast = state.gateway.rpartition(".")[0] + ".255"
                mark.sendto(b"", (broadcast, MARK_PORT))
            lines = _read(process.stdout, f" > {broadcast}.{MARK_PORT}:")
        finally:
            process.terminate()
    # A bridge itself also takes in what is broadcast on it.
    bridges = set(network.bridges(state.spec))
    packets += [
        packet for line in lines[:-1] if (packet := parse(line)) is not None and packet.interface not in bridges
    ]


def parse(line: str) -> Packet | None:
    """The packet in a line of tcpdump, None for another line."""
    for pattern in PATTERNS:
        if found := pattern.match(line):
            groups = found.groupdict()
            port = groups.get("port")
            return Packet(
                groups["interface"],
                groups["protocol"],
                groups["source"],
                groups["destination"],
                int(port) if port else None,
            )
    return None


def _read(stream: IO[str], until: str) -> list[str]:
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if until in line:
            return lines
    raise LabError(f"tcpdump ended: {''.join(lines[-1:]).strip()}", hint="sudo apt-get install -y tcpdump")
