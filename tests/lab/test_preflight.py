"""Every cause of a silent failure that owners of Sparks have reported, put on one of three Sparks and found there.

Each test sees a lab without an error or a warning first, then the fault with exactly its codes on exactly its node, then
the same on another node; where the lab can carry out what the finding says to type, doing so clears it. What a fault
only pretends (its kind says so, and docs/lab.md) is told in the id of its test.
"""

from __future__ import annotations

import dataclasses
import re

import pytest

from sparkcluster.lab.faults import FAULTS


@dataclasses.dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        what: what goes wrong.
        fault: kind and argument of the lab's fault.
        expect: code and severity of what is found, all on the faulty node.
        remedy: what some line to be typed has to look like.
        cure: which of the lines clear it when they are typed; None where the lab cannot carry them out.
        quick: whether it is part of the sample.
        node: whom the finding names, where that is not the faulty node: None for the cluster.
    """

    what: str
    fault: str
    expect: set[tuple[str, str]]
    remedy: str
    cure: str | None = None
    quick: bool = False
    named: bool = True

    @property
    def id(self) -> str:
        kind = self.fault.split()[0]
        return self.fault.replace(" ", "-") + ("-simulated" if FAULTS[kind].simulated else "")


ERROR, WARNING = "error", "warning"

ROWS = [
    # network
    Row("GID missing on one HCA", "gid-missing", {("NET-003", ERROR)}, r"sudo ip addr flush dev \S+ && sudo netplan"),
    Row("no cable", "cable-out", {("NET-001", ERROR)}, "connect the QSFP cable"),
    Row("one twin down", "twin-down", {("NET-004", WARNING)}, "sudo ip link set", r"^sudo (ip|netplan)"),
    Row("one twin without address", "no-address", {("NET-015", WARNING)}, r"/etc/netplan", "^sudo netplan", quick=True),
    Row("twins in one subnet", "twin-subnet", {("NET-005", WARNING)}, "/etc/netplan", "^sudo chmod"),
    Row("MTU differs", "mtu 1500", {("NET-006", ERROR)}, r"sudo ip link set \S+ mtu 9000", "^sudo ip link", quick=True),
    Row("jumbo frames lost on the way", "path-mtu 1500", {("NET-042", ERROR)}, "switch port of .* to MTU 9216"),
    Row("half of the speed negotiated", "speed 100000", {("NET-009", WARNING)}, "reseat the cable"),
    Row("two nodes with one address", "duplicate-address", {("NET-011", ERROR)}, "netplan apply", named=False),
    Row("firewall", "firewall", {("NET-044", ERROR)}, "sudo ufw allow in on", "^sudo ufw", quick=True),
    Row("firewall against one node", "firewall spark-0001", {("NET-044", ERROR)}, "sudo ufw allow in on", "^sudo ufw"),
    # host
    Row("driver 590", "driver 590.48.01", {("HOST-010", WARNING), ("HOST-009", WARNING)}, "nvidia-driver-580-open"),
    Row("another driver", "driver 580.82.09", {("HOST-009", WARNING)}, "nvidia-driver-580-open", quick=True),
    Row("driver not loaded", "driver none", {("HOST-003", ERROR)}, "linux-modules-nvidia-580-open"),
    Row("kernel without module", "module-missing", {("HOST-014", ERROR)}, "linux-modules-nvidia-580-open-6.14.0-1015"),
    Row("another kernel", "kernel 6.11.0-1016-nvidia", {("HOST-008", WARNING)}, "linux-image-6.14.0-1015-nvidia"),
    Row("another update", "ota 7.2.3", {("HOST-011", WARNING)}, "full-upgrade"),
    Row("another firmware", "firmware 28.44.1036", {("HOST-012", WARNING)}, "fwupdmgr"),
    Row("no nvidia runtime", "no-runtime", {("HOST-002", ERROR)}, "nvidia-ctk runtime configure", "^sudo", quick=True),
    Row("Docker from a snap", "snap-docker", {("HOST-025", WARNING)}, "sudo snap remove docker"),
    Row("Docker does not run", "docker-stopped", {("HOST-001", ERROR)}, "enable --now docker", "^sudo systemctl"),
    Row("stale CDI spec", "cdi-stale", {("HOST-026", WARNING)}, "nvidia-ctk cdi generate", "^sudo"),
    Row("page cache too large", "page-cache 80", {("HOST-022", WARNING)}, "drop_caches"),
    Row("no memory left", "memory-free 4000000", {("HOST-006", WARNING)}, "gpu-memory-utilization: 0.1"),
    Row("no memory for RDMA", "no-cma", {("HOST-024", WARNING)}, "kho=off"),
    Row("disk full", "disk-full", {("HOST-005", ERROR)}, "docker image prune", quick=True),
    Row("clock off", "clock 300", {("HOST-017", WARNING)}, "timedatectl set-ntp true"),
    Row("clock off the other way", "clock -300", {("HOST-017", WARNING)}, "timedatectl set-ntp true"),
    Row("GPU lost", "gpu-lost", {("HOST-003", ERROR)}, "sudo reboot"),
    Row("GPU wedged", "gpu-wedged", {("HOST-020", WARNING)}, "unplug the power supply"),
    Row("GPU busy with a hung collective", "gpu-hung", {("HOST-021", WARNING)}, "docker ps"),
    # what the playbook needs
    Row("weights cut short", "cut-weights", {("MDL-001", ERROR)}, "sparkcluster stage", "^sparkcluster", quick=True),
    Row("weights missing", "missing-weights", {("MDL-001", ERROR)}, "sparkcluster stage", "^sparkcluster"),
    Row("tokenizer missing", "missing-weights tokenizer.json", {("MDL-001", ERROR)}, "stage", "^sparkcluster"),
    Row("another build of the image", "image-other", {("IMG-001", ERROR)}, "docker rmi", "^(docker|sparkcluster)"),
    Row("image of another processor", "image-arch", {("IMG-001", ERROR), ("IMG-002", ERROR)}, "docker (rmi|pull)"),
    # ways in
    Row("sshd stopped", "ssh-stopped", {("SSH-002", ERROR)}, "sudo systemctl start ssh"),
    Row("sshd hangs", "ssh-hang", {("SSH-003", ERROR)}, "ssh -v"),
    Row("host key changed", "host-key-changed", {("SSH-005", ERROR)}, "ssh-keygen -R"),
]


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(3)


@pytest.fixture
def type_in(module_cli):
    """``type_in(lab, spark, lines)``: carry out what a finding says to type, on the node or on this machine."""

    def do(lab, spark, lines):
        for line in lines:
            if line.startswith("sparkcluster "):
                words = line.replace("INVENTORY", str(lab.inventory)).split()[1:]
                module_cli(*words).ok()
            else:
                # Who types on this Spark is root, and sudo need not be installed.
                spark.run(["sh", "-c", f'sudo() {{ "$@"; }}; {line}'])

    return do


def expected(row, spark):
    return {(code, spark.name if row.named else None, severity) for code, severity in row.expect}


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=[] if row.quick else [pytest.mark.full]) for row in ROWS]
)
def test_a_fault_is_found_on_its_node_and_nowhere_else(row, lab, preflight, type_in):
    """Healthy, broken on one node, broken on another, mended by what the finding says."""
    kind, *words = row.fault.split()
    assert preflight(lab.inventory).found == set()

    first, second = lab.sparks[1], lab.sparks[2]
    lab.fault(first.name, kind, *words)
    result = preflight(lab.inventory)
    assert result.found == expected(row, first), result
    assert any(re.search(row.remedy, line) for line in result.remedies), result
    lab.heal()

    lab.fault(second.name, kind, *words)
    result = preflight(lab.inventory)
    assert result.found == expected(row, second), result
    if row.cure is not None:
        lines = [line for line in result.remedies if re.search(row.cure, line)]
        assert lines, result
        type_in(lab, second, lines)
        assert preflight(lab.inventory).found == set()


PORTS = {
    "port-busy 8000": ({("HOST-004", ERROR)}, "ss -ltnp 'sport = :8000'"),
    "port-busy 6379": ({("HOST-004", ERROR)}, "ss -ltnp 'sport = :6379'"),
    "firewall 6379": ({("NET-043", ERROR)}, "sudo ufw allow in on"),
}


@pytest.mark.parametrize(
    "fault", [fault if fault == "port-busy 6379" else pytest.param(fault, marks=pytest.mark.full) for fault in PORTS]
)
def test_a_port_of_the_head_matters_where_the_head_is(fault, lab, preflight, variant):
    """The same fault on a node that is no head is none; with that node first in the inventory it is."""
    expect, remedy = PORTS[fault]
    assert preflight(lab.inventory).found == set()
    first, second, third = lab.sparks
    nodes = [{"name": spark.name, "host": spark.host} for spark in (second, first, third)]
    turned = variant(lab, nodes=nodes)
    lab.fault(second.name, *fault.split())
    assert preflight(lab.inventory).found == set()
    result = preflight(turned)
    assert result.found == {(code, second.name, severity) for code, severity in expect}, result
    assert any(remedy in line for line in result.remedies)
    lab.heal()
    assert preflight(turned).found == set()


@pytest.mark.full
def test_a_port_that_is_taken_is_told_with_its_holder(lab, preflight):
    lab.fault("1", "port-busy", "8000")
    [finding] = [finding for finding in preflight(lab.inventory).document["findings"] if finding["code"] == "HOST-004"]
    assert "python3" in finding["seen"]
    assert "8000" in finding["summary"]


@pytest.mark.full
def test_the_same_bytes_in_number_are_found_by_their_hash_alone(lab, preflight):
    """A weight file of the right size with other bytes in it: only --hash, which reads all of them, can tell."""
    lab.fault("2", "corrupt-weights")
    assert preflight(lab.inventory).found == set()
    result = preflight(lab.inventory, "--hash")
    assert {(code[:3], node, severity) for code, node, severity in result.found} == {("MDL", "spark-0002", ERROR)}
    assert any("stage" in line for line in result.remedies)
