"""Commands that run something on a node stop before they contact one, unless this exact spec was accepted."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster.facts.collect import Collected
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import bundle, preflight
from sparkcluster.inspect.cluster import View
from sparkcluster.release import stage, up
from sparkcluster.release.rollback_target import RollbackTarget
from sparkcluster.release.rollout import Rollout
from sparkcluster.release.states import Desired, Options
from sparkcluster.report import Report
from tests.unit.conftest import accepted

RUN = {
    "up": lambda fleet, spec: up.up(fleet, Desired(spec, Options()), Report()),
    "stage": lambda fleet, spec: stage.stage(fleet, spec, stage.Options(), Report()),
    "preflight --deep": lambda fleet, spec: preflight.preflight(fleet, spec, Report(), deep=True),
    "preflight --bundle": lambda fleet, spec: bundle.gather(
        fleet, View(spec, Collected({}, {}), {}), Report(), containers=True
    ),
}


@pytest.mark.parametrize("what", RUN)
def test_an_unaccepted_document_runs_nowhere(world, what):
    asked, other = world(playbook={"setup": ["pip install x"]}), world(playbook={"setup": ["pip install y"]})
    hosts = {name: FakeHost(name) for name in asked.facts}
    for spec in (other.spec, dataclasses.replace(accepted(asked.spec), playbook=other.spec.playbook)):
        with pytest.raises(RuntimeError, match="was not accepted"):
            RUN[what](Fleet(hosts), spec)
    assert not any(host.requests for host in hosts.values())


def test_an_unaccepted_release_is_not_rolled_back_to(world):
    target = RollbackTarget(3, {}, world().spec)
    with pytest.raises(RuntimeError, match="was not accepted"):
        Rollout(Fleet({}), Desired(target.spec, Options(), "upgrade", target), Report())
