"""What the checks of bandwidth share: limits, which measurements are slow, to which node, and how to print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkcluster.checks.attribution import Way, by_common_node
from sparkcluster.checks.lists import abridged, listed
from sparkcluster.checks.registry import Context
from sparkcluster.facts.measured import Rate, RateKind
from sparkcluster.topology.model import Group

TWIN_GBIT_S = 80.0  # a slower twin is unhealthy; the lowest healthy figure seen is 92.6
HALF_GBIT_S = 46.0
HOT_PLUG_GBIT_S = (2.0, 20.0)  # 13.2 per rail was seen; no other cause is known to slow RDMA that much
BOTH_GBIT_S = 170.0  # 189.9 is the lowest healthy figure seen
TCP_GBIT_S = 4.0  # NCCL over sockets gets at least 8 on a healthy rail
SLOW_PING_MS = 0.8  # 0.28 is healthy; 1.0 was seen on a fabric that was reconfigured without a reboot
ALL_GATHER_GB_S = 18.0  # 21.9 with 16 GB; with 256 MiB the start-up takes a larger share
ONE_TWIN_GB_S = (9.0, 14.0)
RECONFIGURED_GB_S = 5.0  # 3.0 was seen while RDMA alone still did 196 Gb/s


def rates_of(context: Context, kind: RateKind) -> list[Rate]:
    """Measurements of one kind with a result."""
    return [rate for rate in context.measured.rates if rate.kind == kind and rate.gbit_s is not None]


def figure(rate: Rate) -> float:
    """Its result, 0 if there is none."""
    return rate.gbit_s or 0.0


def slow_twins(context: Context) -> list[Rate]:
    """RDMA over one HCA, slower than any healthy one."""
    return [rate for rate in rates_of(context, "rdma") if figure(rate) < TWIN_GBIT_S]


def tcp_floor(context: Context, rate: Rate) -> float:
    """Least TCP rate of a healthy rail in Gb/s: what any Spark reaches, or half the speed of a slower link."""
    speeds = [
        link.speed_mbps / 1000
        for member, link in context.links()
        if member.name in rate.nodes and link.subnet == rate.subnet and link.speed_mbps
    ]
    return min([TCP_GBIT_S, *(speed / 2 for speed in speeds)])


def all_gathers(context: Context) -> Iterator[tuple[Group, Rate]]:
    """Every all-gather with its group."""
    for rate in context.measured.rates:
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
    """Whether a group with two twins per node reaches only the bandwidth of one."""
    twins = min(len(member.hcas) for member in group.members)
    return twins > 1 and group.kind != "ring" and ONE_TWIN_GB_S[0] <= bus <= ONE_TWIN_GB_S[1]


def by_node(context: Context, rates: Iterable[Rate]) -> dict[str | None, list[Rate]]:
    """Measurements by the node that they have in common, None for a single pair."""
    result: dict[str | None, list[Rate]] = {}
    every = list(rates)
    for group in context.topology.groups:
        ways: dict[Way, list[Rate]] = {}
        for rate in every:
            if rate.nodes[0] in group.names:
                source, target = rate.nodes
                ways.setdefault((source, target), []).append(rate)
                # A link is slow for both ends, whichever direction was measured.
                ways.setdefault((target, source), [])
        for node, attributed in by_common_node(ways, nodes=len(group.members)).items():
            result.setdefault(node, []).extend(attributed)
    return result


def ends_of(rates: Iterable[Rate]) -> list[str]:
    """Nodes that took part, sorted."""
    return sorted({name for rate in rates for name in rate.nodes})


def between(node: str | None, rates: Iterable[Rate]) -> str:
    """``between a and b``, with ``node`` first."""
    ends = ends_of(rates)
    return f"between {listed(ends)}" if node is None else f"between {node} and {listed(e for e in ends if e != node)}"


def rails(rates: Iterable[Rate]) -> str:
    """Subnets of the measurements."""
    return listed(dict.fromkeys(sorted(rate.subnet or rate.over for rate in rates)))


def way(rate: Rate) -> str:
    """Ends of a measurement, and its interface or HCA."""
    over = "" if rate.kind == "collective" else f" {rate.over}"
    return f"{' to '.join(rate.nodes)}{over}" if len(rate.nodes) == 2 and over else listed(rate.nodes)


def seen(rates: Iterable[Rate]) -> str:
    """What was measured, literally."""
    kinds = {"tcp": "TCP", "rdma": "RDMA", "rdma-both": "RDMA"}
    return abridged(
        (
            f"{way(rate)} {kinds.get(rate.kind, rate.over)}: "
            + (rate.seen if rate.gbit_s is None else f"{rate.gbit_s:g} Gb/s")
            for rate in rates
        ),
        limit=8,
    )
