"""The netplan file that gives every cabled twin an address in its own subnet: path, text and subnets."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping

NETPLAN = "/etc/netplan/40-cx7.yaml"
"""The file in NVIDIA's guides, which setup replaces."""
MTU = 9000
"""As in NVIDIA's guides; the ports support up to 9978."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}", re.ASCII)


def is_plain(interface: str) -> bool:
    """Whether an interface's name needs no quoting in YAML and in a shell; ``text`` requires that."""
    return _NAME.fullmatch(interface) is not None


def unused(taken: Iterable[ipaddress.IPv4Network]) -> Iterator[ipaddress.IPv4Network]:
    """Subnets from 192.168.177.0/24 (as in NVIDIA's guides) to 192.168.254.0/24 that do not overlap with ``taken``."""
    networks = list(taken)
    for third in range(177, 255):
        subnet = ipaddress.IPv4Network(f"192.168.{third}.0/24")
        if not any(subnet.overlaps(network) for network in networks):
            yield subnet


def numbered(subnet: ipaddress.IPv4Network, number: int) -> ipaddress.IPv4Interface:
    """The address with host number ``number`` in ``subnet``."""
    return ipaddress.IPv4Interface(f"{subnet.network_address + number}/{subnet.prefixlen}")


def text(addresses: Mapping[str, ipaddress.IPv4Interface]) -> str:
    """Text of the file: for each interface its address, jumbo frames, and no other address."""
    lines = ["network:", "  version: 2", "  ethernets:"]
    for name, address in addresses.items():
        lines += [
            f"    {name}:",
            f"      addresses: [{address}]",
            "      dhcp4: false",
            "      link-local: []",
            f"      mtu: {MTU}",
        ]
    return "\n".join(lines) + "\n"
