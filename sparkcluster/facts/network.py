"""Network facts of a node: interfaces, HCAs, GIDs, listening sockets."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field

from sparkcluster.facts.base import Fact, Few, Port, Version

_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}", re.ASCII)  # unicast, not multicast
_NO_MAC = "00:00:00:00:00:00"


def _valid(parse: Callable[[str], object]) -> AfterValidator:
    """Accepts texts for which ``parse`` does not raise, unchanged."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


Device = Annotated[str, Field(pattern=r"^[^\s/\x00-\x1f]{1,64}$")]
"""Name of an interface or HCA."""
Address = Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+$"), _valid(ipaddress.ip_address)]
Prefix = Annotated[str, _valid(ipaddress.IPv4Interface)]


def port_of(name: str) -> str:
    """Physical port of a twin by its kernel name, such as p1 for enp1s0f1np1; empty if unknown."""
    found = re.search(r"f([01])(?:np\d)?$", name, re.ASCII)
    return f"p{found[1]}" if found else ""


class Interface(Fact):
    """A network interface; ``addresses`` are IPv4 with prefix, such as 192.168.177.11/24.

    ``pci`` is its PCI address, such as 0000:01:00.1; None if it is not a PCI device.
    """

    name: Device
    mac: str
    operstate: str
    carrier: bool
    mtu: int
    speed_mbps: int | None = None
    addresses: Few[Prefix] = ()
    phys_port_name: str | None = None
    driver: str | None = None
    wireless: bool = False
    pci: Annotated[str, Field(pattern=r"^[0-9a-f]{4,8}(:[0-9a-f]{2}){2}\.[0-7]$")] | None = None

    @property
    def port(self) -> str:
        """Physical port of a twin, such as p0, from the driver or else from the name; empty if unknown."""
        found = re.fullmatch(r"p\d{1,2}", self.phys_port_name or "", re.ASCII)
        return found[0] if found else port_of(self.name)

    def ipv4(self) -> tuple[ipaddress.IPv4Interface, ...]:
        """The IPv4 addresses."""
        return tuple(ipaddress.IPv4Interface(address) for address in self.addresses)


class Gid(Fact):
    """A non-empty entry of an HCA's GID table."""

    index: int
    value: Annotated[str, _valid(ipaddress.IPv6Address)]
    type: str | None
    netdev: str | None

    @property
    def ipv4(self) -> str | None:
        """The mapped IPv4 address, or None."""
        mapped = ipaddress.IPv6Address(self.value).ipv4_mapped
        return None if mapped is None else str(mapped)


class Hca(Fact):
    """An RDMA device; port 1, since a ConnectX-7 function of a Spark has only one.

    ``pcie`` is the negotiated PCIe link, such as ``Gen5 x4``; None if the kernel does not report it.
    """

    name: Device
    netdev: str | None
    state: str
    phys_state: str
    firmware: Version | None = None
    pcie: Annotated[str, Field(pattern=r"^Gen[1-9] x[1-9][0-9]?$")] | None = None
    gids: Few[Gid] = ()

    @property
    def netdevs(self) -> set[str | None]:
        """Interfaces that it sends for: its GID table also has the GIDs of the port's VLANs (roce_gid_mgmt.c)."""
        return {self.netdev, *(gid.netdev for gid in self.gids)}

    @property
    def active(self) -> bool:
        """Whether the port can carry traffic; DOWN with LINK_UP is not active."""
        return self.state == "ACTIVE"

    def roce_v2_index(self, address: str) -> int | None:
        """Index of the RoCE v2 GID for IPv4 ``address``, or None."""
        return next((gid.index for gid in self.gids if gid.type == "RoCE v2" and gid.ipv4 == address), None)


class Listener(Fact):
    """A listening TCP socket; ``process`` is None if it belongs to another user."""

    address: str
    port: Port
    process: str | None = None


def is_own(mac: str) -> bool:
    """Whether ``mac`` is the address of one interface: neither multicast nor all zeros."""
    return _MAC.fullmatch(mac) is not None and mac != _NO_MAC
