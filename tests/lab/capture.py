"""Captures frames at the switches of a lab, to show which addresses were contacted, and from where."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sparkcluster.errors import LabError
from sparkcluster.lab import network
from sparkcluster.lab.machine import wait_until
from sparkcluster.lab.state import State

LIMIT_S = 10.0
"""Limit for tcpdump to start, and to catch up at the end."""

MARK_PORT = 9
"""Port of a datagram that ends a capture (discard, RFC 863)."""

PATTERNS = (
    # The port is the part after the last dot; an IPv4 address contains three dots.
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
    """A frame, captured at the port of the switch or cable where it arrived.

    Attributes:
        interface: that port: ``uplink`` is the machine, ``s0mgmt`` the management interface of the first Spark,
            ``s0p1s0f0`` one of its ConnectX-7 interfaces (the name of its HCA without ``roce``).
        protocol: ``IP``, ``IP6``, or ``ARP`` for an ARP request for the address ``destination``.
        port: destination port of TCP and UDP, otherwise None.
    """

    interface: str
    protocol: str
    source: str
    destination: str
    port: int | None


@contextlib.contextmanager
def capture(state: State) -> Iterator[list[Packet]]:
    """Yield a list that contains all packets sent within the block, in order, after the block.

    Raises:
        LabError: tcpdump is not installed, or ended early.
    """
    packets: list[Packet] = []
    command = ["ip", "netns", "exec", state.switch, "tcpdump", "-i", "any", "-Q", "in", "-nn", "-q", "-l"]
    command.append("--immediate-mode")
    broadcast = state.gateway.rpartition(".")[0] + ".255"
    with tempfile.NamedTemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

        # By its name: tcpdump shares the position in the open file.
        lines = Path(output.name)

        def written(text: str) -> bool:
            return text in lines.read_text() or process.poll() is not None

        try:
            _wait(lambda: written("listening on"), lines)
            yield packets
            mark = f" > {broadcast}.{MARK_PORT}:"
            _wait(lambda: _send_mark(state.gateway, broadcast) or written(mark), lines)
        finally:
            process.terminate()
            process.wait()
        text = lines.read_text()
    if mark not in text:
        raise LabError(f"tcpdump ended: {text.strip()[-200:]}", hint="sudo apt-get install -y tcpdump")
    # A bridge itself also receives broadcasts.
    bridges = set(network.bridges(state.spec))
    found = [packet for line in text[: text.index(mark)].splitlines() if (packet := parse(line)) is not None]
    packets += [packet for packet in found if packet.interface not in bridges]


def _wait(true: Callable[[], bool], lines: Path) -> None:
    if not wait_until(true, limit_s=LIMIT_S, step_s=0.1):
        raise LabError(f"tcpdump is silent: {lines.read_text().strip()[-200:]}", step="capture")


def _send_mark(gateway: str, broadcast: str) -> bool:
    """Send the datagram that ends a capture, repeatedly, since a full buffer drops it; returns False."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.bind((gateway, 0))
        sender.sendto(b"", (broadcast, MARK_PORT))
    return False


def parse(line: str) -> Packet | None:
    """The packet in a line of tcpdump, None for any other line."""
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
