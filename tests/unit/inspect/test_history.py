"""What was deployed, as every node's records tell it."""

from __future__ import annotations

import contextlib
import json

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded, main
from sparkcluster.errors import UsageError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.history import compared, history
from tests.unit.conftest import IMAGE

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


IMAGES = {letter: f"sha256:{letter * 64}" for letter in "abcde"}


class Deployed:
    """Releases of a cluster, each with an image, and what its nodes answer about what they keep of them."""

    def __init__(self, world, images, **changes):
        """``images`` is one letter for each release, oldest first."""
        one = world(**changes)
        self.spec, self.facts, self.documents = one.spec, one.facts, {}
        for number, letter in enumerate(images, 1):
            for name in one.facts:
                one.change(name, image={**IMAGE, "id": IMAGES[letter]})
            self.documents[number] = one.document(one.plan(number), number)
        numbers = list(self.documents)
        self.answers = {
            name: {
                "records": [self.documents[number] for number in numbers],
                "images": {f"{number:06d}": IMAGES[images[number - 1]] for number in numbers},
                "secrets": numbers,
                "switch": None,
            }
            for name in one.facts
        }

    def history(self):
        hosts = {
            name: FakeHost(name).program("records", answer).program("probe", self.facts[name].model_dump(mode="json"))
            for name, answer in self.answers.items()
        }
        return history(Fleet(hosts), self.spec)

    def kept(self):
        """Whether each release is kept, and what of it is lost, by number."""
        return {each["number"]: (each["kept"], each["lost"]) for each in self.history()["releases"]}


WHOLE = (True, {"image": [], "secrets": []})
OLD = (False, {"image": [], "secrets": []})


def test_releases_of_the_three_newest_images_are_kept(world):
    deployed = Deployed(world, "aabcbd")
    assert deployed.kept() == {1: OLD, 2: OLD, **dict.fromkeys((3, 4, 5, 6), WHOLE)}


def test_what_a_node_lost_of_a_release_is_named_with_the_node(world):
    deployed = Deployed(world, "abcd")
    alpha, beta = deployed.answers["alpha"], deployed.answers["beta"]
    del alpha["images"]["000001"], alpha["images"]["000002"]
    beta["images"] |= {"000003": IMAGES["d"]}
    alpha["secrets"], beta["secrets"] = [3, 4], [4]
    assert deployed.kept() == {
        1: OLD,
        2: (True, {"image": ["alpha"], "secrets": ["alpha", "beta"]}),
        3: (True, {"image": ["beta"], "secrets": ["beta"]}),
        4: WHOLE,
    }


def test_a_node_that_missed_a_record_has_lost_the_release(world):
    deployed = Deployed(world, "ab")
    deployed.answers["beta"] = {"records": [deployed.documents[1]], "images": {}, "secrets": []}
    lost = {"image": ["beta"], "secrets": ["beta"]}
    assert deployed.kept() == {1: (True, lost), 2: (True, lost)}


def test_images_that_docker_does_not_list_are_not_said_to_be_lost(world):
    deployed = Deployed(world, "ab")
    deployed.answers["beta"]["images"] = None
    assert deployed.kept() == {1: WHOLE, 2: WHOLE}
    assert deployed.history()["errors"] == {"beta": "Docker does not say which images of releases it keeps"}


def test_a_release_of_processes_has_its_secrets_alone(world):
    deployed = Deployed(world, "ab", runtime={"kind": "process"})
    for answer in deployed.answers.values():
        answer["images"] = None
    assert deployed.kept() == {1: WHOLE, 2: WHOLE}
    deployed.answers["beta"]["secrets"] = [2]
    assert deployed.kept()[1] == (True, {"image": [], "secrets": ["beta"]})
    assert deployed.history()["errors"] == {}


def test_a_group_that_never_answered_has_lost_nothing(world):
    one = world("alpha beta gamma delta", groups=[
        {"name": "east", "nodes": ["alpha", "beta"]}, {"name": "west", "nodes": ["gamma", "delta"]},
    ])  # fmt: skip
    document = one.document(one.plan(1), 1, answered=["east"])
    answer = {"records": [document], "images": {"000001": IMAGE["id"]}, "secrets": [1]}
    nothing = {"records": [document], "images": {}, "secrets": []}
    hosts = {
        name: FakeHost(name)
        .program("records", answer if name in {"alpha", "beta"} else nothing)
        .program("probe", facts.model_dump(mode="json"))
        for name, facts in one.facts.items()
    }
    (release,) = history(Fleet(hosts), one.spec)["releases"]
    assert (release["kept"], release["lost"]) == WHOLE


def test_a_record_of_an_older_version_is_not_kept(world):
    fleet, spec = answering(world, alpha=[RECORD], beta=[RECORD])
    (release,) = history(fleet, spec)["releases"]
    assert (release["kept"], release["lost"]) == OLD


@pytest.mark.parametrize(
    "answer",
    [
        {"images": {"../x": IMAGES["a"]}},
        {"images": {"000001": "a b"}},
        {"images": {f"{number:06d}": IMAGES["a"] for number in range(1025)}},
        {"secrets": [-1]},
        {"secrets": list(range(1025))},
        {"switch": 3},
    ],
    ids=["tag", "image", "images", "number", "numbers", "switch"],
)
def test_what_no_honest_node_says_of_what_it_keeps_is_the_error_of_that_node(world, answer):
    deployed = Deployed(world, "a")
    deployed.answers["beta"] |= answer
    found = deployed.history()
    assert [release["nodes"] for release in found["releases"]] == [["alpha"]]
    assert found["errors"]["beta"].startswith("beta sent a malformed answer to records: ")


@pytest.mark.parametrize(
    "change",
    [
        {"groups": {"default": {"image": {"ids": {"alpha": "a b"}}}}},
        {"groups": 3},
        {"plan": {"model": "m", "image": None, "nodes": {"--also": {}}}},
    ],
    ids=["image", "groups", "node"],
)
def test_a_record_that_tells_nonsense_of_its_image_is_malformed(world, change):
    deployed = Deployed(world, "ab")
    beta = deployed.answers["beta"]
    beta["records"] = [{**beta["records"][0], **change}, beta["records"][1]]
    found = deployed.history()
    assert [release["nodes"] for release in found["releases"]] == [["alpha", "beta"], ["alpha"]]
    assert found["errors"]["beta"].startswith("record 1 of 2 is malformed: ")


def test_what_is_lost_is_in_the_table(monkeypatch, capsys, world):
    deployed = Deployed(world, "abcd")
    del deployed.answers["beta"]["images"]["000003"]
    deployed.answers["alpha"]["secrets"] = [2, 4]
    found = deployed.history()
    json_schemas.validate("releases", {"cluster": "atlas", **found})

    @contextlib.contextmanager
    def querying(args):
        yield None, deployed.spec, None

    monkeypatch.setattr("sparkcluster.cli.releases.querying", querying)
    monkeypatch.setattr("sparkcluster.inspect.history.history", lambda *_: found)
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["releases", "inventory.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines[0].index("KEPT")
    assert [line[place:].partition("  ")[0] for line in lines[1:]] == [
        "yes",
        "image lost on beta; secrets lost on alpha",
        "yes",
        "-",
    ]
