"""The view of a cluster from one set of facts."""

from __future__ import annotations

from sparkcluster.errors import HostTimeout
from sparkcluster.facts.collect import Collected
from sparkcluster.inspect.cluster import assess
from sparkcluster.release.states import State, group_states


def assessed(world, **errors):
    facts = {name: one for name, one in world.facts.items() if name not in errors}
    return assess(world.spec, Collected(facts, errors), facts)


def test_running_ranks_are_watched_and_queried_under_their_release_number(world):
    one = world(api={"key": {"env": "KEY"}})
    for recorded in (False, True):
        plan = one.plan(release=7)
        one = one.record(plan, 7) if recorded else one.run(plan)
        view = assessed(one)
        assert group_states(view)["default"].state is (State.SERVING if recorded else State.STARTED)
        container = view.plan.nodes["alpha"].containers[0]
        assert container.name == "sparkcluster-atlas-7-alpha"
        assert "/sparkcluster-atlas-7-alpha/" in container.env_file


def test_a_node_that_cannot_be_queried_is_reported_and_the_others_are_observed(world):
    one = world()
    one.change("alpha", gpus={"unread": "nvidia-smi: no devices were found"})
    error = HostTimeout("beta did not answer within 10 s", node="beta", hint="ping 192.168.86.12")
    view = assessed(one, beta=error)
    found = {(finding.code, finding.node) for finding in view.findings if finding.severity == "error"}
    assert ("SSH-003", "beta") in found
    assert ("HOST-003", "alpha") in found
    assert view.plan is None
