"""What the checks of measurements have in common: which are slow, whose they are, how they are told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkcluster.checks.attribution import Way, by_common_node
from sparkcluster.checks.registry import Context
from sparkcluster.checks.wording import abridged, listed
from sparkcluster.facts.measured import Measured, Rate, RateKind
from sparkcluster.topology.model import Group

TWIN_GBIT_S = 80.0  # below it a twin is slow; the lowest healthy figure seen is 92.6
HALF_GBIT_S = 46.0
HOT_PLUG_GBIT_S = (2.0, 20.0)  # about 13.2 a rail was seen; nothing else is known to slow RDMA that far
BOTH_GBIT_S = 170.0  # 189.9 is the lowest healthy figure seen
TCP_GBIT_S = 4.0  # NCCL over sockets gets 8 at least on a healthy rail
SLOW_PING_MS = 0.8  # 0.28 is healthy, 1.0 was seen on a fabric that was reconfigured without a reboot
ALL_GATHER_GB_S = 18.0  # 21.9 with 16 GB; a buffer of 256 MiB spends more of its time on starting
ONE_TWIN_GB_S = (9.0, 14.0)
RECONFIGURED_GB_S = 5.0  # 3.0 was seen where RDMA alone still did 196 Gb/s


def rates_of(context: Context, kind: RateKind) -> list[Rate]:
    """Measurements of one kind that have a result."""
    measured = context.measured or Measured(())
    return [rate for rate in measured.rates if rate.kind == kind and rate.gbit_s is not None]


def figure(rate: Rate) -> float:
    """Its result, 0 where there is none."""
    return rate.gbit_s or 0.0


def slow_twins(context: Context) -> list[Rate]:
    """RDMA over one HCA that is slower than any healthy one."""
    return [rate for rate in rates_of(context, "rdma") if figure(rate) < TWIN_GBIT_S]


def tcp_floor(context: Context, rate: Rate) -> float:
    """What a rail should carry by TCP: a figure that any Spark reaches, or half of what a slower link could."""
    speeds = [
        link.speed_mbps / 1000
        for member, link in context.links()
        if member.name in rate.nodes and link.subnet == rate.subnet and link.speed_mbps
    ]
    return min([TCP_GBIT_S, *(speed / 2 for speed in speeds)])


def all_gathers(context: Context) -> Iterator[tuple[Group, Rate]]:
    """Every all-gather with its group."""
    for rate in context.measured.rates if context.measured else ():
        if rate.kind == "collective":
            yield context.topology.group_of(rate.nodes[0]), rate


def gathers(context: Context) -> Iterator[tuple[Group, Rate, float]]:
    """All-gathers over RDMA with their bus bandwidth in GB/s, of groups whose links are not slow themselves."""
    slow = {name for rate in slow_twins(context) for name in rate.nodes}
    for group, rate in all_gathers(context):
        if "IB" in rate.over and rate.gbit_s is not None and not slow & set(rate.nodes):
            yield group, rate, rate.gbit_s / 8


def floor(group: Group) -> float:
    """The least bus bandwidth of a healthy group, in GB/s."""
    twins = min(len(member.hcas) for member in group.members)
    return 10.0 if group.kind == "ring" or twins < 2 else ALL_GATHER_GB_S


def one_twin(group: Group, bus: float) -> bool:
    """Whether two twins move what one does."""
    twins = min(len(member.hcas) for member in group.members)
    return twins > 1 and group.kind != "ring" and ONE_TWIN_GB_S[0] <= bus <= ONE_TWIN_GB_S[1]


def by_node(context: Context, rates: Iterable[Rate]) -> dict[str | None, list[Rate]]:
    """Measurements by the node that they have in common, None for a pair by itself."""
    found: dict[str | None, list[Rate]] = {}
    chosen = list(rates)
    for group in context.topology.groups:
        names = {member.name for member in group.members}
        ways: dict[Way, list[Rate]] = {}
        for rate in chosen:
            if rate.nodes[0] in names:
                source, target = rate.nodes
                ways.setdefault((source, target), []).append(rate)
                # A link is slow for both of its ends, whichever direction was measured.
                ways.setdefault((target, source), [])
        for node, held in by_common_node(ways, nodes=len(names)).items():
            found.setdefault(node, []).extend(held)
    return found


def ends_of(rates: Iterable[Rate]) -> list[str]:
    """Nodes that took part, each once."""
    return list(dict.fromkeys(name for rate in rates for name in rate.nodes))


def between(node: str | None, rates: Iterable[Rate]) -> str:
    """Whom a finding is about: the node to blame, else both ends."""
    return node or listed(sorted(ends_of(rates)))


def where(node: str | None, rates: Iterable[Rate]) -> str:
    """The same as a place."""
    ends = sorted(ends_of(rates))
    return f"between {listed(ends)}" if node is None else f"between {node} and {listed(e for e in ends if e != node)}"


def rails(rates: Iterable[Rate]) -> str:
    """Subnets that they went over."""
    return listed(dict.fromkeys(sorted(rate.subnet or rate.over for rate in rates)))


def way(rate: Rate) -> str:
    """From where to where, and over what."""
    over = "" if rate.kind == "collective" else f" {rate.over}"
    return f"{' to '.join(rate.nodes)}{over}" if len(rate.nodes) == 2 and over else listed(rate.nodes)


def seen(rates: Iterable[Rate]) -> str:
    """What was measured, literally."""
    kinds = {"tcp": "TCP", "rdma": "RDMA", "rdma-both": "RDMA"}
    said = []
    for rate in rates:
        result = rate.seen if rate.gbit_s is None else f"{rate.gbit_s:g} Gb/s"
        said.append(f"{way(rate)} {kinds.get(rate.kind, rate.over)}: {result}")
    return abridged(said, limit=8)
