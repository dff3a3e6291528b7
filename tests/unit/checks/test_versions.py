"""Nodes with different versions: the majority is right, of two the newer one; and clocks within the measured error."""

from __future__ import annotations

import pytest

from sparkcluster.checks.compare import outliers
from sparkcluster.facts.base import Unread

from .conftest import reported

THREE = ("a", "b", "c")


@pytest.fixture
def unlike(spark):
    """Facts that differ from the plain ones in one value."""
    plain = spark({"enp1s0f0np0": "192.168.177.12/24", "enP2p1s0f0np0": "192.168.178.12/24"})

    def make(code, version):
        if code == "HOST-007":
            return {"os": plain.os.model_copy(update={"version": version})}
        if code == "HOST-008":
            return {"kernel": version}
        if code == "HOST-009":
            return {"driver": version}
        if code == "HOST-007":
            return {"dgx": plain.dgx.model_copy(update={"ota_version": version})}
        return {"gpus": tuple(gpu.model_copy(update={"vbios": version}) for gpu in plain.gpus)}

    return make


CASES = [
    ("HOST-007", "24.04", "22.04", "warning"),
    ("HOST-008", "6.17.0-1014-nvidia", "6.14.0-1015-nvidia", "warning"),
    ("HOST-009", "580.126.09", "580.95.05", "warning"),
    ("HOST-007", "7.5.0", "7.3.1", "warning"),
    ("HOST-012", "9A.0B.2D.00.00", "9A.0B.25.00.00", "info"),
]


@pytest.mark.parametrize(("code", "newer", "older", "severity"), CASES)
def test_of_two_versions_the_older_is_reported(see, unlike, code, newer, older, severity):
    (finding,) = see({"alpha": unlike(code, older), "beta": unlike(code, newer)})
    assert reported([finding]) == [(code, severity, "alpha")]
    assert older in finding.seen
    assert finding.remedy[0].startswith("sudo ")


@pytest.mark.parametrize("name", THREE)
def test_of_three_versions_the_differing_one_is_reported_even_if_newer(see, unlike, name):
    code, newer, older, severity = CASES[0]
    changes = {node: unlike(code, newer if node == name else older) for node in THREE}
    (finding,) = see(changes, names=THREE)
    assert reported([finding]) == [(code, severity, name)]
    others = [node for node in THREE if node != name]
    assert finding.remedy[0].startswith(f"on {others[0]} and {others[1]}: sudo ")


def test_replicas_may_have_different_versions(see, unlike):
    code, newer, older, _ = CASES[0]
    groups = [{"name": "left", "nodes": ["a", "b"]}, {"name": "right", "nodes": ["c", "d"]}]
    changes = {name: unlike(code, newer if name in "cd" else older) for name in "abcd"}
    assert see(changes, names=tuple("abcd"), groups=groups) == []


def test_firmware_differs_between_nodes_and_within_a_node(see, spark):
    def hcas(*versions):
        own = spark({"enp1s0f0np0": "192.168.177.12/24", "enP2p1s0f0np0": "192.168.178.12/24"}).hcas
        return {"hcas": tuple(hca.model_copy(update={"firmware": versions[at % len(versions)]})
                              for at, hca in enumerate(own))}  # fmt: skip

    assert reported(see({"beta": hcas("28.44.1036")})) == [("HOST-012", "warning", "beta")]
    (finding,) = see({"beta": hcas("28.45.4028", "28.44.1036")})
    assert finding.node == "beta"
    assert "28.44.1036 and 28.45.4028" in finding.seen
    assert see({"beta": hcas(None)}) == []


def test_an_unreadable_version_is_reported_as_unread_and_not_as_different(see):
    findings = see({"beta": {"os": Unread(unread="no such file: /etc/os-release")}})
    assert reported(findings) == [("FACT-001", "warning", "beta")]
    assert "HOST-007" in findings[0].why


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ({"a": "1", "b": None}, {}),
        ({"a": "1.9", "b": "1.10"}, {"a": "1.10"}),
        ({"a": "1", "b": "1", "c": "2"}, {"c": "1"}),
        ({"a": "1", "b": "1", "c": "2", "d": "2"}, {"a": "2", "b": "2"}),
        ({"a": "1", "b": "2", "c": "3"}, {"a": "3", "b": "3"}),
    ],
)
def test_the_node_that_differs_from_the_majority(values, odd):
    assert {outlier.node: outlier.expected for outlier in outliers(values)} == odd


def clock(offset, error=0.01):
    return {"clock_offset_s": offset, "clock_error_s": error}


@pytest.mark.parametrize(
    ("offset", "error", "severity"),
    [
        (1.5, 0.9, None),
        (1.5, 0.1, "info"),
        (-300.0, 0.1, "warning"),
        (31.0, 2.0, "info"),
    ],
)
def test_a_wrong_clock(see, offset, error, severity):
    findings = see({"beta": clock(offset, error), "alpha": clock(0.0)})
    assert reported(findings) == ([("HOST-017", severity, "beta")] if severity else [])
    if severity:
        assert ("ahead" if offset > 0 else "behind") in findings[0].summary


def test_no_remedy_recommends_a_driver_that_deadlocks(see, unlike):
    """Even if it is newer and in the majority: HOST-010 advises against it."""
    versions = {"a": "580.95.05", "b": "590.48.01", "c": "590.48.01"}
    spread = {name: unlike("HOST-009", version) for name, version in versions.items()}
    found = [finding for finding in see(spread, names=THREE) if finding.code == "HOST-009"]
    assert reported(found) == [("HOST-009", "warning", "b"), ("HOST-009", "warning", "c")]
    assert all("nvidia-driver-580-open" in finding.remedy[0] for finding in found)
