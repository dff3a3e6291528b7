"""What was deployed, as every node's records tell it."""

from __future__ import annotations

import pytest

from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.history import Records, history

RECORD = {
    "number": 3,
    "plan_hash": "ab",
    "verified_at": 1.0,
    "operator": "ann@desk",
    "plan": {"model": "tiny", "image": None},
}


def whole(record):
    return list(Records(records=[record]).whole())


def test_a_record_as_it_is_written_is_listed():
    assert whole(RECORD)


@pytest.mark.parametrize("key", RECORD)
def test_a_record_that_lacks_something_is_passed_over(key):
    assert not whole({name: value for name, value in RECORD.items() if name != key})


def test_a_plan_that_is_none_is_passed_over():
    assert not whole({**RECORD, "plan": []})


def test_a_release_is_listed_with_the_digest_that_can_be_pulled(world):
    one = world()
    facts = {name: facts.model_dump(mode="json") for name, facts in one.facts.items()}
    hosts = {}
    for name, records in (
        ("alpha", [RECORD]),
        ("beta", [RECORD, {**RECORD, "number": 4, "image_digest": "a/b@sha256:1"}]),
    ):
        hosts[name] = FakeHost(name).program("records", {"records": records}).program("probe", facts[name])
    listed = history(Fleet(hosts), one.spec)
    assert [(release["number"], release["digest"], release["nodes"]) for release in listed] == [
        (4, "a/b@sha256:1", ["beta"]),
        (3, None, ["alpha", "beta"]),
    ]


def test_a_node_that_has_something_else_under_a_number_is_listed_apart(world):
    one = world()
    plan = one.plan(3)
    one.run(plan).record(plan, 3)
    hosts = {}
    for name, facts in one.facts.items():
        hosts[name] = FakeHost(name).program("probe", facts.model_dump(mode="json"))
    document = one.facts["alpha"].release.record
    hosts["alpha"].program("records", {"records": [document]})
    hosts["beta"].program("records", {"records": [{**document, "plan_hash": "f" * 64, "plan": RECORD["plan"]}]})
    listed = history(Fleet(dict(reversed(hosts.items()))), one.spec)
    found = {release["nodes"][0]: (release["model"], release["running"]) for release in listed}
    assert found == {"alpha": ("Qwen/Qwen3-8B", True), "beta": ("tiny", False)}
