"""Healthy clusters have at most info findings, and no check crashes."""

from __future__ import annotations

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import CATALOGUE, Context
from sparkcluster.facts.parse import parse
from sparkcluster.topology.model import EMPTY
from tests.unit import golden

from .conftest import PORT_0, rails, reported

PORT_1 = ("enp1s0f1np1", "enP2p1s0f1np1")
FOUR = ("a", "b", "c", "d")


def recorded(name):
    return parse(name, golden.read(golden.ROOT / "facts" / name / "facts.yaml"))


def grave(findings):
    return [finding for finding in findings if finding.severity != "info"]


@pytest.mark.parametrize("names", [("solo",), ("alpha", "beta"), FOUR])
def test_sparks_on_a_switch_have_no_finding(see, names):
    assert see(names=names) == []


def test_each_spark_can_use_a_different_port_and_different_interface_names(see):
    other = {"rails": {PORT_1[0]: "192.168.177.12/24", PORT_1[1]: "192.168.178.12/24"}, "gid": 5}
    assert see(described={"beta": other}) == []
    named = {"rails": {"eth8": "192.168.177.12/24", "eth9": "192.168.178.12/24"},
             "names": {"eth8": "mlx5_0", "eth9": "mlx5_1"}, "gid": 6}  # fmt: skip
    assert see(described={"beta": named}) == []


def test_a_ring_of_three_has_no_finding(see):
    ring = {
        "a": {PORT_1[0]: "10.0.0.1/24", PORT_1[1]: "10.0.1.1/24", PORT_0[0]: "10.0.4.1/24", PORT_0[1]: "10.0.5.1/24"},
        "b": {PORT_1[0]: "10.0.2.2/24", PORT_1[1]: "10.0.3.2/24", PORT_0[0]: "10.0.0.2/24", PORT_0[1]: "10.0.1.2/24"},
        "c": {PORT_1[0]: "10.0.4.3/24", PORT_1[1]: "10.0.5.3/24", PORT_0[0]: "10.0.2.3/24", PORT_0[1]: "10.0.3.3/24"},
    }
    assert see(names=("a", "b", "c"), described={name: {"rails": own} for name, own in ring.items()}) == []


def test_a_network_without_rdma_is_exactly_one_warning_per_node(see):
    findings = see(described={name: {"rails": {}} for name in ("alpha", "beta")},
                   interconnect={"rails": ["192.168.86.0/24"]})  # fmt: skip
    assert reported(findings) == [("NET-001", "warning", "alpha"), ("NET-001", "warning", "beta")]


def test_memory_and_ports_of_the_clusters_own_rank_are_not_reported(see, spark):
    plain = spark()
    rank = {"name": "x", "state": "running", "labels": {"io.sparkcluster.cluster": "atlas"}}
    serving = spark(
        rails(11),
        ranks=[rank],
        listeners=[{"address": "0.0.0.0", "port": 8000, "process": "python3"}],
        gpus=[plain.gpus[0].model_dump() | {"utilization_percent": 97, "power_w": 40.0, "sm_clock_mhz": 2400}],
        memory=plain.memory.model_dump() | {"free_bytes": 10**9, "available_bytes": 2 * 10**9},
    )
    keys = ("ranks", "listeners", "gpus", "memory")
    assert see({"alpha": {key: getattr(serving, key) for key in keys}}) == []


@pytest.mark.parametrize("name", golden.cases("facts", "facts.yaml"))
def test_no_check_crashes_on_a_recorded_probe(name, cluster):
    facts = {"spark": recorded(name)}
    spec = cluster({"spark": "192.0.2.11"})
    findings = checks.run_checks(spec, facts, topology.build(spec, facts))
    findings += checks.run_checks(spec, facts, EMPTY)
    assert not [finding for finding in findings if "this check crashed" in finding.summary]
    assert all(finding.remedy and finding.seen and finding.why for finding in findings if finding.code in CATALOGUE)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("founders-p0", set()),
        ("founders-p1", set()),
        ("both-ports", set()),
        ("gids-shifted", set()),
        ("no-cable", set()),
        ("oem-updated", set()),
        ("containerd-store", set()),
        ("driver-610", {"HOST-026"}),
        ("docker-snap", {"HOST-025"}),
        ("driver-590", {"HOST-010", "HOST-015", "HOST-021", "HOST-026"}),
        ("docker-absent", {"HOST-001"}),
        ("docker-no-group", {"HOST-001"}),
        ("gsp-failure", {"HOST-003"}),
        ("smi-hangs", {"HOST-003"}),
        ("no-nvidia-runtime", {"HOST-002"}),
        ("weights-truncated", {"MDL-001"}),
    ],
)
def test_a_failed_reading_of_a_recorded_probe_is_the_only_finding_and_reported_once(name, codes, cluster):
    facts = {"spark": recorded(name)}
    spec = cluster({"spark": "192.0.2.11"}, playbook={"model": {"id": "org/tiny"}})
    context = Context(spec, facts, topology.build(spec, facts))
    assert {finding.code for finding in grave(checks.run_stage(context, ("facts",)))} == codes
