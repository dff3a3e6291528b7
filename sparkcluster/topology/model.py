"""Types of the topology."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Collection
from typing import Literal

CablingKind = Literal["single", "direct", "switch", "ring", "management"]


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """An interface of a node with an address; in the topology, a twin that belongs to the interconnect.

    Attributes:
        subnet: network of its rail; the widest if the nodes' prefixes differ.
        mtu: current MTU in bytes.
        hca: its RDMA device; None on a network without RDMA.
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
    """A subnet of the interconnect, and each node's link on it."""

    subnet: str
    links: tuple[tuple[str, Link], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A node in its group.

    Attributes:
        rank: place in the group; 0 is the head.
        address: where Ray, Gloo and the engine of this node listen for the other nodes: on the first rail that the
            group shares, on the management network for a ring, 127.0.0.1 for a single node.
        interface: the interface with ``address``.
        links: the twins in use, in the order of the rails.
        gid_index: the RoCE v2 index if all HCAs use the same, else None.
        idle_twins: unused twins that share a subnet with one of ``links``.
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
    """The nodes that serve one model together, head first.

    Attributes:
        kind: ``direct`` two nodes on the same rails, ``switch`` more nodes on them, ``ring`` three nodes with separate
            subnets for each pair, ``management`` no interconnect found, ``single`` one node.
        missing: nodes that did not answer; the topology covers the others.
        api_host: address that the API listens on; ``endpoint`` is its URL.
    """

    name: str
    members: tuple[Member, ...]
    kind: CablingKind
    api_host: str
    api_port: int
    endpoint: str
    ray_port: int = 6379
    master_port: int = 29501
    missing: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of nodes, including those that did not answer."""
        return len(self.members) + len(self.missing)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its members."""
        return tuple(member.name for member in self.members)

    @property
    def prefix_lengths(self) -> tuple[int, ...]:
        """Distinct prefix lengths of its rails."""
        return tuple(sorted({link.network.prefixlen for member in self.members for link in member.links}))

    @property
    def head(self) -> Member:
        """The member with rank 0, or the first that answered."""
        return self.members[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Topology:
    """The topology of the cluster."""

    cluster: str
    groups: tuple[Group, ...]
    rails: tuple[Rail, ...]

    @property
    def members(self) -> dict[str, Member]:
        """Every member by node name."""
        return {member.name: member for group in self.groups for member in group.members}

    @property
    def by_rank(self) -> list[str]:
        """Names of the members of all groups, sorted by rank."""
        return [member.name for member in sorted(self.members.values(), key=lambda member: member.rank)]

    def of_groups(self, names: Collection[str]) -> Topology:
        """The topology with only these groups."""
        return dataclasses.replace(self, groups=tuple(group for group in self.groups if group.name in names))

    def group_of(self, node: str) -> Group:
        """The group of ``node``."""
        return next(group for group in self.groups if any(member.name == node for member in group.members))


EMPTY = Topology("", (), ())
"""The topology without nodes."""
