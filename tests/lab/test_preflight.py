"""Every reported cause of a silent failure, put on one of three Sparks and found there.

Independent faults are put on two Sparks at the same time: exactly their codes are found on exactly their nodes. If the
lab can run the remedy of a finding, it clears the finding.
"""

from __future__ import annotations

import dataclasses
import re

import pytest


@dataclasses.dataclass(frozen=True)
class Row:
    """One fault and its expected findings.

    Attributes:
        node: number of the Spark that has the fault.
        fault: kind and argument of the lab's fault.
        expect: code and severity of the findings, all on the faulty node.
        remedy: pattern that a line of the remedy must match.
        cure: indices of the lines that clear it; None if the lab cannot run them.
        named: whether the findings name the node; otherwise they are about the cluster.
    """

    node: int
    fault: str
    expect: set[tuple[str, str]]
    remedy: str
    cure: str | None = None
    named: bool = True


ERROR, WARNING = "error", "warning"

BATCHES = {
    "MTU": [
        Row(1, "port-busy 6379", {("HOST-004", ERROR)}, "ss -ltnp 'sport = :6379'"),
        Row(2, "mtu 1500", {("NET-006", ERROR)}, r"sudo ip link set \S+ mtu 9000", "^sudo ip link"),
        Row(2, "cut-weights", {("MDL-001", ERROR)}, "sparkcluster stage", "^sparkcluster"),
        Row(3, "no-runtime", {("HOST-002", ERROR)}, "nvidia-ctk runtime configure", "^sudo"),
    ],
    "firewall": [
        Row(2, "firewall", {("NET-043", ERROR)}, "sudo ufw allow in on", "^sudo ufw"),
        Row(3, "driver 580.82.09", {("HOST-009", WARNING)}, "nvidia-driver-580-open"),
    ],
    "switch": [
        Row(2, "path-mtu 1500", {("NET-042", ERROR)}, "switch port of .* to MTU 9216"),
        Row(3, "gpu-wedged", {("HOST-021", WARNING)}, "nvidia-smi"),
        Row(3, "cdi-stale", {("HOST-026", WARNING)}, "nvidia-ctk cdi generate", "^sudo"),
    ],
    "twin": [
        Row(2, "twin-down", {("NET-004", WARNING)}, "sudo ip link set", r"^sudo (ip|netplan)"),
        Row(2, "clock 300", {("HOST-017", WARNING)}, "timedatectl set-ntp true"),
        Row(3, "no-cma", {("HOST-024", WARNING)}, "kho=off"),
    ],
    "address": [
        Row(3, "no-address", {("NET-004", WARNING)}, r"/etc/netplan", "^sudo netplan"),
        Row(3, "page-cache 80", {("HOST-022", WARNING)}, "drop_caches"),
    ],
    "subnet": [
        Row(3, "twin-subnet", {("NET-005", WARNING)}, "/etc/netplan", "^sudo chmod"),
        Row(2, "image-other", {("IMG-001", ERROR)}, "docker rmi", "^(docker|sparkcluster)"),
    ],
    "cable": [
        Row(2, "cable-out", {("NET-001", ERROR)}, "connect the QSFP cable"),
        Row(3, "gpu-lost", {("HOST-003", ERROR)}, "sudo reboot"),
        Row(3, "kernel 6.11.0-1016-nvidia", {("HOST-008", WARNING)}, "linux-image-6.14.0-1015-nvidia"),
    ],
    "speed": [
        Row(2, "speed 100000", {("NET-009", WARNING)}, "reseat the cable"),
        Row(3, "driver 590.48.01", {("HOST-010", WARNING), ("HOST-009", WARNING)}, "nvidia-driver-580-open"),
    ],
    "GID": [
        Row(2, "gid-missing", {("NET-003", ERROR)}, r"sudo ip addr flush dev \S+ && sudo netplan"),
        Row(2, "ota 7.2.3", {("HOST-007", WARNING)}, "full-upgrade"),
        Row(3, "module-missing", {("HOST-003", ERROR)}, "linux-modules-nvidia-580-open-6.14.0-1015"),
        Row(3, "firmware 28.44.1036", {("HOST-012", WARNING)}, "fwupdmgr"),
    ],
    "duplicate address": [
        Row(2, "duplicate-address", {("NET-011", ERROR)}, "netplan apply", named=False),
        Row(3, "gpu-hung", {("HOST-021", WARNING)}, "docker ps"),
    ],
    "disk": [
        Row(2, "disk-full", {("HOST-005", ERROR)}, "docker image prune"),
        Row(3, "memory-free 4000000", {("HOST-006", WARNING)}, "gpu-memory-utilization: 0.1"),
    ],
    "Docker": [
        Row(2, "docker-stopped", {("HOST-001", ERROR)}, "enable --now docker", "^sudo systemctl"),
        Row(3, "snap-docker", {("HOST-025", WARNING)}, "sudo snap remove docker"),
    ],
    "SSH": [
        Row(2, "ssh-hang", {("SSH-003", ERROR)}, "ssh -v"),
        Row(3, "host-key-changed", {("SSH-005", ERROR)}, "ssh-keygen -R"),
    ],
}
PLAIN = ("MTU", "firewall")


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(3)


