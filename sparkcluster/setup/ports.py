"""QSFP ports and other subnets of a machine, from its interfaces. Pure."""

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
"""Driver of the ConnectX-7, the adapter with the QSFP ports."""

Key = tuple[str, str]
"""Node and port name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """A QSFP port and its twins in PCI order; ``name`` is p0, p1 or the name of its only interface."""

    node: str
    name: str
    twins: tuple[Interface, ...]

    @property
    def key(self) -> Key:
        """Unique key of the port."""
        return self.node, self.name

    @property
    def cabled(self) -> bool:
        """Whether any twin has a link."""
        return any(twin.carrier for twin in self.twins)

    def __str__(self) -> str:
        return f"{self.name} of {self.node}"


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Ports that see each other; ``others`` are machines on the segment that were not surveyed."""

    ports: tuple[Port, ...]
    others: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["cable", "switch"]:
        """A switch between two ports, with no other machine seen, counts as a cable."""
        return "switch" if len(self.ports) > 2 or self.others else "cable"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the connected nodes."""
        return tuple(dict.fromkeys(port.node for port in self.ports))

    def ports_of(self, node: str) -> tuple[Port, ...]:
        """The ports of ``node`` on this segment, in PCI order."""
        return tuple(port for port in self.ports if port.node == node)


@dataclasses.dataclass(frozen=True, slots=True)
class Loose:
    """A port with a link whose other end is not a surveyed node, or does not see it.

    Attributes:
        seen: descriptions of its neighbours.
        unaddressed: whether it has no IP address and therefore cannot find neighbours.
    """

    port: Port
    seen: tuple[str, ...]
    unaddressed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """A problem with its stable ``name``, the node, one line of text, and a remedy."""

    name: str
    node: str | None
    text: str
    hint: str


def ports_of(node: str, survey: Survey) -> tuple[Port, ...]:
    """The QSFP ports of a node, in PCI order; empty if the ConnectX-7 is absent."""
    twins: dict[str, list[Interface]] = {}
    for interface in sorted(read(survey.interfaces) or (), key=order_on_bus):
        if interface.driver == DRIVER:
            twins.setdefault(interface.port or interface.name, []).append(interface)
    return tuple(Port(node, name, tuple(each)) for name, each in twins.items())


def foreign_subnets(surveys: Mapping[str, Survey]) -> list[IPv4Network]:
    """Subnets of interfaces other than QSFP ports; rails must not use them."""
    interfaces = [each for survey in surveys.values() for each in read(survey.interfaces) or ()]
    return [address.network for each in interfaces if each.driver != DRIVER for address in each.ipv4()]
