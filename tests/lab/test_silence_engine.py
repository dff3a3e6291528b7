"""The real engine loads on, whatever becomes of the operator's connection."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.full]


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(2, engine="vllm")


def serves(lab, cli, faults):
    """``up`` meets ``faults`` while the engine starts, and ends serving; what it said."""
    up = cli.start("up", lab.inventory)
    up.wait_for("watch: ", timeout=120)
    for spark in lab.sparks:
        up.wait_for(f"  {spark.name}: Ray ", timeout=120)  # its rank runs and is watched
    for node, *fault in faults:
        lab.fault(node, *fault)
    done = up.wait(500).ok()
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"
    assert cli("ask", lab.inventory, "Hello", "--max-tokens", "3").ok().out.strip()
    cli("down", lab.inventory).ok()
    return done.err


def test_a_launch_goes_on_through_90_s_of_silence_of_one_node(lab, cli):
    worker = lab.sparks[1].name
    said = serves(lab, cli, [(worker, "silence", "90")])
    print(said)
    # At once; a machine that is busy with two engines looks a few seconds later.
    noted = re.search(
        rf"^{worker}: no report for (\d+) s, connecting again; its rank is left running$", said, re.MULTILINE
    )
    assert noted, said
    assert int(noted[1]) < 12
    assert f"{worker}: reports again" in said


def test_a_launch_goes_on_through_90_s_without_the_operators_network(lab, cli):
    said = serves(lab, cli, [(spark.name, "silence", "90") for spark in lab.sparks])
    print(said)
    assert all(f"{spark.name}: reports again" in said for spark in lab.sparks)


def test_a_launch_goes_on_through_a_restart_of_sshd(lab, cli):
    serves(lab, cli, [(spark.name, "ssh-restart") for spark in lab.sparks])
