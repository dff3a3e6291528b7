"""Every row of the state table, from facts."""

from __future__ import annotations

import pytest

from sparkcluster.plan.records import holding, newest, next_number
from sparkcluster.release.states import TABLE, Action, State, state


def seen(world, plan="own"):
    """The state that ``up`` sees; ``plan`` is what it would deploy."""
    wanted = world.plan() if plan == "own" else plan
    return state(wanted, holding("atlas", world.facts), newest(world.facts.values()))


def test_nothing_of_ours(world):
    assert seen(world()) is State.EMPTY
    assert seen(world(), plan=None) is State.EMPTY


def test_ranks_of_another_cluster_are_nothing_of_ours(world):
    one = world()
    one.run(one.plan(), **{"io.sparkcluster.cluster": "borea"})
    assert seen(one) is State.EMPTY
    assert holding("atlas", one.facts).foreign["alpha"]


def test_all_ranks_of_this_plan_without_a_record(world):
    one = world()
    assert seen(one.run(one.plan(release=3))) is State.STARTED


def test_all_ranks_of_this_plan_with_their_record(world):
    one = world()
    plan = one.plan(release=3)
    assert seen(one.run(plan).record(plan, 3)) is State.SERVING


def test_a_record_that_one_node_missed_is_still_a_record(world):
    one = world()
    plan = one.plan(release=3)
    assert seen(one.run(plan).record(plan, 3, "beta")) is State.SERVING


def test_an_older_record_of_the_same_plan_does_not_vouch_for_a_later_start(world):
    one = world()
    assert seen(one.record(one.plan(release=3), 3).run(one.plan(release=4))) is State.STARTED


def test_another_recorded_plan_runs_whole(world):
    one = world(playbook={"env": {"A": "1"}})
    plan = one.plan(release=3)
    one.run(plan).record(plan, 3)
    other = world(playbook={"env": {"A": "2"}}).plan()
    assert seen(one, plan=other) is State.OTHER
    assert seen(one, plan=None) is State.OTHER


def test_what_serves_is_not_taken_for_remains_when_a_node_leaves_or_joins_the_inventory(world):
    one = world()
    plan = one.plan(release=3)
    one.run(plan).record(plan, 3)
    shrunk = world("alpha")
    shrunk.facts = {"alpha": one.facts["alpha"]}
    assert seen(shrunk) is State.OTHER
    grown = world("alpha beta gamma")
    grown.facts |= one.facts
    assert seen(grown) is State.OTHER


@pytest.mark.parametrize("rank_state", ["exited", "created", "dead", "unknown"])
def test_a_rank_that_does_not_run(world, rank_state):
    one = world()
    plan = one.plan(release=3)
    one.run(plan, "alpha").run(plan, "beta", state=rank_state).record(plan, 3)
    assert seen(one) is State.REMAINS


def test_half_of_the_ranks(world):
    one = world()
    plan = one.plan(release=3)
    assert seen(one.run(plan, "alpha").record(plan, 3)) is State.REMAINS


def test_a_dead_rank_beside_those_that_run(world):
    one = world()
    plan = one.plan(release=3)
    one.run(one.plan(release=2), "beta", state="exited").run(plan).record(plan, 3)
    assert seen(one) is State.REMAINS


def test_another_plan_that_was_never_recorded(world):
    one = world(playbook={"env": {"A": "1"}})
    one.run(one.plan(release=3))
    assert seen(one, plan=world(playbook={"env": {"A": "2"}}).plan()) is State.REMAINS


def test_ranks_of_this_plan_from_two_starts(world):
    one = world()
    assert seen(one.run(one.plan(release=3), "alpha").run(one.plan(release=4), "beta")) is State.REMAINS


def test_two_plans_at_once(world):
    one = world()
    other = world(playbook={"env": {"A": "2"}}).plan(release=2)
    one.run(one.plan(release=3), "alpha").run(other, "beta").record(other, 2)
    assert seen(one) is State.REMAINS


def test_ranks_with_our_name_and_another_state_directory(world):
    one = world()
    one.run(one.plan(), "beta", **{"io.sparkcluster.state_dir": "/srv/other"})
    assert seen(one) is State.TAKEN
    assert seen(one.run(one.plan(), "alpha")) is State.TAKEN


def test_ranks_that_could_not_be_read_are_none_that_are_there(world):
    one = world()
    one.change("alpha", ranks={"unread": "docker does not answer"})
    assert seen(one) is State.EMPTY


def test_every_state_has_its_row():
    assert set(TABLE) == set(State)
    assert {found for found, (action, _) in TABLE.items() if action is Action.REFUSE} == {State.OTHER, State.TAKEN}


def test_the_next_number_is_above_every_record_and_every_try(world):
    one = world()
    assert next_number(one.facts.values()) == 1
    one.record(one.plan(), 3, "beta")
    assert next_number(one.facts.values()) == 4
    one.run(one.plan(release=7), "alpha", state="exited")
    assert next_number(one.facts.values()) == 8
