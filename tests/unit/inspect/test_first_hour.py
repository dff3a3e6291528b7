"""Contents of a bundle in addition to facts: from nodes with scripted answers, some invalid."""

from __future__ import annotations

import json
import re

import pytest

from sparkcluster.errors import HostTimeout
from sparkcluster.facts.collect import Collected
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import bundle
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.preflight import preflight
from sparkcluster.report import Report
from sparkcluster.runtime import observed
from sparkcluster.topology.build import build
from tests.unit.conftest import accepted

SERIAL = "Serial Number: 1423025012345"
LOOK = {"show_gids": f"DEV\tPORT\n{SERIAL}", "plain": "HCAs: 4", "rank": {"unread": "no answer within 60 s"}}


@pytest.fixture
def gather(world):
    def run(answer=LOOK, *, containers=False, beta=None):
        one = world()
        hosts = {name: FakeHost(name).program("first_hour", answer) for name in one.facts}
        if beta is not None:
            last = list(hosts)[-1]
            hosts[last].run = lambda *_, **__: (_ for _ in ()).throw(beta)
        run.hosts = hosts
        spec = accepted(one.spec)
        view = View(spec, Collected(one.facts, {}), one.facts, topology=build(spec, one.facts))
        return bundle.gather(Fleet(hosts), view, Report(), containers=containers)

    return run


def test_observations_of_nodes_are_collected_with_reasons_for_missing_ones(gather):
    assert list(gather().values()) == [LOOK, LOOK]
    first, second = gather("nonsense", beta=HostTimeout("beta: no answer", node="beta")).values()
    assert "first_hour failed" in first["unread"]
    assert second["unread"] == "beta: no answer"


def test_the_preflight_bundle_has_these_observations_without_serial_numbers(gather, world, tmp_path):
    one = world()
    hosts = {
        name: FakeHost(name).program("probe", json.loads(facts.model_dump_json())) for name, facts in one.facts.items()
    }
    found = preflight(Fleet(hosts), one.spec, Report())
    observed.note(one.spec.inventory.cluster, "up", text=SERIAL)
    files = dict(bundle.contents(found, gather()))
    assert {"README.txt", "findings.txt", "preflight.json", "first-hour.json", "observed.jsonl"} <= set(files)
    assert not any("1423025012345" in text for text in files.values())
    listed = {line.split()[0] for line in files["README.txt"].split("\n\n")[1].splitlines()}
    assert listed >= {re.sub("/.*", "/", name) for name in files if name != "README.txt"}
