"""QSFP ports of a machine, and what is known of a machine by its interfaces alone. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Literal

from sparkcluster.facts.base import read
from sparkcluster.facts.network import Interface
from sparkcluster.facts.survey import Survey
from sparkcluster.topology.candidates import order_on_bus

DRIVER = "mlx5_core"
"""Driver of the ConnectX-7, which has the QSFP ports."""

Key = tuple[str, str]
"""Node and name of a port."""


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """A QSFP port and its twins in the order of the PCI bus; ``name`` is p0 or p1, or that of its only interface."""

    node: str
    name: str
    twins: tuple[Interface, ...]

    @property
    def key(self) -> Key:
        """What tells it from all other ports."""
        return self.node, self.name

    @property
    def cabled(self) -> bool:
        """Whether there is a link."""
        return any(twin.carrier for twin in self.twins)

    def __str__(self) -> str:
        return f"{self.name} of {self.node}"


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Ports that hear each other; ``others`` names machines on it that were not surveyed."""

    ports: tuple[Port, ...]
    others: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["cable", "switch"]:
        """A cable has two ends. A switch between two ports, of which nothing else is heard, counts as a cable."""
        return "switch" if len(self.ports) > 2 or self.others else "cable"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes."""
        return tuple(dict.fromkeys(port.node for port in self.ports))

    def ports_of(self, node: str) -> tuple[Port, ...]:
        """The ports of ``node`` on it, in the order of the PCI bus."""
        return tuple(port for port in self.ports if port.node == node)


@dataclasses.dataclass(frozen=True, slots=True)
class Loose:
    """A port with a link, whose other end is none of the nodes, or does not confirm it.

    Attributes:
        seen: who answers there, in words.
        unaddressed: whether it has neither an IPv4 nor an IPv6 address, without which it finds no neighbour.
    """

    port: Port
    seen: tuple[str, ...]
    unaddressed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with the cabling: its stable ``name``, the node, one line of text, and what to do."""

    name: str
    node: str | None
    text: str
    hint: str


def ports_of(node: str, survey: Survey) -> tuple[Port, ...]:
    """The QSFP ports of a node, in the order of the PCI bus; none where the ConnectX-7 is absent."""
    twins: dict[str, list[Interface]] = {}
    for interface in sorted(read(survey.interfaces) or (), key=order_on_bus):
        if interface.driver == DRIVER:
            twins.setdefault(interface.port or interface.name, []).append(interface)
    return tuple(Port(node, name, tuple(each)) for name, each in twins.items())


def foreign_subnets(surveys: Mapping[str, Survey]) -> list[IPv4Network]:
    """Subnets of interfaces that are no QSFP ports, which are never a rail."""
    interfaces = [each for survey in surveys.values() for each in read(survey.interfaces) or ()]
    return [address.network for each in interfaces if each.driver != DRIVER for address in each.ipv4()]
