"""A silent connection is not a dead rank: `up` goes on, says it, and looks again before it changes anything. Stub engine."""

from __future__ import annotations

import signal
import time

import pytest

LOADING = {"env": {"STUB_FAULT": "slow-start=60"}, "verify": {"pause_s": 1}}
"""Weights that take a minute: the silence begins and ends while they load."""

LONG = {"env": {"STUB_FAULT": "slow-start=120"}, "verify": {"pause_s": 1}}

DEAD_RANK_S = 8
"""As in test_faults: 5 s to see a death, the rest for this machine."""


@pytest.fixture
def loading(lab, cli, variant):
    """An ``up`` in the middle of loading weights on both nodes."""

    def start(playbook=LOADING):
        up = cli.start("up", variant(lab, playbook=playbook))
        up.wait_for("loading weights", timeout=40)
        return up

    return start


def serves(up, lab, cli, ranks, *said):
    """``up`` ends serving with one rank on each node, and said every one of ``said``."""
    done = up.wait(240).ok()
    for text in said:
        assert text in done.err, done
    assert [len(found) for found in ranks(lab).values()] == [1, 1]
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"
    return done


@pytest.mark.parametrize("node", ["right", pytest.param("left", marks=pytest.mark.full)])
def test_a_launch_goes_on_through_30_s_of_silence_of_one_node(loading, lab, cli, ranks, node):
    up = loading()
    lab.fault(node, "silence", "30")
    up.wait_for(f"{node}: no report for 7 s", timeout=15)
    serves(up, lab, cli, ranks, f"{node}: reports again")


def test_a_launch_goes_on_through_30_s_without_the_operators_network(loading, lab, cli, ranks):
    up = loading()
    for spark in lab.sparks:
        lab.fault(spark.name, "silence", "30")
    serves(up, lab, cli, ranks, "left: reports again", "right: reports again")


@pytest.mark.full
def test_a_launch_goes_on_through_90_s_without_the_operators_network(loading, lab, cli, ranks):
    """The engine is ready before the network is back."""
    up = loading(LONG)
    for spark in lab.sparks:
        lab.fault(spark.name, "silence", "90")
    serves(up, lab, cli, ranks, "left: reports again", "right: reports again")


@pytest.mark.full
@pytest.mark.parametrize("node", ["left", "right"])
def test_a_launch_goes_on_through_a_restart_of_sshd(loading, lab, cli, ranks, node):
    up = loading()
    lab.fault(node, "ssh-restart")
    serves(up, lab, cli, ranks)


@pytest.mark.full
def test_a_launch_goes_on_through_an_sshd_that_hangs_for_40_s(loading, lab, cli, ranks):
    up = loading()
    lab.fault("right", "ssh-hang", "40")
    serves(up, lab, cli, ranks, "right: reports again")


@pytest.mark.full
def test_a_rank_that_dies_while_another_node_is_silent_is_named_at_once(loading, lab, ranks):
    up = loading()
    lab.fault("right", "silence", "60")
    up.wait_for("right: no report for 7 s", timeout=15)
    lab.fault("left", "kill-worker")
    since = time.monotonic()
    up.wait_for("the rank on left ended", timeout=20)
    assert time.monotonic() - since <= DEAD_RANK_S
    done = up.wait(60)
    assert done.code == 1, done
    assert "left running on right" in done.err
    assert ranks(lab)["left"] == []


@pytest.mark.full
def test_a_silence_in_verify_is_survived(lab, cli, variant, ranks):
    up = cli.start("up", variant(lab, playbook={"verify": {"pause_s": 20}}))
    up.wait_for("verifying the answer")
    lab.fault("left", "silence", "30")
    serves(up, lab, cli, ranks)


@pytest.mark.full
def test_a_silence_when_the_release_is_recorded_is_survived(lab, cli, variant, ranks):
    up = cli.start("up", variant(lab, playbook={"verify": {"pause_s": 0}}))
    up.wait_for("verifying the answer")
    lab.fault("right", "silence", "20")
    serves(up, lab, cli, ranks)


@pytest.mark.full
def test_another_operator_in_the_silence_is_left_alone(loading, lab, cli, ranks):
    """The operator's own sshd connections hang until the lease has lapsed; then `down` is first."""
    up = loading(LONG)
    up.kill(signal.SIGSTOP)
    try:
        time.sleep(25)
        cli("down", lab.inventory).ok()
    finally:
        up.kill(signal.SIGCONT)
    done = up.wait(60)
    assert done.code == 1, done
    assert "has the lease on" in done.err
    assert [len(found) for found in ranks(lab).values()] == [0, 0]
