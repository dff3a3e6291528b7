"""Every row of the state table, from facts, for each group."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from sparkcluster.facts.collect import Collected
from sparkcluster.inspect.cluster import assess
from sparkcluster.plan.release_record import next_number
from sparkcluster.release.states import Action, GroupState, State, Verdict, after_asking, group_states

PAIRS = [{"name": "east", "nodes": ["alpha", "beta"]}, {"name": "west", "nodes": ["gamma", "delta"]}]


def states(world, facts=None):
    return group_states(assess(world.spec, Collected(facts or world.facts, {}), facts or world.facts))


def seen(world, facts=None):
    """The state of the only group."""
    (group,) = states(world, facts).values()
    return group.state


def test_no_ranks_of_this_cluster(world):
    assert seen(world()) is State.EMPTY
    assert seen(world().change("beta", image=None)) is State.EMPTY


def test_all_ranks_of_this_plan_without_a_record(world):
    cluster = world()
    assert seen(cluster.run(cluster.plan(release=3))) is State.STARTED


def test_all_ranks_of_this_plan_with_their_record(world):
    cluster = world()
    plan = cluster.plan(release=3)
    assert seen(cluster.run(plan).record(plan, 3)) is State.SERVING


@pytest.mark.parametrize("recorded_on", ["alpha", "beta"])
def test_a_release_missing_on_one_node_is_verified_and_recorded_there(world, recorded_on):
    cluster = world()
    plan = cluster.plan(release=3)
    assert seen(cluster.run(plan).record(plan, 3, recorded_on)) is State.STARTED


def test_another_recorded_plan_that_runs_completely(world):
    cluster = world(playbook={"env": {"A": "1"}})
    plan = cluster.plan(release=3)
    cluster.run(plan).record(plan, 3)
    other = states(world(playbook={"env": {"A": "2"}}), cluster.facts)["default"]
    assert (other.state, [each.text for each in other.planned]) == (State.OTHER, ["every node: env A: 1 → 2"])
    lacking = {name: facts.model_copy(update={"image": None}) for name, facts in cluster.facts.items()}
    newer = states(world(playbook={"image": "vllm/vllm-openai:v0.32.0"}), lacking)["default"]
    assert newer.state is State.OTHER
    assert newer.planned[0].text == "image: vllm/vllm-openai:v0.18.0 → vllm/vllm-openai:v0.32.0"


def test_a_serving_release_is_not_treated_as_leftovers_when_a_node_leaves_or_joins_the_inventory(world):
    cluster = world()
    plan = cluster.plan(release=3)
    cluster.run(plan).record(plan, 3)
    assert seen(world("alpha"), {"alpha": cluster.facts["alpha"]}) is State.OTHER
    grown = world("alpha beta gamma")
    assert seen(grown, grown.facts | cluster.facts) is State.OTHER


@pytest.mark.parametrize("rank_state", ["exited", "unknown"])
def test_a_rank_that_is_not_running(world, rank_state):
    cluster = world()
    plan = cluster.plan(release=3)
    cluster.run(plan, "alpha").run(plan, "beta", state=rank_state).record(plan, 3)
    assert seen(cluster) is State.REMAINS


def test_another_plan_without_a_record(world):
    cluster = world(playbook={"env": {"A": "1"}})
    cluster.run(cluster.plan(release=3))
    edited = world(playbook={"env": {"A": "2"}})
    (group,) = states(edited, cluster.facts).values()
    assert (group.state, group.recorded) == (State.OTHER, None)
    assert seen(edited, cluster.change("beta", ranks=()).facts) is State.REMAINS, "a rank is missing"


def test_ranks_with_the_same_cluster_name_and_another_state_directory(world):
    cluster = world()
    cluster.run(cluster.plan(), "beta", **{"io.sparkcluster.state_dir": "/srv/other"})
    assert seen(cluster) is State.TAKEN
    assert seen(cluster.run(cluster.plan(), "alpha")) is State.TAKEN


def test_the_next_number_is_above_every_record_and_every_attempt(world):
    cluster = world()
    assert next_number(cluster.facts, "atlas") == 1
    cluster.record(cluster.plan(), 3, "beta")
    assert next_number(cluster.facts, "atlas") == 4
    cluster.run(cluster.plan(release=7), "alpha", state="exited")
    cluster.run(cluster.plan(release=9), "beta", **{"io.sparkcluster.cluster": "atlas-embed"})
    assert next_number(cluster.facts, "atlas") == 8


# ------------------------------------------------------------------------------------------- several groups


@pytest.fixture
def pairs(world):
    """Two groups of two with release 3 recorded; ``pairs(east=…, west=…)`` sets their ranks."""

    def make(east="running", west="running", **changes):
        cluster = world("alpha beta gamma delta", groups=PAIRS, **changes)
        plan = cluster.plan(release=3)
        cluster.record(plan, 3)
        for nodes, state in ((("alpha", "beta"), east), (("gamma", "delta"), west)):
            if state:
                cluster.run(plan, nodes[0]).run(plan, nodes[1], state=state)
        return cluster

    return make


@pytest.mark.parametrize(
    ("west", "state"), [("running", State.SERVING), ("exited", State.REMAINS), (None, State.EMPTY)]
)
def test_each_group_has_a_separate_state(pairs, west, state):
    found = states(pairs(west=west))
    assert {name: group.state for name, group in found.items()} == {"east": State.SERVING, "west": state}


# ------------------------------------------------------------------------------------------- drift


def with_changed_address(cluster, spark, **changes):
    """The facts of ``cluster`` where beta's first twin has another address, or another GID index."""
    facts = dict(cluster.facts)
    interfaces = {"enp1s0f0np0": "192.168.177.12/24", "enP2p1s0f0np0": "192.168.178.12/24", **changes}
    fresh = spark(interfaces, management="192.168.86.12/24")
    update = {"interfaces": fresh.interfaces, "hcas": fresh.hcas}
    facts["beta"] = cluster.facts["beta"].model_copy(update=update)
    return facts


