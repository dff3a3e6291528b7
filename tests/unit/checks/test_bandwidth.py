"""Measurements compared with figures of healthy Sparks and of known faults."""

from __future__ import annotations

import itertools

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import Context
from sparkcluster.facts.between import Measured, Rate

RAILS = {"rocep1s0f1": "192.168.177.0/24", "roceP2p1s0f1": "192.168.178.0/24"}
NAMES = ("alpha", "beta", "gamma", "delta")


@pytest.fixture
def found(spark, cluster):
    """Findings of ``number`` Sparks; figures are healthy except for the arguments."""

    def look(number=2, rdma=lambda *_: 108.0, tcp=lambda *_: 25.0, both=197.0, bus=22.4, over="NCCL over IB",
             latency=lambda *_: 0.28, drop=(), rates=(), **measured):  # fmt: skip
        names = NAMES[:number]
        facts = {
            name: spark(
                {"enp1s0f1np1": f"192.168.177.{11 + place}/24", "enP2p1s0f1np1": f"192.168.178.{11 + place}/24"},
                management=f"192.168.86.{11 + place}/24",
            )
            for place, name in enumerate(names)
        }
        spec = cluster({name: f"192.168.86.{11 + place}" for place, name in enumerate(names)})
        every = list(rates)
        for source, target in itertools.permutations(names, 2):
            for hca, subnet in RAILS.items():
                every.append(Rate("rdma", (source, target), hca, rdma(source, target, subnet), subnet=subnet))
                over_tcp = tcp(source, target, subnet)
                every.append(Rate("tcp", (source, target), "enp", over_tcp, latency(source, target), subnet=subnet))
            if source < target:
                every.append(Rate("rdma-both", (source, target), "both", both))
        every.append(Rate("collective", names, over, None if bus is None else bus * 8))
        kept = tuple(rate for rate in every if rate.kind not in drop)
        context = Context(spec, facts, topology.build(spec, facts), measured=Measured(kept, **measured))
        return checks.run_stage(context, ("deep",))

    return look


def only(findings, code, node, severity="error"):
    assert [(finding.code, finding.node, finding.severity) for finding in findings] == [(code, node, severity)], (
        findings
    )
    assert findings[0].remedy
    assert findings[0].seen
    return findings[0]


@pytest.mark.parametrize("number", [2, 4])
def test_healthy_figures_give_no_finding(found, number):
    assert found(number) == []
    assert found(number, rdma=lambda *_: 92.57, both=189.85, bus=21.9) == []


def test_the_hot_plug_frequency_band_is_reported_with_its_remedy(found):
    finding = only(found(rdma=lambda *_: 13.2, both=26.4, bus=3.2), "NET-050", None)
    assert "reaches 13.2 Gb/s" in finding.summary
    assert "degraded after a hot-plug" in finding.summary
    assert finding.remedy[0].startswith("reboot both nodes with the cable connected")


def test_of_three_nodes_the_one_with_only_slow_links_is_named(found):
    def rdma(source, target, _):
        return 13.1 if "beta" in (source, target) else 108.0

    finding = only(found(3, rdma=rdma, bus=3.0), "NET-050", "beta")
    assert "13.1 Gb/s" in finding.summary


def test_of_four_nodes_the_single_slow_pair_is_reported(found):
    def rdma(source, target, subnet):
        return 55.0 if {source, target} == {"beta", "delta"} and subnet == RAILS["rocep1s0f1"] else 108.0

    finding = only(found(4, rdma=rdma), "NET-050", None, "warning")
    assert finding.summary.startswith("RDMA of beta and delta on 192.168.177.0/24 reaches 55 Gb/s")
    assert "hot-plug" not in finding.summary


@pytest.mark.parametrize(
    ("measured", "code"),
    [
        ({"both": 108.0}, "NET-050"),
        ({"bus": 15.8}, "NET-052"),
        ({"bus": 11.6}, "NET-052"),
        ({"drop": ("rdma", "rdma-both"), "tcp": lambda *_: 0.19}, "NET-056"),
    ],
    ids=["twins share one link", "no known reason", "one twin carries all", "TCP where RDMA was not measured"],
)
def test_a_suboptimal_setting_is_a_warning(found, measured, code):
    only(found(**measured), code, None, "warning")


def test_tcp_instead_of_rdma(found):
    finding = only(found(bus=2.0, over="NCCL over Socket"), "NET-052", None)
    assert "2.0 GB/s" in finding.summary
    assert any("/dev/infiniband" in line for line in finding.remedy)


def test_a_misconfigured_fabric_is_detected_from_its_all_gather(found):
    finding = only(found(bus=3.0, latency=lambda *_: 1.0), "NET-052", None)
    assert "108 Gb/s" in finding.seen
    assert "reboot" in finding.remedy[0]


def test_tcp_without_rdma_is_also_detected_from_round_trips(found):
    late = found(3, latency=lambda a, b: 1.0 if "beta" in (a, b) else 0.28)
    only(late, "NET-052", "beta", "warning")


def test_a_measurement_without_a_result_is_a_failure(found):
    rates = [Rate("rdma", ("alpha", "beta"), "rocep1s0f1", None, seen="no result row, exit code 0",
                  subnet=RAILS["rocep1s0f1"])]  # fmt: skip
    finding = only(found(drop=("rdma-both", "collective", "tcp"), rates=rates), "NET-058", None)
    assert "exit code 0" in finding.seen


def test_a_skipped_measurement_is_reported(found):
    findings = found(drop=("rdma", "rdma-both"), without_perftest=("alpha", "beta"))
    assert [(finding.code, finding.node, finding.severity) for finding in findings] == [
        ("NET-058", "alpha", "info"),
        ("NET-058", "beta", "info"),
    ]
    finding = only(found(drop=("collective",), skipped={"collective": "a rank runs on beta"}), "NET-058", None, "info")
    assert finding.seen == "a rank runs on beta"
    only(found(unasked={"beta": "connection to beta broke"}), "NET-058", "beta", "warning")
