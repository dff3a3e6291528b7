"""Checks of what was measured between the nodes.

Healthy figures of a DGX Spark, in 10^9 bits per second by ib_write_bw: one twin 92 to 112, both twins of a port 190
to 198; NCCL's all-gather over both 21.9 to 24.2 GB/s of bus bandwidth, over one 11 to 12, in a ring of three above 10,
over TCP 1 to 3 (NVIDIA/dgx-spark-playbooks, nccl and connect-two-sparks; owners' reports on the NVIDIA forum).
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.rates import (
    BOTH_GBIT_S,
    HALF_GBIT_S,
    HOT_PLUG_GBIT_S,
    RECONFIGURED_GB_S,
    SLOW_PING_MS,
    all_gathers,
    between,
    by_node,
    figure,
    floor,
    gathers,
    one_twin,
    rails,
    rates_of,
    seen,
    slow_twins,
    tcp_floor,
    way,
    where,
)
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.checks.wording import listed

SPARK = "NVIDIA/dgx-spark-playbooks, nccl and connect-two-sparks"
REBOOT = ("reboot both nodes with the cable in: a port that was plugged in while it ran stays slow", "sudo reboot")


@check(
    "NET-050",
    "A twin carries by RDMA what a twin can",
    stage="deep",
    scope="interconnect",
    source=SPARK,
    remedy="reboot both nodes with the cable in",
)
def twin(context: Context) -> Iterator[Seen]:
    """Every token waits for the slower rail: at 13 Gb/s tensor parallelism is slower than one node alone.

    About 13 Gb/s a rail with all else normal is a port that was hot-plugged. Between two nodes it cannot be told
    which of them is slow; of more, the one that all slow pairs have in common is named.
    """
    for node, rates in by_node(context, slow_twins(context)).items():
        least = min(figure(rate) for rate in rates)
        band = HOT_PLUG_GBIT_S[0] <= least <= HOT_PLUG_GBIT_S[1]
        yield Seen(
            node,
            f"{between(node, rates)} {'carry' if node is None else 'carries'} {least:g} Gb/s by RDMA on "
            f"{rails(rates)}, a healthy twin 92 to 112" + (": degraded after a hot-plug" if band else ""),
            seen(rates),
            REBOOT if least <= HOT_PLUG_GBIT_S[1] else ("reseat the cable on both ends", *REBOOT),
            severity="error" if least < HALF_GBIT_S else "warning",
        )


@check(
    "NET-051",
    "Both twins of a port carry together what two can",
    stage="deep",
    severity="warning",
    scope="interconnect",
    source=SPARK,
    remedy="give the twins subnets of their own and one MTU, then reboot with the cable in",
)
def both(context: Context) -> Iterator[Seen]:
    """NCCL uses both at once, and gets no more than they do."""
    slow = {(rate.nodes, rate.subnet) for rate in slow_twins(context)}
    for rate in rates_of(context, "rdma-both"):
        if figure(rate) < BOTH_GBIT_S and not any(set(rate.nodes) == set(nodes) for nodes, _ in slow):
            yield Seen(
                None,
                f"both twins together carry {figure(rate):g} Gb/s between {listed(rate.nodes)}, healthy is 190 to 198",
                seen([rate]),
                ("ip -br addr   on both: each twin in a subnet of its own", *REBOOT),
            )


@check(
    "NET-052",
    "The group's all-gather is as fast as its links",
    stage="deep",
    severity="warning",
    scope="interconnect",
    source=SPARK,
    remedy="reboot all nodes of the group with the cables in",
)
def collective(context: Context) -> Iterator[Seen]:
    """Every layer ends in such a step: what it loses, each token loses.

    Measured in the serving image with 256 MiB, where the published figures have 16 GB: somewhat less is to be expected.
    """
    for group, rate, bus in gathers(context):
        if floor(group) > bus > RECONFIGURED_GB_S and not one_twin(group, bus):
            yield Seen(
                None,
                f"the all-gather of {group.name} moves {bus:.1f} GB/s, healthy is {floor(group):g} and more",
                seen([rate]),
                ("NCCL_DEBUG=INFO in the playbook's env shows what NCCL chose", *REBOOT),
            )


@check(
    "NET-053",
    "NCCL goes over RDMA",
    stage="deep",
    scope="interconnect",
    source="NVIDIA NCCL documentation, troubleshooting; owners' reports of 16 Gb/s with the right answers",
    remedy="see that /dev/infiniband is there and the HCAs are ACTIVE",
)
def fallback(context: Context) -> Iterator[Seen]:
    """Over sockets it moves 1 to 3 GB/s in place of 22, and the answers are right: nobody notices but by the clock."""
    for group, rate in all_gathers(context):
        if "Socket" in rate.over and any(member.hcas for member in group.members):
            bus = "no result" if rate.gbit_s is None else f"{rate.gbit_s / 8:.1f} GB/s"
            yield Seen(
                None,
                f"NCCL of {group.name} goes over TCP, not over its HCAs: {bus}",
                seen([rate]),
                (
                    "ls /dev/infiniband   on every node; sudo modprobe -a ib_uverbs rdma_ucm where it is missing",
                    "sparkcluster plan INVENTORY   shows NCCL_IB_HCA and what the playbook's env overrides",
                ),
            )


@check(
    "NET-054",
    "The fabric works as it did before it was reconfigured",
    stage="deep",
    scope="interconnect",
    source="owners' reports of 196 Gb/s by RDMA beside 24 by NCCL, and a ping of 1.0 ms in place of 0.28",
    remedy="reboot all nodes of the group",
)
def reconfigured(context: Context) -> Iterator[Seen]:
    """RDMA by itself looks healthy, and NCCL gets an eighth of it, until the nodes are rebooted.

    Told by an all-gather of about 3 GB/s beside healthy RDMA, or by small messages that take 1 ms there and back.
    """
    told = False
    for group, rate, bus in gathers(context):
        if bus <= RECONFIGURED_GB_S:
            told = True
            names = listed(member.name for member in group.members)
            yield Seen(
                None,
                f"the all-gather of {group.name} moves {bus:.1f} GB/s though RDMA does not look slow: "
                "reconfigured without a reboot",
                seen([rate, *rates_of(context, "rdma")]),
                (f"sudo reboot   on {names}, with the cables in",),
            )
    late = [rate for rate in rates_of(context, "tcp") if (rate.latency_ms or 0) >= SLOW_PING_MS]
    if told or slow_twins(context):
        return
    for node, rates in by_node(context, late).items():
        most = max(rate.latency_ms or 0 for rate in rates)
        yield Seen(
            node,
            f"small messages take {most:.2g} ms {where(node, rates)} on {rails(rates)} and back, healthy is 0.28",
            "; ".join(f"{way(rate)}: {rate.latency_ms:.2g} ms" for rate in rates),
            ("reboot both nodes: so it is after a change of the fabric without one", "sudo reboot"),
            severity="warning",
        )


@check(
    "NET-055",
    "NCCL uses both twins",
    stage="deep",
    severity="warning",
    scope="interconnect",
    source=SPARK,
    remedy="let NCCL_IB_HCA name both twins on every node",
)
def half(context: Context) -> Iterator[Seen]:
    """One twin alone gives 11 to 12 GB/s in place of 22 to 24."""
    for group, rate, bus in gathers(context):
        if bus < floor(group) and one_twin(group, bus):
            yield Seen(
                None,
                f"the all-gather of {group.name} moves {bus:.1f} GB/s: what one twin carries, though two are in use",
                seen([rate]),
                ("sparkcluster plan INVENTORY   shows NCCL_IB_HCA of every node", "ibdev2netdev   on every node"),
            )


@check(
    "NET-056",
    "A rail carries TCP as it should",
    stage="deep",
    severity="warning",
    scope="interconnect",
    source="owners' reports of 8 to 24 Gb/s by sockets",
    remedy="look at MTU, errors and speed of the interface",
)
def tcp(context: Context) -> Iterator[Seen]:
    """Weights and images are copied over it, and without RDMA every token waits for it.

    Judged only where RDMA was not measured on the same rail, since that says more: TCP takes the processor's time, too.
    """
    told = {(frozenset(rate.nodes), rate.subnet) for rate in rates_of(context, "rdma")}
    slow = [
        rate
        for rate in rates_of(context, "tcp")
        if figure(rate) < tcp_floor(context, rate) and (frozenset(rate.nodes), rate.subnet) not in told
    ]
    for node, rates in by_node(context, slow).items():
        least = min(figure(rate) for rate in rates)
        yield Seen(
            node,
            f"{between(node, rates)} {'move' if node is None else 'moves'} {least:g} Gb/s by TCP on {rails(rates)}",
            seen(rates),
            (f"ip -s link show {rates[0].over}   on {rates[0].nodes[0]}: errors and drops", *REBOOT),
        )


@check(
    "NET-057",
    "Every measurement has a result",
    stage="deep",
    scope="interconnect",
    source="linux-rdma/perftest: a wrong GID index ends in a header, no result row and exit code 0",
    remedy="see the GID table and the log of the side that gave none",
)
def result(context: Context) -> Iterator[Seen]:
    """What fails here fails in the launch too, a minute later and in other words."""
    missing = [rate for rate in (context.measured.rates if context.measured else ()) if rate.gbit_s is None]
    alone = [rate for rate in missing if rate.kind != "rdma-both"] or missing
    for kind in dict.fromkeys(rate.kind for rate in alone):
        chosen = [rate for rate in alone if rate.kind == kind]
        if kind == "collective":
            for rate in chosen:
                if "Socket" not in rate.over:
                    yield Seen(
                        None,
                        f"the all-gather of {listed(rate.nodes)} gave no result",
                        seen([rate]),
                        ("sparkcluster preflight INVENTORY", "docker logs and NCCL_DEBUG=INFO tell more in a launch"),
                    )
            continue
        for node, rates in by_node(context, chosen).items():
            name = "ib_write_bw" if kind.startswith("rdma") else "TCP"
            yield Seen(
                node,
                f"{name} gave no result {where(node, rates)} on {rails(rates)}",
                seen(rates),
                ("show_gids   on both", "sparkcluster preflight INVENTORY") if name == "ib_write_bw"
                else ("sudo ufw status verbose   on both", "sparkcluster preflight INVENTORY"),
            )  # fmt: skip


@check(
    "NET-058",
    "RDMA could be measured",
    stage="deep",
    severity="info",
    scope="interconnect",
    source="linux-rdma/perftest",
    remedy="sudo apt-get install perftest",
)
def perftest(context: Context) -> Iterator[Seen]:
    """TCP does not show what RDMA carries: a port that is degraded to 13 Gb/s looks healthy by it."""
    for name in context.measured.without_perftest if context.measured else ():
        yield Seen(
            name,
            f"RDMA of {name} was not measured",
            "ib_write_bw is not there",
            ("sudo apt-get install perftest",),
        )


@check(
    "NET-059",
    "The all-gather could be measured by NCCL",
    stage="deep",
    severity="info",
    scope="interconnect",
    remedy="run it while nothing serves, with the image on every node",
)
def unmeasured(context: Context) -> Iterator[Seen]:
    """What NCCL makes of the links in the serving image is not known."""
    if context.measured is None:
        return
    reason = context.measured.skipped.get("collective")
    if reason is not None:
        yield Seen(
            None,
            "no all-gather was measured",
            reason,
            ("sparkcluster preflight INVENTORY --deep   while nothing serves and the image is on every node",),
        )
    for group, rate in all_gathers(context):
        if rate.over == "Gloo" and rate.gbit_s is not None:
            yield Seen(
                None,
                f"the all-gather of {group.name} was measured by Gloo: torch sees no GPU in the image",
                seen([rate]),
                ("nvidia-smi   on every node",),
            )


@check(
    "NET-060",
    "Every node could be measured",
    stage="deep",
    severity="warning",
    remedy="mend its connection and run it again",
)
def unasked(context: Context) -> Iterator[Seen]:
    """What its links carry is not known."""
    for name, reason in (context.measured.unasked if context.measured else {}).items():
        yield Seen(name, f"{name} could not be measured", reason, ("sparkcluster preflight INVENTORY --deep",))