def test_an_address_changed_since_the_start_is_drift_and_not_another_plan(world, spark):
    cluster = world()
    plan = cluster.plan(release=3)
    cluster.run(plan).record(plan, 3)
    group = states(cluster, with_changed_address(cluster, spark, enp1s0f0np0="192.168.177.99/24"))["default"]
    assert (group.state, group.planned) == (State.SERVING, ())
    assert group.drift == ("beta: address 192.168.177.12 → 192.168.177.99",)


def test_drift_with_an_edit_is_another_plan(world, spark):
    cluster = world(playbook={"env": {"A": "1"}})
    plan = cluster.plan(release=3)
    cluster.run(plan).record(plan, 3)
    facts = with_changed_address(cluster, spark, enp1s0f0np0="192.168.177.99/24")
    assert seen(world(playbook={"env": {"A": "2"}}), facts) is State.OTHER


# ------------------------------------------------------------------------------------------- what to do


@pytest.mark.parametrize("seen", list(itertools.product((State.SERVING, State.OTHER), *[(False, True)] * 4)))
def test_a_release_that_is_not_dead_is_cleaned_only_with_replace(seen):
    state, answers, rotated, drifted, again = seen
    verdict = Verdict(None, None if answers else "no answer")
    group = GroupState("default", state, {}, drift=("moved",) * drifted, rotated=("KEY",) * rotated, verdict=verdict)
    dead = dataclasses.replace(group, verdict=Verdict(None, "no answer", dead="its engine says so"))
    assert after_asking(dead, again=again, replace=False) is Action.CLEAN
    as_wanted = state is State.SERVING and answers and not rotated
    assert after_asking(group, again=again, replace=False) is (Action.KEEP if as_wanted else Action.REFUSE)
    kept = as_wanted and not drifted and not again
    assert after_asking(group, again=again, replace=True) is (Action.KEEP if kept else Action.CLEAN)
