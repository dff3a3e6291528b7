"""What is kept of a release, and what runs as facts show it."""

from __future__ import annotations

import json

import pytest

from sparkcluster.endpoint.find import endpoints
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.inspect.cluster import has_recorded_ray
from sparkcluster.plan.records import cluster_ranks, newest, recorded_groups
from sparkcluster.spec.playbook import Playbook


def test_a_record_is_json_and_names_how_every_node_is_reached(world):
    site = world(nodes={"beta": {"ssh": {"port": 2222}}}, ssh={"user": "ann"})
    document = site.document(site.plan(5), 5)
    assert json.loads(json.dumps(document)) == document
    assert document["nodes"]["alpha"] == {"host": "192.168.86.11", "connection": "auto", "ssh": {"user": "ann"}}
    assert document["nodes"]["beta"]["ssh"] == {"user": "ann", "port": 2222}
    assert (document["number"], document["plan_hash"]) == (5, site.plan().hash)
    assert Playbook.model_validate(document["playbook"]) == site.spec.playbook


def test_a_record_says_where_to_ask(world):
    site = world(api={"host": "interconnect", "port": 9000, "key": {"env": "KEY"}})
    document = site.document(site.plan(5), 5)
    (endpoint,) = endpoints(document["plan"], "vllm").values()
    assert (endpoint.group, endpoint.head) == ("default", "alpha")
    assert endpoint.url == "http://192.168.177.11:9000/v1"
    assert endpoint.key_file is not None
    assert endpoint.key_file.endswith("secrets.env")


def test_the_newest_release_of_any_node_counts(world):
    site = world()
    site.record(site.plan(), 3, "alpha").record(site.plan(), 4, "beta")
    assert newest(site.facts.values()).number == 4
    site.change("beta", release={"unread": "no number and plan_hash"})
    assert newest(site.facts.values()).number == 3
    assert newest(world().facts.values()) is None


def test_the_release_that_runs_is_known_by_the_names_of_its_ranks(world):
    site = world()
    site.run(site.plan(4)).record(site.plan(4), 4)
    known = newest(site.facts.values())
    assert cluster_ranks("atlas", site.facts).of_release(known)
    assert not cluster_ranks("atlas", world().facts).of_release(known)
    other = world()
    assert not cluster_ranks("atlas", other.run(other.plan(5)).facts).of_release(known)
    assert not cluster_ranks("atlas", site.facts).of_release(None)


@pytest.mark.parametrize(
    "record",
    [
        {}, {"plan": None}, {"plan": []}, {"plan": {"nodes": None}}, {"plan": {"nodes": []}},
        {"plan": {"nodes": {"alpha": None}}}, {"plan": {"nodes": {"alpha": {"containers": None}}}},
        {"plan": {"nodes": {"alpha": {"containers": [None, {}, {"name": None}, {"name": "x"}]}}}},
    ],
)  # fmt: skip
def test_no_rank_is_of_a_damaged_record(record, world):
    release = ReleaseFact(number=4, plan_hash="x", record=record)
    site = world()
    assert not cluster_ranks("atlas", site.run(site.plan(4)).facts).of_release(release)
    assert not has_recorded_ray(release)


def test_a_record_of_an_older_version_is_one_of_groups_that_all_answered(world):
    site = world(playbook={"verify": {"expect": "204"}})
    document = site.document(site.plan(4), 4)
    whole = recorded_groups(document)["default"]
    del document["groups"]
    old = recorded_groups(document)["default"]
    assert (old.release, old.verified, old.network, old.secrets) == (4, True, None, {})
    assert (old.plan, old.verify.expect) == (whole.plan, "204")
    assert recorded_groups({"number": 4, "plan": {"model": "m"}}) == {}
