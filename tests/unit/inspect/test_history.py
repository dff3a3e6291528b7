"""What was deployed, as every node's records tell it."""

from __future__ import annotations

import json

import pytest

from sparkcluster.cli.main import guarded, main
from sparkcluster.errors import UsageError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.history import compared, history

RECORD = {
    "number": 3,
    "plan_hash": "ab",
    "verified_at": 1.0,
    "operator": "ann@desk",
    "plan": {"model": "tiny", "image": None},
}


def answering(world, **records):
    """A fleet whose nodes answer ``records``, and its spec."""
    one = world()
    hosts = {
        name: FakeHost(name)
        .program("records", {"records": records[name]})
        .program("probe", facts.model_dump(mode="json"))
        for name, facts in one.facts.items()
    }
    return Fleet(hosts), one.spec


WRONG = {
    **{f"without {key}": [RECORD, {name: value for name, value in RECORD.items() if name != key}] for key in RECORD},
    "no plan": [RECORD, {**RECORD, "plan": []}],
}


@pytest.mark.parametrize("records", WRONG.values(), ids=WRONG)
def test_a_record_of_the_wrong_shape_is_reported_and_the_others_are_listed(world, records):
    fleet, spec = answering(world, alpha=[RECORD], beta=records)
    found = history(fleet, spec)
    assert [(release["number"], release["nodes"]) for release in found["releases"]] == [(3, ["alpha", "beta"])]
    assert list(found["errors"]) == ["beta"]
    assert found["errors"]["beta"].startswith("record 2 of 2 is malformed: ")


@pytest.mark.parametrize("records", [None, {}, [3], [RECORD] * 2000], ids=["none", "an object", "numbers", "too many"])
def test_an_answer_of_the_wrong_shape_is_the_error_of_its_node(world, records):
    fleet, spec = answering(world, alpha=[RECORD], beta=records)
    found = history(fleet, spec)
    assert [release["nodes"] for release in found["releases"]] == [["alpha"]]
    assert found["errors"]["beta"].startswith("beta sent a malformed answer to records: records")


def test_a_release_is_listed_with_the_digest_that_can_be_pulled(world):
    fleet, spec = answering(
        world, alpha=[RECORD], beta=[RECORD, {**RECORD, "number": 4, "image_digest": "a/b@sha256:1"}]
    )
    listed = history(fleet, spec)["releases"]
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
    listed = history(Fleet(dict(reversed(hosts.items()))), one.spec)["releases"]
    found = {release["nodes"][0]: (release["model"], release["running"]) for release in listed}
    assert found == {"alpha": ("Qwen/Qwen3-8B", True), "beta": ("tiny", False)}


def test_a_malformed_record_is_shown_in_text_and_json(tmp_path, capsys):
    releases = tmp_path / "state" / "clusters" / "atlas" / "releases"
    releases.mkdir(parents=True, mode=0o700)
    (releases / "000002.json").write_text('{"number": 2}')
    (releases / "000003.json").write_text(json.dumps(RECORD))
    (tmp_path / "playbook.yaml").write_text("{name: tiny, model: {id: a/b}, executor: native}")
    inventory = tmp_path / "inventory.yaml"
    node = {"name": "here", "host": "localhost", "connection": "local"}
    inventory.write_text(
        json.dumps(
            {
                "cluster": "atlas", "nodes": [node], "playbook": "playbook.yaml", "runtime": {"kind": "process"},
                "state_dir": str(tmp_path / "state"),
            }
        )
    )  # fmt: skip
    assert main(["releases", str(inventory)]) == 0
    shown = capsys.readouterr()
    assert "tiny" in shown.out
    assert "warning: here: record 1 of 2 is malformed: plan_hash: Field required" in shown.err
    assert main(["releases", str(inventory), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [release["number"] for release in document["releases"]] == [3]
    assert list(document["errors"]) == ["here"]


def recorded(world, **nodes):
    """A fleet whose nodes have recorded the releases ``nodes`` of one cluster, with another image in each."""
    one = world()
    for name in one.facts:
        one.change(name, image=None)
    documents = {}
    for number in (1, 2, 3):
        plan = one.plan(number)
        documents[number] = {**one.document(plan, number), "image_digest": f"a/b@sha256:{number}"}
    return answering(world, **{name: [documents[number] for number in numbers] for name, numbers in nodes.items()})


def test_two_releases_are_compared_also_where_each_is_on_another_node(world):
    fleet, spec = recorded(world, alpha=[1], beta=[3])
    found = compared(fleet, spec, 1, 3)
    assert (found["old"], found["new"]) == (1, 3)
    assert "digest: a/b@sha256:1 → a/b@sha256:3" in found["differences"]


def test_of_a_number_that_nodes_disagree_about_the_record_of_most_counts(world):
    one = world("alpha beta gamma")
    plan = one.plan(1)
    right = one.document(plan, 1)
    other = {**right, "plan_hash": "f" * 64, "operator": "mallory@desk"}
    hosts = {
        name: FakeHost(name).program("records", {"records": [document]})
        for name, document in {"alpha": other, "beta": right, "gamma": right}.items()
    }
    assert compared(Fleet(hosts), one.spec, 1, 1)["differences"] == []


def test_a_release_that_nobody_recorded_is_refused_with_those_that_exist(world):
    fleet, spec = recorded(world, alpha=[1, 2], beta=[2])
    with pytest.raises(UsageError, match="has no release 9; it has 1, 2") as caught:
        compared(fleet, spec, 1, 9)
    assert caught.value.hint == "sparkcluster releases inventory.yaml"


def test_a_release_whose_record_is_damaged_is_not_compared(world):
    fleet, spec = answering(world, alpha=[RECORD, {**RECORD, "number": 4}], beta=[])
    with pytest.raises(UsageError, match="the record of release 3 on alpha is malformed: ") as caught:
        compared(fleet, spec, 3, 4)
    assert caught.value.node == "alpha"


@pytest.mark.parametrize("numbers", [["3"], ["3", "4", "5"], ["0", "1"], ["a", "b"]])
def test_other_than_two_releases_are_a_usage_error(tmp_path, capsys, numbers):
    (tmp_path / "inventory.yaml").write_text("")
    assert guarded(["releases", str(tmp_path / "inventory.yaml"), *numbers]) == 2
    assert "Traceback" not in capsys.readouterr().err
