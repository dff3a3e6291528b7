"""A silent connection is not a dead rank: `up` goes on, says it, and looks again before it changes anything. Stub engine."""

from __future__ import annotations

import pytest

LOADING = {"env": {"STUB_FAULT": "slow-start=35"}, "verify": {"pause_s": 1}}


@pytest.fixture
def loading(lab, cli, variant):
    """An ``up`` in the middle of loading weights on both nodes."""
    up = cli.start("up", variant(lab, playbook=LOADING))
    up.wait_for("loading weights")
    return up


def serves(up, lab, cli, ranks, *said):
    """``up`` ends serving with one rank on each node, and said every one of ``said``."""
    done = up.wait().ok()
    for text in said:
        assert text in done.err, done
    assert [len(found) for found in ranks(lab).values()] == [1, 1]
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"


def test_a_launch_goes_on_through_silence_of_one_node_that_outlasts_its_lease(loading, lab, cli, ranks):
    lab.fault("right", "silence", "20")
    loading.wait_for("right: no report for 7 s")
    serves(loading, lab, cli, ranks, "right: reports again")


@pytest.mark.full
def test_a_launch_goes_on_without_the_operators_network_until_after_the_engine_is_ready(loading, lab, cli, ranks):
    for spark in lab.sparks:
        lab.fault(spark.name, "silence", "60")
    serves(loading, lab, cli, ranks, "left: reports again", "right: reports again")


@pytest.mark.full
def test_a_launch_goes_on_through_a_restart_of_sshd(loading, lab, cli, ranks):
    lab.fault("right", "ssh-restart")
    serves(loading, lab, cli, ranks)