@pytest.fixture
def type_in(module_cli):
    """``type_in(lab, spark, lines)``: run the remedy of a finding, on the node or on this machine."""

    def do(lab, spark, lines):
        for line in lines:
            if line.startswith("sparkcluster "):
                words = line.replace("INVENTORY", str(lab.inventory)).split()[1:]
                module_cli(*words).ok()
            else:
                # The user on this Spark is root, so sudo need not be installed.
                spark.run(["sh", "-c", f'sudo() {{ "$@"; }}; {line}'])

    return do


def expected(lab, rows):
    return {
        (code, lab.sparks[row.node - 1].name if row.named else None, severity)
        for row in rows
        for code, severity in row.expect
    }


def to_type(result, lab, row):
    """The commands that the findings of a row suggest."""
    codes = {code for code, _ in row.expect}
    name = lab.sparks[row.node - 1].name if row.named else None
    findings = [each for each in result.document["findings"] if each["code"] in codes and each["node"] == name]
    return [line for each in findings for line in each["remedy"]]


@pytest.mark.parametrize(
    "batch", [name if name in PLAIN else pytest.param(name, marks=pytest.mark.full) for name in BATCHES]
)
def test_faults_are_reported_on_their_nodes_only(batch, lab, preflight, type_in):
    """Healthy, broken, and fixed by the remedies of the findings."""
    rows = BATCHES[batch]
    assert preflight(lab.inventory).found == set()
    for row in rows:
        lab.fault(str(row.node), *row.fault.split())
    result = preflight(lab.inventory)
    assert result.found == expected(lab, rows), result
    for row in rows:
        lines = to_type(result, lab, row)
        assert any(re.search(row.remedy, line) for line in lines), result
        if row.cure is not None:
            cures = [line for line in lines if re.search(row.cure, line)]
            assert cures, result
            type_in(lab, lab.sparks[row.node - 1], cures)
    if any(row.cure is not None for row in rows):
        assert preflight(lab.inventory).found == expected(lab, [row for row in rows if row.cure is None])


@pytest.mark.full
def test_files_of_equal_size_are_distinguished_by_hash_only(lab, preflight):
    """A weight file of the right size with different bytes: only --hash, which reads all of them, detects it."""
    lab.fault("2", "corrupt-weights")
    assert preflight(lab.inventory).found == set()
    result = preflight(lab.inventory, "--hash")
    assert {(code[:3], node, severity) for code, node, severity in result.found} == {("MDL", "spark-0002", ERROR)}
    assert any("stage" in line for line in result.remedies)
