"""A complete plan for people, with commands to paste."""

from __future__ import annotations

import pytest

from sparkcluster.cli.plan import NOW, lines
from sparkcluster.release.states import State


@pytest.fixture
def document(world):
    return world().plan(3).as_json()


def test_full_output_has_every_variable_and_command_of_every_node(document):
    shown = list(lines(document, verbose=True))
    for node in document["nodes"].values():
        assert {f"  {name}={value}" for name, value in node["env"].items()} <= set(shown)
    assert sum(line.startswith("  $ docker run ") for line in shown) == 2


def test_plan_describes_every_state_of_a_group():
    assert {state.value for state in State} <= NOW.keys()
