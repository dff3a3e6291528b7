"""Who measures with whom, and how long all of it takes. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Sequence

from sparkcluster.inspect.pairs import shared
from sparkcluster.topology.model import Topology

Two = tuple[str, str]

# What a measurement costs beside its sending: two programs over SSH, for ib_write_bw its own handshake and margins.
_TCP_START_S = 0.5
_RDMA_START_S = 1.5
# A container, the import of torch, NCCL's rings, a few rounds of 256 MiB.
COLLECTIVE_S = 30.0
SEND_S = 20.0  # the same for two ranks and 512 MiB


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How thoroughly ``--deep`` measures.

    Attributes:
        seconds: for which each transfer sends.
        streams: TCP connections at once.
        messages: small messages whose median time counts.
        collective: whether the serving image is asked for an all-gather.
    """

    seconds: float = 2.0
    streams: int = 4
    messages: int = 200
    collective: bool = True


def rounds(names: Sequence[str]) -> list[list[Two]]:
    """Every pair once, in as few rounds as can be, so that no node is in two pairs of a round (the circle method)."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(first, other) for first, other in pairs if first is not None and other is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in found if pairs]


def schedule(topology: Topology, without: Collection[str] = ()) -> list[list[Two]]:
    """The rounds of all groups side by side, without the nodes that cannot take part."""
    groups = [[member.name for member in group.members if member.name not in without] for group in topology.groups]
    side_by_side = itertools.zip_longest(*(rounds(names) for names in groups if len(names) > 1), fillvalue=[])
    return [list(itertools.chain.from_iterable(together)) for together in side_by_side]


def estimate(
    topology: Topology, options: Options, *, rdma: bool = True, collective: bool = True, sends: bool = False
) -> float:
    """Seconds that ``deep`` will take: a round lasts as long as its longest pair.

    ``rdma``: ib_write_bw is there; ``collective``: the serving image will be asked; ``sends``: for each HCA too.
    """
    members = topology.members
    total = 0.0
    for pairs in schedule(topology):
        total += max(_pair_s([*shared(members[first], members[other])], options, rdma=rdma) for first, other in pairs)
    if sends:
        total += len(schedule(topology)) * SEND_S * max(len(member.hcas) for member in members.values())
    joined = any(len(group.members) > 1 for group in topology.groups)
    return total + (COLLECTIVE_S if collective and options.collective and joined else 0.0)


def in_words(seconds: float) -> str:
    """``about 40 s``, ``about 3 minutes``."""
    if seconds < 90:
        return f"about {max(5, math.ceil(seconds / 5) * 5)} s"
    return f"about {math.ceil(seconds / 60)} minutes"


def _pair_s(links: Iterable[object], options: Options, *, rdma: bool) -> float:
    rails = len(list(links))
    tcp = 2 * rails * (options.seconds + _TCP_START_S)
    each = 2 * rails + (1 if rails > 1 else 0)
    return tcp + (each * (perftest_seconds(options.seconds) + _RDMA_START_S) if rdma else 0.0)


def perftest_seconds(seconds: float) -> int:
    """``seconds`` as perftest takes them: whole ones."""
    return max(1, round(seconds))
