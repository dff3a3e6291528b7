"""The topology's types."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Collection
from typing import Literal

Kind = Literal["single", "direct", "switch", "ring", "management"]


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """One interface of a node with an address; in the topology, a twin that belongs to the interconnect.

    Attributes:
        subnet: network of its rail; the widest if the nodes' prefixes differ.
        mtu: current MTU in bytes.
        hca: its RDMA device, None on a network without RDMA.
        gid_index: index of the RoCE v2 GID for ``address`` in the table of ``hca``.
    """

    interface: str
    address: str
    subnet: str
    mtu: int
    speed_mbps: int | None
    hca: str | None
    gid_index: int | None

    @property
    def ip(self) -> ipaddress.IPv4Address:
        """``address``, parsed."""
        return ipaddress.IPv4Address(self.address)

    @property
    def network(self) -> ipaddress.IPv4Network:
        """``subnet``, parsed."""
        return ipaddress.IPv4Network(self.subnet)


@dataclasses.dataclass(frozen=True, slots=True)
class Rail:
    """One subnet of the interconnect and the link of each node on it."""

    subnet: str
    links: tuple[tuple[str, Link], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One node in its group.

    Attributes:
        rank: place in the group; 0 is the head.
        address: where Ray, Gloo and the engine of this node meet the others: on the first rail common to the
            group, on the management network in a ring, 127.0.0.1 where the node is alone.
        interface: the interface that carries ``address``.
        links: its twins in use, in the order of the rails.
        gid_index: RoCE v2 index if all its HCAs use the same, else None.
        idle_twins: further twins in the subnet of one of ``links``, which are not used.
    """

    name: str
    host: str
    rank: int
    address: str
    interface: str
    links: tuple[Link, ...]
    gid_index: int | None
    idle_twins: tuple[Link, ...] = ()

    @property
    def hcas(self) -> tuple[str, ...]:
        """Names of its HCAs in use."""
        return tuple(link.hca for link in self.links if link.hca)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """The nodes that hold one model together, head first.

    Attributes:
        kind: ``direct`` two nodes on the same rails, ``switch`` more of them, ``ring`` three nodes where each pair has
            its own subnets, ``management`` no interconnect found, ``single`` one node.
        missing: nodes that did not answer; the topology is that of the others.
        api_host: address that the API listens on; ``endpoint`` is its URL.
    """

    name: str
    members: tuple[Member, ...]
    kind: Kind
    api_host: str
    api_port: int
    endpoint: str
    ray_port: int = 6379
    master_port: int = 29501
    missing: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of its nodes, with those that did not answer."""
        return len(self.members) + len(self.missing)

    @property
    def names(self) -> tuple[str, ...]:
        """Its members' names."""
        return tuple(member.name for member in self.members)

    @property
    def prefix_lengths(self) -> tuple[int, ...]:
        """Prefix lengths of its rails, each once."""
        return tuple(sorted({link.network.prefixlen for member in self.members for link in member.links}))

    @property
    def head(self) -> Member:
        """The member with rank 0, or the first that answered."""
        return self.members[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Topology:
    """The whole cluster."""

    cluster: str
    groups: tuple[Group, ...]
    rails: tuple[Rail, ...]

    @property
    def members(self) -> dict[str, Member]:
        """Every member by its node's name."""
        return {member.name: member for group in self.groups for member in group.members}

    @property
    def by_rank(self) -> list[str]:
        """Names of the members of all groups, their heads first."""
        return [member.name for member in sorted(self.members.values(), key=lambda member: member.rank)]

    def of_groups(self, names: Collection[str]) -> Topology:
        """The same with some of its groups."""
        return dataclasses.replace(self, groups=tuple(group for group in self.groups if group.name in names))

    def group_of(self, node: str) -> Group:
        """The group of ``node``."""
        return next(group for group in self.groups if any(member.name == node for member in group.members))


EMPTY = Topology("", (), ())
"""That of no node."""
