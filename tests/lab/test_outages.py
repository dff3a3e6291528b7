"""A silent connection is not a dead rank: a short outage is waited for, a longer one ends only the command. Stub engine."""

from __future__ import annotations

import pytest

LOADING = {"env": {"STUB_FAULT": "slow-start=35"}, "verify": {"pause_s": 1}}


@pytest.fixture
def loading(lab, cli, variant):
    """An ``up`` that is loading weights on both nodes."""
    up = cli.start("up", variant(lab, playbook=LOADING))
    up.wait_for("loading weights")
    return up


def serves(up, lab, cli, ranks, *said):
    """``up`` serves with one rank on each node, and printed each of ``said``."""
    done = up.wait().ok()
    for text in said:
        assert text in done.err, done
    assert [len(found) for found in ranks(lab).values()] == [1, 1]
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"


def test_a_launch_survives_a_short_outage_of_one_node(loading, lab, cli, ranks):
    lab.fault("right", "silence", "20")
    loading.wait_for("right: no report for 7 s")
    serves(loading, lab, cli, ranks, "right: reports again")


def ended_and_continued(up, lab, cli, ranks, variant):
    """``up`` exits with code 1 and names the command that continues; the ranks keep running, and the next ``up`` records them."""
    done = up.wait()
    assert done.code == 1, done
    assert "not stopping the ranks on left, right" in done.err
    assert "sparkcluster up " in done.err
    lab.heal()
    before = ranks(lab)
    assert [len(found) for found in before.values()] == [1, 1]
    again = cli("up", variant(lab, playbook=LOADING)).ok()
    assert "continuing with" in again.err
    assert ranks(lab) == before
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"


def test_a_node_silent_for_a_minute_ends_the_command_and_stops_no_rank(loading, lab, cli, ranks, variant):
    for spark in lab.sparks:
        lab.fault(spark.name, "silence")
    ended_and_continued(loading, lab, cli, ranks, variant)


@pytest.mark.full
def test_a_broken_connection_ends_the_command_and_stops_no_rank(loading, lab, cli, ranks, variant):
    lab.fault("right", "ssh-stopped")
    ended_and_continued(loading, lab, cli, ranks, variant)


@pytest.mark.full
def test_a_launch_survives_a_restart_of_sshd(loading, lab, cli, ranks):
    lab.fault("right", "ssh-restart")
    serves(loading, lab, cli, ranks)
