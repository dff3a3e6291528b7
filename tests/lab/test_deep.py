"""What nodes reach of one another and what their links carry, on virtual Sparks with the real fault on one of them."""

from __future__ import annotations

import contextlib
import re
import signal
import time

import pytest

from sparkcluster.checks import run_stage
from sparkcluster.checks.registry import Context
from sparkcluster.cli.common import connect_fleet
from sparkcluster.diagnose.deep import deep
from sparkcluster.diagnose.reach import reach
from sparkcluster.diagnose.schedule import Options
from sparkcluster.probing.collect import collect_facts
from sparkcluster.report import Report
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec.load import load
from sparkcluster.topology.build import build

SHORT = Options(seconds=0.3, messages=50, collective=False)


class Inspection:
    """A lab's spec, facts and topology, with an open fleet."""

    def __init__(self, fleet, spec):
        self.fleet = fleet
        self.spec = spec
        self.facts = collect_facts(fleet, spec).facts
        self.topology = build(spec, self.facts)

    def reached(self):
        found = reach(self.fleet, self.spec, self.facts, self.topology, Report())
        assert found.unasked == {}
        return run_stage(Context(self.spec, self.facts, self.topology, reach=found), ("reach",))

    def measured(self, options=SHORT, epochs=None):
        found = deep(self.fleet, self.spec, self.facts, self.topology, Report(), options=options, epochs=epochs)
        context = Context(self.spec, self.facts, self.topology, measured=found)
        return found, run_stage(context, ("deep",))

    @contextlib.contextmanager
    def lease(self):
        inventory = self.spec.inventory
        taken = Lease(self.fleet, cluster=inventory.cluster, state_dir=inventory.state_dir, operation="measure")
        with taken.acquire(list(self.facts)) as lease:
            yield lease.epochs


@contextlib.contextmanager
def inspecting(lab, inventory=None):
    spec = load(inventory or lab.inventory)
    with connect_fleet(spec.inventory) as fleet:
        yield Inspection(fleet, spec)


@pytest.fixture
def inspection(lab):
    with inspecting(lab) as report:
        yield report


def full(value):
    return pytest.param(value, marks=pytest.mark.full)


def problems(findings):
    return {(finding.code, finding.node) for finding in findings if finding.severity != "info"}


def rule(spark, *rules):
    for words in rules:
        spark.run(["/usr/sbin/iptables", "-w", *words.split()])


def follow(spark, command):
    """Type a remedy, without sudo, which root needs not."""
    spark.run(["sh", "-c", command.removeprefix("sudo ")])


@pytest.fixture
def rules(lab):
    """Puts firewall rules on Sparks and takes all of them away again."""
    yield rule
    for spark in lab.sparks:
        rule(spark, "-F INPUT")


RAIL = {"left": "enp1s0f0np0", "right": "fast0"}
TWIN = {"left": "enP2p1s0f0np0", "right": "fast1"}


@pytest.mark.parametrize("node", [full("left"), "right"])
def test_a_firewall_against_tcp_is_found_on_its_node_and_goes_with_the_remedy(lab, inspection, rules, node):
    assert inspection.reached() == []
    spark = lab.spark(node)
    rules(spark, f"-A INPUT -i {RAIL[node]} -p tcp -j DROP", f"-A INPUT -i {TWIN[node]} -p tcp -j DROP")
    findings = inspection.reached()
    assert problems(findings) == {("NET-044", node)}
    assert "port 6379 (Ray)" in findings[0].seen
    for command in findings[0].remedy:
        if command.startswith("sudo iptables"):
            follow(spark, command)
    assert inspection.reached() == []


@pytest.mark.parametrize("node", [full("left"), "right"])
@pytest.mark.parametrize("filtered", [False, full(True)], ids=["udp", "icmp"])
def test_a_black_hole_for_large_packets_is_told_from_a_firewall(lab, inspection, rules, node, filtered):
    spark = lab.spark(node)
    if filtered:
        rules(spark, f"-A INPUT -i {RAIL[node]} -p udp -j DROP")
        assert inspection.reached() == []
    rules(spark, f"-A INPUT -i {RAIL[node]} -m length --length 2000:65535 -j DROP")
    findings = inspection.reached()
    # An ICMP echo is as large as what it answers, and two nodes see the same of each other.
    assert problems(findings) == {("NET-042", None if filtered else node)}
    ping, source = re.match(r"(ping .*) {3}on (\w+)", findings[0].remedy[-1]).groups()
    assert lab.spark(source).run(ping.split(), check=False, timeout_s=30).returncode != 0


@pytest.mark.parametrize("rate", ["13gbit", full("200mbit")])
def test_healthy_links_carry_what_they_should_and_a_slow_one_is_named(lab, inspection, rate):
    measured, findings = inspection.measured()
    assert problems(findings) == set()
    rates = {}
    for result in measured.rates:
        rates.setdefault(result.kind, []).append(result)
    assert {kind: len(results) for kind, results in rates.items()} == {"tcp": 4, "rdma": 4, "rdma-both": 1}
    assert all(result.gbit_s > 0.5 for result in measured.rates)
    assert all(result.latency_ms < 5 for result in rates["tcp"])
    assert {result.over for result in rates["rdma"]} == {"rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1"}

    lab.fault("right", "slow-link", rate)
    _, findings = inspection.measured()
    assert problems(findings) == {("NET-050", None)}
    assert "left and right" in findings[0].summary
    assert ("degraded after a hot-plug" in findings[0].summary) is (rate == "13gbit")
    assert findings[0].remedy[0].startswith("reboot both nodes with the cable connected")


def left_over(spark):
    """Programs of a measurement that still run on a Spark, and its containers."""
    table = spark.run(["ps", "-eo", "args"]).stdout
    programs = [line for line in table.splitlines() if line.startswith("ib_write_bw") or "boot=json.loads" in line]
    return programs, spark.run(["docker", "ps", "-aq"]).stdout.split()


def none_left(lab, limit_s=8):
    until = time.monotonic() + limit_s
    while any(left_over(spark) != ([], []) for spark in lab.sparks) and time.monotonic() < until:
        time.sleep(0.2)
    assert {spark.name: left_over(spark) for spark in lab.sparks} == {spark.name: ([], []) for spark in lab.sparks}


@pytest.mark.parametrize("doing", ["TCP to", full("RDMA to")])
def test_ctrl_c_leaves_no_process_on_any_node(lab, cli, doing):
    running = cli.start("preflight", lab.inventory, "--deep", "--json-lines")
    line = running.wait_for('"measure"', timeout=30)
    assert "about" in line, "the time is told before it begins"
    running.wait_for(doing, timeout=30)
    running.kill(signal.SIGINT)
    done = running.wait(20)
    assert done.code == 130, done
    none_left(lab)


@pytest.fixture(scope="module")
def real(make_lab):
    return make_lab(2, engine="vllm")


@pytest.mark.full
@pytest.mark.engine
def test_the_real_image_gathers_over_all_ranks_and_leaves_no_container(real, clean):
    clean(real)
    with inspecting(real) as inspection, inspection.lease() as epochs:
        measured, findings = inspection.measured(Options(seconds=0.3, messages=50), epochs=epochs)
    (whole,) = [rate for rate in measured.rates if rate.kind == "collective"]
    assert whole.gbit_s is not None, whole
    assert whole.over == "Gloo over TCP", "no GPU here"
    assert [(finding.code, finding.severity) for finding in findings] == [("NET-059", "info")]
    none_left(real)
