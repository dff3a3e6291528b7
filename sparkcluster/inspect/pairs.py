"""Which node tries to reach which, by what. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from sparkcluster.facts.base import read
from sparkcluster.facts.engine import engine_of, has_ray
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec
from sparkcluster.topology.candidates import is_up
from sparkcluster.topology.model import Group, Link, Member, Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """One node's way to another over one rail, or over the management network (``subnet`` None).

    Attributes:
        size_bytes: of a packet that fills the rail's MTU; None where no such packet is to be sent.
        ports: the ports that the launch will use on the target there, each with who will listen.
    """

    source: str
    target: str
    subnet: str | None
    source_address: str
    target_address: str
    size_bytes: int | None
    ports: tuple[tuple[int, str], ...] = ()


def pairs(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> tuple[Pair, ...]:
    """Every ordered pair of nodes of a group, on every rail that they share and wherever else its ranks meet.

    What another check condemns is left out: a link that is down, an address that two nodes have, and the large packet
    where MTUs differ.
    """
    return tuple(itertools.chain.from_iterable(_of_group(spec, facts, group) for group in topology.groups))


def _of_group(spec: Spec, facts: Mapping[str, Facts], group: Group) -> Iterator[Pair]:
    ports = fixed_ports(spec, facts, group)
    owners = Counter(link.address for member in group.members for link in member.links)
    for source, target in itertools.permutations(group.members, 2):
        here = ports if target.rank == 0 else ()
        met = False
        for local, remote in shared(source, target):
            met = met or remote.address == target.address
            if not (up(facts, source, local) and up(facts, target, remote)):
                continue
            if owners[local.address] > 1 or owners[remote.address] > 1:
                continue
            yield Pair(
                source.name,
                target.name,
                remote.subnet,
                local.address,
                remote.address,
                remote.mtu if local.mtu == remote.mtu else None,
                here if remote.address == target.address else (),
            )
        if not met:
            yield Pair(source.name, target.name, None, source.address, target.address, None, here)


def shared(first: Member, other: Member) -> Iterator[tuple[Link, Link]]:
    """Links of two nodes on one rail; where twins share a subnet, the first with the first."""
    for subnet in dict.fromkeys(link.subnet for link in first.links):
        mine = [link for link in first.links if link.subnet == subnet]
        remote = [link for link in other.links if link.subnet == subnet]
        yield from zip(mine, remote, strict=False)


def fixed_ports(spec: Spec, facts: Mapping[str, Facts], group: Group) -> tuple[tuple[int, str], ...]:
    """The ports on which a group's head will listen for its other nodes.

    Both are named where it is still open by what the ranks will be joined: a Ray may be brought along.
    """
    ray, master = (group.ray_port, "Ray"), (group.master_port, "the engine's rendezvous")
    if spec.playbook.executor == "native":
        return (master,)
    if spec.playbook.executor == "ray" or has_ray(engine_of(facts[group.head.name])):
        return (ray,)
    return ray, master


def with_ranks(facts: Mapping[str, Facts]) -> set[str]:
    """The nodes on which a rank runs."""
    ranks = {name: read(node_facts.ranks) or () for name, node_facts in facts.items()}
    return {name for name, found in ranks.items() if any(rank.state == "running" for rank in found)}


def up(facts: Mapping[str, Facts], member: Member, link: Link) -> bool:
    """Whether a link can carry anything, as its node says."""
    interfaces = read(facts[member.name].interfaces) or ()
    return all(is_up(interface) for interface in interfaces if interface.name == link.interface)
