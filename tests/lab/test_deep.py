"""Reachability and link measurements on virtual Sparks, with a real fault on one of them."""

from __future__ import annotations

import contextlib
import signal

import pytest

from sparkcluster.checks import run_stage
from sparkcluster.checks.check import Context
from sparkcluster.cli.common import fleet_of
from sparkcluster.facts.collect import collect_facts
from sparkcluster.inspect.deep import deep
from sparkcluster.lab.machine import wait_until
from sparkcluster.report import Report
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec.load import load
from sparkcluster.topology.build import build


class Inspection:
    """A lab's spec, facts and topology, with an open fleet."""

    def __init__(self, fleet, spec):
        self.fleet = fleet
        self.spec = spec
        self.facts = collect_facts(fleet, spec).facts
        self.topology = build(spec, self.facts)

    def measured(self, epochs=None):
        found = deep(
            self.fleet, self.spec, self.facts, self.topology, Report(),
            epochs=epochs or {}, refused=None if epochs else "no lease",
        )  # fmt: skip
        context = Context(self.spec, self.facts, self.topology, measured=found)
        return found, run_stage(context, ("deep",))

    @contextlib.contextmanager
    def lease(self):
        with Lease(self.fleet, self.spec.inventory, "measure").acquire(list(self.facts)) as lease:
            yield lease.changer.epochs


@contextlib.contextmanager
def inspecting(lab, inventory=None):
    spec = load(inventory or lab.inventory)
    with fleet_of(spec.inventory) as fleet:
        yield Inspection(fleet, spec)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("sparkcluster.inspect.deep.SECONDS", 0.3)


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


@pytest.fixture
def rules(lab):
    """Adds firewall rules on Sparks, and removes all of them afterwards."""
    yield rule
    for spark in lab.sparks:
        rule(spark, "-F INPUT")


@pytest.mark.full
def test_healthy_links_reach_their_rate_and_a_slow_link_is_reported(lab, inspection):
    measured, findings = inspection.measured()
    assert problems(findings) == set()
    rates = {}
    for result in measured.rates:
        rates.setdefault(result.kind, []).append(result)
    assert {kind: len(results) for kind, results in rates.items()} == {"tcp": 4, "rdma": 4, "rdma-both": 1}
    assert all(result.gbit_s for result in measured.rates)
    assert {result.over for result in rates["rdma"]} == {"rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1"}

    lab.fault("right", "slow-link", "200mbit")
    _, findings = inspection.measured()
    assert problems(findings) == {("NET-050", None)}
    assert "left and right" in findings[0].summary
    assert findings[0].remedy[0].startswith("reboot both nodes with the cable connected")


def left_over(spark):
    """Programs of a measurement that still run on a Spark, and its containers."""
    table = spark.run(["ps", "-eo", "args"]).stdout
    programs = [line for line in table.splitlines() if line.startswith("ib_write_bw") or "boot=json.loads" in line]
    return programs, spark.run(["docker", "ps", "-aq"]).stdout.split()


def none_left(lab):
    wait_until(lambda: all(left_over(spark) == ([], []) for spark in lab.sparks), limit_s=120)
    assert {spark.name: left_over(spark) for spark in lab.sparks} == {spark.name: ([], []) for spark in lab.sparks}


@pytest.mark.full
def test_ctrl_c_leaves_no_process_on_any_node(lab, cli):
    running = cli.start("preflight", lab.inventory, "--deep", "--json-lines")
    line = running.wait_for('"measure"')
    assert "about" in line, "the duration is printed before it begins"
    running.wait_for("TCP to")
    running.kill(signal.SIGINT)
    done = running.wait()
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
        measured, findings = inspection.measured(epochs)
    (whole,) = [rate for rate in measured.rates if rate.kind == "collective"]
    assert whole.gbit_s is not None, whole
    assert whole.over == "Gloo over TCP", "no GPU here"
    assert [(finding.code, finding.severity) for finding in findings] == [("NET-058", "info")]
    none_left(real)
