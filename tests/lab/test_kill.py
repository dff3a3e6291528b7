"""After ``up`` was killed or interrupted at any point, the next ``up`` serves with one set of containers. Stub engine."""

from __future__ import annotations

import signal
import time

import pytest

from tests.lab.switching import left_behind, one_set

MODEL = "/root/models/tiny"


STAGES = ("start", "verify", "record")
"""Some ranks started; all started; recording."""


def step(name):
    """The event that ``up --json-lines`` writes at a step."""
    return '"text": "two answers, recorded' if name == "record" else f'"event": "step", "name": "{name}"'


def serves_with_one_set(lab, cli, ranks, inventory=None):
    """``up`` serves, with one set of containers; a second one changes nothing; none of our programs is left."""
    inventory = inventory or lab.inventory
    assert cli("up", inventory, "--json").ok().json["state"] == "serving"
    found = one_set(ranks, lab)
    again = cli("up", inventory, "--json").ok().json
    assert (again["changed"], again["state"]) == (False, "serving")
    assert ranks(lab) == found
    assert left_behind(lab) == []


@pytest.mark.parametrize("stage", [STAGES[0], *(pytest.param(stage, marks=pytest.mark.full) for stage in STAGES[1:])])
def test_up_after_a_killed_up_serves(lab, cli, ranks, stage):
    up = cli.start("up", lab.inventory, "--json-lines")
    up.wait_for(step(stage))
    up.kill()
    serves_with_one_set(lab, cli, ranks)


@pytest.mark.full
def test_down_after_a_kill_during_the_start_leaves_nothing(lab, cli, ranks):
    up = cli.start("up", lab.inventory, "--json-lines")
    up.wait_for(step("start"))
    up.kill()
    cli("down", lab.inventory).ok()
    # A start in progress could still have created something.
    time.sleep(2)
    assert ranks(lab) == {spark.name: [] for spark in lab.sparks}
    cli("down", lab.inventory).ok()


@pytest.fixture
def lacking(lab):
    """The second Spark lacks the weights, and copying them takes some seconds; restored afterwards."""
    left, right = lab.sparks
    left.run(["dd", "if=/dev/urandom", f"of={MODEL}/more.dat", "bs=1M", "count=100"])
    right.run(["rm", "-rf", MODEL])
    lab.fault("right", "slow-link", "160mbit")
    yield lab
    lab.heal()
    for spark in lab.sparks:
        spark.run(["rm", "-f", f"{MODEL}/more.dat"])


@pytest.mark.full
def test_up_after_a_kill_during_staging_resumes_it(lacking, cli, ranks):
    up = cli.start("up", lacking.inventory, "--json-lines")
    up.wait_for('"state": "copying"')
    up.kill()
    lacking.heal("right")
    cli("up", lacking.inventory).ok()
    one_set(ranks, lacking)
    left, right = (spark.run(["sha256sum", f"{MODEL}/more.dat"]).stdout for spark in lacking.sparks)
    assert left == right


@pytest.mark.full
def test_ctrl_c_during_staging_starts_nothing_and_the_next_up_resumes(lacking, cli, ranks):
    up = cli.start("up", lacking.inventory, "--json-lines")
    up.wait_for('"state": "copying"')
    up.kill(signal.SIGINT)
    done = up.wait()
    assert done.code == 130, done
    assert done.error["message"] == "interrupted; no rank was started"
    assert "Traceback" not in done.err
    assert ranks(lacking) == {spark.name: [] for spark in lacking.sparks}
    lacking.heal("right")
    cli("up", lacking.inventory).ok()
    one_set(ranks, lacking)


@pytest.mark.full
@pytest.mark.parametrize("stage", ["check", "verify"])
def test_ctrl_c_at_any_stage_exits_130_with_one_line(lab, cli, ranks, stage):
    up = cli.start("up", lab.inventory, "--json-lines")
    up.wait_for(step(stage))
    up.kill(signal.SIGINT)
    done = up.wait()
    assert done.code == 130, done
    assert "Traceback" not in done.err
    # On a busy machine the answer may come before the signal: a group that has answered is unchanged.
    answered = stage == "verify" and done.json.get("state") == "serving"
    assert answered or done.error["kind"] == "Interrupted"
    if not answered:
        assert ranks(lab) == {spark.name: [] for spark in lab.sparks}
    serves_with_one_set(lab, cli, ranks)
