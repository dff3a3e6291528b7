"""Local networks; ``discover`` contacts addresses in them, and hosts named by the user."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import netifaces

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_VIRTUAL = ("lo", "docker", "br-", "virbr", "veth")
"""Prefixes of interfaces that reach only this machine, its containers and its virtual machines."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attached:
    """An address of this machine with its network and interface."""

    interface: str
    address: ipaddress.IPv4Interface | ipaddress.IPv6Interface


def attached() -> tuple[Attached, ...]:
    """Addresses of this machine's interfaces, without loopback and container bridges."""
    return tuple(
        found
        for interface in netifaces.interfaces()
        if not interface.startswith(_VIRTUAL)
        for family, entries in netifaces.ifaddresses(interface).items()
        if family in (netifaces.AF_INET, netifaces.AF_INET6)
        for found in _read(interface, entries)
    )


def _read(interface: str, entries: Iterable[Mapping[Any, str]]) -> Iterator[Attached]:
    for entry in entries:
        address = ipaddress.ip_address(entry["addr"].partition("%")[0])
        try:
            mask = ipaddress.ip_address(entry["mask"].partition("/")[0])
        except (KeyError, ValueError):
            continue  # a tunnel has no network
        yield Attached(interface, ipaddress.ip_interface((address, int(mask).bit_count())))


def network_of(address: IpAddress, networks: Iterable[Attached]) -> Attached | None:
    """The first of ``networks`` that contains ``address``."""
    return next((each for each in networks if address in each.address.network), None)
