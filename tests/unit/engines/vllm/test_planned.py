"""What vLLM is told to let finish when it is stopped, and how long its ranks therefore get."""

from __future__ import annotations

import pytest

from sparkcluster.facts.docker import Rank
from sparkcluster.runtime.ranks import stop_limit_s

DRAINS = ["--shutdown-timeout", "60"]


def has(world, *nodes, **inside):
    """The world where the images of ``nodes`` hold that."""
    for name in nodes or world.facts:
        image = world.facts[name].image.model_dump()
        world.change(name, image={**image, "inside": {**image["inside"], **inside}})
    return world


def engine(plan, node="alpha"):
    return plan.nodes[node].containers[0].launcher["engine"]


def limits(plan):
    """How long each rank of ``plan`` gets to end, as its node would report it."""
    ranks = {name: node.containers[0] for name, node in plan.nodes.items()}
    return {name: stop_limit_s(Rank(name="r", state="running", labels=rank.labels)) for name, rank in ranks.items()}


@pytest.mark.parametrize("inside", [{"version": "0.19.0"}, {"flags": ["shutdown-timeout"]}])
def test_what_is_in_flight_may_finish_where_the_flag_is_known(world, inside):
    plan = has(world(), **inside).plan()
    assert engine(plan)[-2:] == DRAINS
    assert limits(plan) == {"alpha": 90, "beta": 30}, "requests are the head's"


@pytest.mark.parametrize("inside", [{"version": "0.18.0"}, {"version": None}, {"flags": ["host"]}])
def test_no_flag_that_an_engine_may_refuse(world, inside):
    """It was in 0.18's candidates and was taken out again."""
    plan = has(world(), **inside).plan()
    assert "--shutdown-timeout" not in engine(plan)
    assert limits(plan) == {"alpha": 30, "beta": 30}


@pytest.mark.parametrize(
    ("args", "flags", "limit_s"),
    [
        ({"shutdown-timeout": 200}, ["--shutdown-timeout", "200"], 230),
        ({"shutdown-timeout": 5000}, ["--shutdown-timeout", "5000"], 630),
        ({"shutdown-timeout": None}, [], 30),
    ],
)
def test_what_the_playbook_says_counts(world, args, flags, limit_s):
    plan = has(world(playbook={"args": args}), version="0.32.0").plan()
    command = engine(plan)
    assert command[command.index("--shutdown-timeout") :] == flags if flags else "--shutdown-timeout" not in command
    assert limits(plan)["alpha"] == limit_s


def test_a_whole_command_is_left_as_it_is_and_its_limit_follows(world):
    command = ["vllm", "serve", "m", "--shutdown-timeout", "120"]
    plan = has(world("alpha", playbook={"command": command}), version="0.32.0").plan()
    assert engine(plan) == command
    assert limits(plan) == {"alpha": 150}
