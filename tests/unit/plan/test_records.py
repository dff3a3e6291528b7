"""What is kept of a release, and what runs as facts show it."""

from __future__ import annotations

import json

from sparkcluster.endpoint.find import endpoints
from sparkcluster.plan.records import holding, newest, record
from sparkcluster.spec.playbook import Playbook


def test_a_record_is_json_and_names_how_every_node_is_reached(world):
    one = world(nodes={"beta": {"ssh": {"port": 2222}}}, ssh={"user": "ann"})
    document = record(one.spec, one.plan(5), number=5, operator="ann@desk", verified_at=1.5, version="0.1")
    assert json.loads(json.dumps(document)) == document
    assert document["nodes"]["alpha"] == {"host": "192.168.86.11", "connection": "auto", "ssh": {"user": "ann"}}
    assert document["nodes"]["beta"]["ssh"] == {"user": "ann", "port": 2222}
    assert (document["number"], document["plan_hash"]) == (5, one.plan().hash)
    assert Playbook.model_validate(document["playbook"]) == one.spec.playbook


def test_a_record_says_where_to_ask(world):
    one = world(api={"host": "interconnect", "port": 9000, "key": {"env": "KEY"}})
    document = record(one.spec, one.plan(5), number=5, operator="", verified_at=1.5, version="0.1")
    (endpoint,) = endpoints(document["plan"], "vllm").values()
    assert (endpoint.group, endpoint.head) == ("default", "alpha")
    assert endpoint.url == "http://192.168.177.11:9000/v1"
    assert endpoint.key_file is not None
    assert endpoint.key_file.endswith("secrets.env")


def test_the_newest_release_of_any_node_counts(world):
    one = world()
    one.record(one.plan(), 3, "alpha").record(one.plan(), 4, "beta")
    assert newest(one.facts.values()).number == 4
    one.change("beta", release={"unread": "no number and plan_hash"})
    assert newest(one.facts.values()).number == 3
    assert newest(world().facts.values()) is None


def test_the_release_that_runs_is_known_where_the_ranks_agree(world):
    one = world()
    held = holding("atlas", one.run(one.plan(4)).facts)
    assert held.release() == 4
    assert held.hashes() == {one.plan().hash}
    mixed = world()
    mixed.run(mixed.plan(4), "alpha").run(mixed.plan(5), "beta")
    assert holding("atlas", mixed.facts).release() is None
    assert holding("atlas", world().facts).release() is None
