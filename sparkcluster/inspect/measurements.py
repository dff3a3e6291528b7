"""The measurements of ``preflight --deep`` between two nodes, their rounds, and an estimate of the duration. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.facts.base import read
from sparkcluster.facts.between import Rate, RateKind
from sparkcluster.facts.model import Facts
from sparkcluster.topology.candidates import is_up
from sparkcluster.topology.model import Link, Member, Topology

Ends = tuple[Member, Member]
Rail = tuple[Link, Link]

# A container, the import of torch, NCCL's rings, a few rounds of 256 MiB.
COLLECTIVE_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """A transfer from the first node to the second, over one rail or several at the same time."""

    kind: RateKind
    ends: Ends
    rails: tuple[Rail, ...]

    @property
    def over(self) -> str:
        """The sending interface, or the HCAs."""
        return " and ".join(str(local.interface if self.kind == "tcp" else local.hca) for local, _ in self.rails)

    def rate(self, gbit_s: float | None, **more: Any) -> Rate:
        """The result of the measurement."""
        names = (self.ends[0].name, self.ends[1].name)
        return Rate(self.kind, names, self.over, gbit_s, subnet=self.rails[0][0].subnet, **more)

    def back(self) -> Measurement:
        """The same measurement in the other direction."""
        return Measurement(self.kind, self.ends[::-1], tuple(rail[::-1] for rail in self.rails))


def measurements(facts: Mapping[str, Facts], pair: Ends, without: Collection[str] = ()) -> list[Measurement]:
    """All measurements of a pair: TCP and RDMA each way, and both twins together; ``without`` nodes lack perftest."""
    rails = [links for links in shared(*pair) if all(up(facts, *end) for end in zip(pair, links, strict=True))]
    found = [Measurement("tcp", pair, (rail,)) for rail in rails]
    fast = [rail for rail in rails if all(link.hca and link.gid_index is not None for link in rail)]
    fast = [] if {end.name for end in pair} & {*without} else fast
    found += [Measurement("rdma", pair, (rail,)) for rail in fast]
    found = [way for one in found for way in (one, one.back())]
    if len(fast) > 1:
        found.append(Measurement("rdma-both", pair, tuple(fast)))
    return found


def estimate(rounds: Sequence[Sequence[Sequence[Measurement]]], sending_s: float) -> float:
    """Duration of ``rounds`` in seconds: a round lasts as long as its longest pair.

    Besides sending, each takes a second: two programs over SSH, and the handshake of ib_write_bw.
    """
    return sum(max(map(len, together), default=0) for together in rounds) * (sending_s + 1)


def in_words(seconds: float) -> str:
    """``about 40 s``, ``about 3 minutes``."""
    if seconds < 90:
        return f"about {max(5, math.ceil(seconds / 5) * 5)} s"
    return f"about {math.ceil(seconds / 60)} minutes"


def pairs_of(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Every pair once, in as few rounds as possible, with no node twice in a round (the circle method)."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(first, other) for first, other in pairs if first is not None and other is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in found if pairs]


def rounds(topology: Topology, without: Collection[str] = ()) -> list[list[Ends]]:
    """The rounds of all groups in parallel, without the nodes that cannot take part."""
    groups = [pairs_of([name for name in group.names if name not in without]) for group in topology.groups]
    members = topology.members
    side_by_side = itertools.zip_longest(*groups, fillvalue=[])
    return [
        [(members[first], members[other]) for pairs in together for first, other in pairs] for together in side_by_side
    ]


def shared(first: Member, other: Member) -> Iterator[Rail]:
    """Links of two nodes on the same rail; if twins share a subnet, in order."""
    for subnet in dict.fromkeys(link.subnet for link in first.links):
        mine = [link for link in first.links if link.subnet == subnet]
        remote = [link for link in other.links if link.subnet == subnet]
        yield from zip(mine, remote, strict=False)


def up(facts: Mapping[str, Facts], member: Member, link: Link) -> bool:
    """Whether the node reports the link as up."""
    interfaces = read(facts[member.name].interfaces) or ()
    return all(is_up(interface) for interface in interfaces if interface.name == link.interface)


def with_ranks(facts: Mapping[str, Facts]) -> set[str]:
    """Nodes with a running rank."""
    ranks = {name: read(node_facts.ranks) or () for name, node_facts in facts.items()}
    return {name for name, found in ranks.items() if any(rank.state == "running" for rank in found)}
