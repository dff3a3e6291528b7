"""Faults between a Spark and the operator, which may undo themselves after a time."""

from pathlib import Path

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.lab import faults
from sparkcluster.lab.sparks import Spark
from sparkcluster.lab.spec import plain
from sparkcluster.lab.state import State


@pytest.fixture
def ran(monkeypatch):
    """Commands that were run on a Spark."""
    commands = []
    monkeypatch.setattr(Spark, "run", lambda _, argv, **more: commands.append(list(argv)))
    return commands


@pytest.fixture
def spark():
    return Spark(State("id", "lab", Path("/nowhere"), 7, "stub", plain(2)), 0)


@pytest.mark.parametrize("kind", ["silence", "ssh-hang"])
def test_a_fault_for_some_seconds_starts_a_timer_that_heal_ends(spark, ran, monkeypatch, kind):
    class Ended:
        returncode = 0

    monkeypatch.setattr(Spark, "run", lambda _, argv, **more: ran.append(list(argv)) or Ended())
    for seconds in ([], ["40"]):
        ran.clear()
        faults.FAULTS[kind].put(spark, *seconds)
        timers = [argv for argv in ran if "setsid" in " ".join(argv)]
        assert [argv[argv.index("-c", 3) + 3] for argv in timers] == seconds
    [step] = faults.FAULTS[kind].put(spark, "40")
    name = ran[-2][ran[-2].index("-c", 3) + 2]
    assert f'pkill -KILL -f "{name} [0-9]"' in step["run"][2]
    assert ran[-2][-len(step["run"][4:]) :] == step["run"][4:]  # both undo it alike


@pytest.mark.parametrize(
    ("kind", "text"), [("silence", "soon"), ("ssh-hang", "0"), ("silence", "-1"), ("docker-slow", "no")]
)
def test_a_time_that_is_no_number_changes_nothing(spark, ran, kind, text):
    with pytest.raises(UsageError, match="a time in seconds is a number from 1"):
        faults.put(spark, kind, [text])
    assert ran == []


def test_silence_is_between_the_spark_and_the_machine_alone(spark, ran):
    faults.put(spark, "silence", [])
    [argv] = ran
    assert argv[-2:] == ["10.77.7.1", "enP7s7"]
    assert spark.state.registry == "10.77.7.2"
