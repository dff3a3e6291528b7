"""Preflight in unusual labs: without image and weights, and with other cabling."""

from __future__ import annotations

import pytest

ERROR, WARNING, INFO = "error", "warning", "info"


@pytest.mark.full
def test_preflight_before_staging_lists_skipped_checks_and_pulls_nothing(make_lab, preflight):
    """Two nodes are empty; the possible checks run, and nothing is downloaded."""
    lab = make_lab("sparks: [{}, {image: absent, model: absent}, {image: absent, model: absent}]")
    bare = lab.sparks[1:]
    result = preflight(lab.inventory)
    assert result.found == set()
    unasked = {(question["node"], question["what"]) for question in result.document["unasked"]}
    assert unasked == {
        (spark.name, what) for spark in bare for what in ("the image's content", "whether the weights are complete")
    }
    lab.fault(bare[0].name, "gid-missing")
    assert preflight(lab.inventory).found == {("NET-003", bare[0].name, ERROR)}
    lab.heal()
    for spark in bare:
        assert spark.run(["docker", "images", "-aq"]).stdout == ""
        assert spark.run(["docker", "ps", "-aq"]).stdout == ""
        assert spark.run(["ls", "/root/models"], check=False).stdout == ""
    lab.down()


@pytest.fixture(scope="module")
def ring(make_lab):
    return make_lab("topology: ring\ndefaults: {ports: both}\nsparks: [{}, {}, {}]")


@pytest.mark.full
def test_each_cable_of_a_ring_is_checked_separately(ring, preflight, variant):
    """The stub has no NCCL: its unknown version is a warning, which the playbook can accept."""
    assert preflight(ring.inventory).found == {("IMG-012", None, WARNING)}
    accepted = variant(ring, playbook={"allow": [{"code": "IMG-012", "reason": "a patched build"}]})
    assert preflight(accepted).found == set()
    spark = ring.sparks[1]
    ring.fault(spark.name, "gid-missing")
    assert {(code, node) for code, node, _ in preflight(accepted).found} == {("NET-003", spark.name)}
    ring.heal()
    ring.fault(spark.name, "firewall")
    assert {(code, node) for code, node, _ in preflight(accepted).found} == {("NET-043", spark.name)}
    ring.heal()
