"""Whether vLLM finishes requests at shutdown, and the resulting time limit of its ranks."""

from __future__ import annotations

import pytest

from sparkcluster.facts.docker import Rank
from sparkcluster.runtime.ranks import stop_limit_s

DRAINS = ["--shutdown-timeout", "60"]


def has(world, *nodes, **inside):
    """The world where the images of ``nodes`` have ``inside``."""
    for name in nodes or world.facts:
        image = world.facts[name].image.model_dump()
        world.change(name, image={**image, "inside": {**image["inside"], **inside}})
    return world


def engine(plan, node="alpha"):
    return plan.nodes[node].containers[0].launcher["engine"]


def limits(plan):
    """Time limit of each rank of ``plan``, as reported by its node."""
    ranks = {name: node.containers[0] for name, node in plan.nodes.items()}
    return {name: stop_limit_s(Rank(name="r", state="running", labels=rank.labels)) for name, rank in ranks.items()}


@pytest.mark.parametrize("inside", [{"version": "0.19.0"}, {"flags": ["shutdown-timeout"]}])
def test_requests_in_flight_may_finish_if_the_flag_is_supported(world, inside):
    plan = has(world(), **inside).plan()
    assert engine(plan)[-2:] == DRAINS
    assert limits(plan) == {"alpha": 90, "beta": 30}, "requests are the head's"


@pytest.mark.parametrize("inside", [{"version": "0.18.0"}, {"version": None}, {"flags": ["host"]}])
def test_flags_that_an_engine_might_refuse_are_not_set(world, inside):
    """It was in 0.18's release candidates and was removed."""
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
def test_the_playbooks_value_wins(world, args, flags, limit_s):
    plan = has(world(playbook={"args": args}), version="0.32.0").plan()
    command = engine(plan)
    assert command[command.index("--shutdown-timeout") :] == flags if flags else "--shutdown-timeout" not in command
    assert limits(plan)["alpha"] == limit_s


def test_a_custom_command_is_unchanged_and_the_time_limit_follows_it(world):
    command = ["vllm", "serve", "m", "--shutdown-timeout", "120"]
    plan = has(world("alpha", playbook={"command": command}), version="0.32.0").plan()
    assert engine(plan) == command
    assert limits(plan) == {"alpha": 150}
