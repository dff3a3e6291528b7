"""Checks of the bandwidth between the nodes.

Healthy figures of a DGX Spark: ib_write_bw 92 to 112 Gb/s per twin, 190 to 198 Gb/s for both twins of a port; NCCL
all-gather bus bandwidth 21.9 to 24.2 GB/s over both twins, 11 to 12 over one, above 10 in a ring of three, 1 to 3 over
TCP (NVIDIA/dgx-spark-playbooks, nccl and connect-two-sparks; owners' reports on the NVIDIA forum).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from sparkcluster.checks.attribution import Way, between, by_common_node, ends, rails
from sparkcluster.checks.check import DEEP, PREFLIGHT, REBOOT, Context, Seen, bandwidth_check, check
from sparkcluster.checks.compare import abridged, listed
from sparkcluster.facts.between import Rate, RateKind
from sparkcluster.findings import here, on_node
from sparkcluster.printable import shell
from sparkcluster.topology.model import Group

TWIN_GBIT_S = 80.0  # lowest healthy figure reported: 92.6
HALF_GBIT_S = 46.0
HOT_PLUG_GBIT_S = (2.0, 20.0)  # 13.2 per rail was reported; no other known cause slows RDMA that much
BOTH_GBIT_S = 170.0  # lowest healthy figure reported: 189.9
TCP_GBIT_S = 4.0  # NCCL over sockets gets at least 8 on a healthy rail
SLOW_PING_MS = 0.8  # healthy: 0.28; 1.0 was reported for a fabric reconfigured without a reboot
FLOORS_GBIT_S: dict[RateKind, float] = {"rdma": TWIN_GBIT_S, "rdma-both": BOTH_GBIT_S}
ALL_GATHER_GB_S = 18.0  # 21.9 with 16 GB; start-up costs more with 256 MiB
ONE_TWIN_GB_S = (9.0, 14.0)
RECONFIGURED_GB_S = 5.0  # 3.0 was reported while ib_write_bw reached 196 Gb/s

SPARK = "NVIDIA/dgx-spark-playbooks, nccl and connect-two-sparks"
REBOOT_BOTH = ("reboot both nodes with the cable connected: a port that was hot-plugged stays slow", REBOOT)
SHOWS_HCAS = here("sparkcluster plan INVENTORY -v", "shows NCCL_IB_HCA and what env of the playbook overrides")
NCCL_DEBUG = "NCCL_DEBUG: INFO in env of the playbook shows what NCCL chose"


@bandwidth_check(
    "NET-050",
    "Each twin, and both twins of a port together, reach their RDMA bandwidth",
    source=SPARK,
    remedy=("reseat the cable at both ends", *REBOOT_BOTH),
)
def twin(context: Context) -> Iterator[Seen]:
    """Every token waits for the slowest rail: at 13 Gb/s tensor parallelism is slower than a single node.

    About 13 Gb/s per rail with everything else normal means that the port was hot-plugged. With two nodes it is unknown
    which is slow; with more, the node in all slow pairs is named. If each twin is healthy but both together are slow,
    this is a warning: they may share a subnet.
    """
    slow = slow_twins(context)
    for node, rates in by_node(context, slow).items():
        least = min(figure(rate) for rate in rates)
        hot_plugged = HOT_PLUG_GBIT_S[0] <= least <= HOT_PLUG_GBIT_S[1]
        yield Seen(
            f"RDMA of {node or listed(ends(rates))} on {rails(rates)} reaches {least:g} Gb/s, "
            f"healthy is 92 to 112" + (": degraded after a hot-plug" if hot_plugged else ""),
            seen(rates),
            REBOOT_BOTH if least <= HOT_PLUG_GBIT_S[1] else None,
            severity="error" if least < HALF_GBIT_S else "warning",
            node=node,
        )
    for rate in rates_of(context, "rdma-both"):
        if figure(rate) < BOTH_GBIT_S and not any(set(rate.nodes) == set(each.nodes) for each in slow):
            yield Seen(
                f"both twins together reach {figure(rate):g} Gb/s between {listed(rate.nodes)}, healthy is 190 to 198",
                seen([rate]),
                (on_node("ip -br addr", "each twin needs its own subnet", on="both"), *REBOOT_BOTH),
                severity="warning",
            )


@bandwidth_check(
    "NET-052",
    "The group's all-gather uses RDMA and is as fast as its links",
    source=f"{SPARK}; NCCL documentation, troubleshooting; owners' reports of 16 Gb/s with correct answers, of 196 Gb/s"
    " by RDMA but 24 by NCCL, and of a ping of 1.0 ms instead of 0.28",
    remedy=(NCCL_DEBUG, *REBOOT_BOTH),
)
def collective(context: Context) -> Iterator[Seen]:
    """Every layer ends in a collective, so a slow collective slows every token.

    Measured in the serving image with 256 MiB; published figures are for 16 GB and somewhat higher. About 3 GB/s
    despite healthy RDMA is an error: the fabric was reconfigured without a reboot. A round trip of 1 ms for small
    messages is another sign of that. 11 to 12 GB/s is the bandwidth of one twin. NCCL over sockets (1 to 3 GB/s) is an
    error, although answers are correct.
    """
    slow, reported = {name for rate in slow_twins(context) for name in rate.nodes}, bool(slow_twins(context))
    for group, rate in all_gathers(context):
        bus = figure(rate) / 8
        if "Socket" in rate.over and any(member.hcas for member in group.members):
            result = "no result" if rate.gbit_s is None else f"{bus:.1f} GB/s"
            remedy = [on_node("ls /dev/infiniband", "if missing, sudo modprobe -a ib_uverbs rdma_ucm"), SHOWS_HCAS]
            yield Seen(f"NCCL of {context.called(group)} uses TCP instead of its HCAs: {result}", seen([rate]), remedy)
        if "IB" not in rate.over or rate.gbit_s is None or slow & set(rate.nodes) or bus >= floor(group):
            continue
        what = f"the all-gather of {context.called(group)} reaches {bus:.1f} GB/s"
        if bus <= RECONFIGURED_GB_S:
            reported = True
            names = listed(member.name for member in group.members)
            yield Seen(
                f"{what} although RDMA is healthy: the fabric was reconfigured without a reboot",
                seen([rate, *rates_of(context, "rdma")]),
                [dataclasses.replace(REBOOT, on=names, note="with the cables connected")],
            )
        elif one_twin(group, bus):
            remedy = [SHOWS_HCAS, on_node("ibdev2netdev", on="every node")]
            yield Seen(f"{what}, as with one twin, but two are in use", seen([rate]), remedy, severity="warning")
        else:
            summary = f"{what}, healthy is at least {floor(group):g}"
            yield Seen(summary, seen([rate]), severity="warning")
    late = [rate for rate in rates_of(context, "tcp") if (rate.latency_ms or 0) >= SLOW_PING_MS]
    for node, rates in () if reported else by_node(context, late).items():
        most = max(rate.latency_ms or 0 for rate in rates)
        yield Seen(
            f"the round trip {between(node, rates)} on {rails(rates)} takes {most:.2g} ms, healthy is 0.28",
            "; ".join(f"{way(rate)}: {rate.latency_ms:.2g} ms" for rate in rates),
            [dataclasses.replace(REBOOT, on="both nodes", note="the fabric was changed without a reboot")],
            severity="warning",
            node=node,
        )


@bandwidth_check(
    "NET-056",
    "Each rail reaches its TCP bandwidth",
    severity="warning",
    source="owners' reports of 8 to 24 Gb/s over sockets",
    remedy="check MTU, errors and speed of the interface",
)
def tcp(context: Context) -> Iterator[Seen]:
    """Weights and images are copied over TCP; without RDMA, tokens depend on it, too.

    Checked only if RDMA was not measured on the same rail, since the CPU also limits TCP.
    """
    by_rdma = {(frozenset(rate.nodes), rate.subnet) for rate in rates_of(context, "rdma")}
    slow = [
        rate
        for rate in rates_of(context, "tcp")
        if figure(rate) < tcp_floor(context, rate) and (frozenset(rate.nodes), rate.subnet) not in by_rdma
    ]
    for node, rates in by_node(context, slow).items():
        least = min(figure(rate) for rate in rates)
        errors = on_node(shell("ip -s link show", rates[0].over), "errors and drops", on=rates[0].nodes[0])
        summary = f"TCP of {node or listed(ends(rates))} on {rails(rates)} reaches {least:g} Gb/s"
        yield Seen(summary, seen(rates), (errors, *REBOOT_BOTH), node=node)


@check(
    "NET-058",
    "Every link has a measurement of RDMA and of the all-gather with NCCL",
    stage="deep",
    source="linux-rdma/perftest: with a wrong GID index it prints a header and no result, and exits with code 0",
    remedy=[dataclasses.replace(DEEP, note="complete only with the cluster down, and the image on every node")],
)
def unmeasured(context: Context) -> Iterator[Seen]:
    """A link that gives no result here also fails in the launch, a minute later and with another message.

    A warning for a node without any measurement; info if only RDMA was not measured. TCP figures do not replace
    it: a port degraded to 13 Gb/s looks healthy over TCP.
    """
    missing = [rate for rate in context.measured.rates if rate.gbit_s is None]
    missing = [rate for rate in missing if rate.kind != "rdma-both"] or missing
    for group, rate in all_gathers(context):
        if rate.gbit_s is None and "Socket" not in rate.over:
            yield Seen(f"the all-gather of {listed(rate.nodes)} gave no result", seen([rate]), (PREFLIGHT, NCCL_DEBUG))
        elif rate.gbit_s is not None and rate.over.startswith("Gloo"):
            called = context.called(group)
            summary = f"the all-gather of {called} was measured with Gloo: torch in the image finds no GPU"
            yield Seen(summary, seen([rate]), [on_node("nvidia-smi", on="every node")], severity="info")
    for kind, program, command in (
        ("rdma", "ib_write_bw", "show_gids"),
        ("rdma-both", "ib_write_bw", "show_gids"),
        ("tcp", "TCP", "sudo ufw status verbose"),
    ):
        for node, rates in by_node(context, [rate for rate in missing if rate.kind == kind]).items():
            summary = f"{program} gave no result {between(node, rates)} on {rails(rates)}"
            yield Seen(summary, seen(rates), (on_node(command, on="both"), PREFLIGHT), node=node)
    for name, reason in context.measured.unasked.items():
        yield Seen(f"{name} could not be measured", reason, [DEEP], severity="warning", node=name)
    for name in context.measured.without_perftest:
        yield Seen(
            f"RDMA of {name} was not measured",
            "ib_write_bw is not installed",
            [on_node("sudo apt-get install perftest")],
            severity="info",
            node=name,
            step="perftest",
        )
    if (skipped := context.measured.skipped.get("collective")) is not None:
        yield Seen("no all-gather was measured", skipped, severity="info")


def rates_of(context: Context, kind: RateKind) -> list[Rate]:
    """Measurements of ``kind`` with a result."""
    return [rate for rate in context.measured.rates if rate.kind == kind and rate.gbit_s is not None]


def figure(rate: Rate) -> float:
    """The result in Gb/s, 0 if there is none."""
    return rate.gbit_s or 0.0


def slow_twins(context: Context) -> list[Rate]:
    """RDMA measurements of single twins that are too slow."""
    return [rate for rate in rates_of(context, "rdma") if figure(rate) < TWIN_GBIT_S]


def tcp_floor(context: Context, rate: Rate) -> float:
    """Minimum TCP rate of a healthy rail in Gb/s: ``TCP_GBIT_S``, or half the speed of a slower link."""
    links = [link for name, link in context.links() if name in rate.nodes and link.subnet == rate.subnet]
    return min([TCP_GBIT_S, *(link.speed_mbps / 2000 for link in links if link.speed_mbps)])


def all_gathers(context: Context) -> Iterator[tuple[Group, Rate]]:
    """Every all-gather with its group."""
    for rate in context.measured.rates:
        if rate.kind == "collective":
            yield context.topology.group_of(rate.nodes[0]), rate


def floor(group: Group) -> float:
    """Minimum bus bandwidth of a healthy group, in GB/s."""
    twins = min(len(member.hcas) for member in group.members)
    return 10.0 if group.kind == "ring" or twins < 2 else ALL_GATHER_GB_S


def one_twin(group: Group, bus: float) -> bool:
    """Whether a group with two twins per node reaches only the bandwidth of one."""
    return floor(group) == ALL_GATHER_GB_S and ONE_TWIN_GB_S[0] <= bus <= ONE_TWIN_GB_S[1]


def by_node(context: Context, rates: Iterable[Rate]) -> dict[str | None, list[Rate]]:
    """Measurements by their common node; None for a single pair."""
    result: dict[str | None, list[Rate]] = {}
    every = list(rates)
    for group in context.topology.groups:
        ways: dict[Way, list[Rate]] = {}
        for rate in every:
            if rate.nodes[0] in group.names:
                source, target = rate.nodes
                ways.setdefault((source, target), []).append(rate)
                # A slow link counts for both ends, whichever direction was measured.
                ways.setdefault((target, source), [])
        for node, attributed in by_common_node(ways, nodes=len(group.members)).items():
            result.setdefault(node, []).extend(attributed)
    return result


def way(rate: Rate) -> str:
    """Nodes of a measurement, and its interface or HCA."""
    over = "" if rate.kind == "collective" else f" {rate.over}"
    return f"{' to '.join(rate.nodes)}{over}" if len(rate.nodes) == 2 and over else listed(rate.nodes)


def seen(rates: Iterable[Rate]) -> str:
    """The measured values, for ``Seen.seen``."""
    kinds = {"tcp": "TCP", "rdma": "RDMA", "rdma-both": "RDMA"}
    return abridged(
        (
            f"{way(rate)} {kinds.get(rate.kind, rate.over)}: "
            + (rate.seen if rate.gbit_s is None else f"{rate.gbit_s:g} Gb/s")
            for rate in rates
        ),
        limit=8,
    )
