"""Deployed releases, from the records of every node."""

from __future__ import annotations

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.releases import compared, history
from tests.unit.conftest import IMAGE

RECORD = {
    "number": 3,
    "plan_hash": "ab",
    "verified_at": 1.0,
    "operator": "ann@desk",
    "plan": {"model": "tiny", "image": None, "nodes": {}},
}


def answering(world, **records):
    """A fleet whose nodes answer ``records``, and its spec."""
    one = world()
    hosts = {
        name: FakeHost(name)
        .program("releases", {"records": records[name]})
        .program("probe", facts.model_dump(mode="json"))
        for name, facts in one.facts.items()
    }
    return Fleet(hosts), one.spec


@pytest.mark.parametrize("wrong", [{"plan": []}, {"operator": None}, {"number": "x"}])
def test_a_record_of_the_wrong_shape_is_reported_and_the_others_are_listed(world, wrong):
    fleet, spec = answering(world, alpha=[RECORD], beta=[RECORD, {**RECORD, **wrong}])
    found = history(fleet, spec)
    assert [(release["number"], release["nodes"]) for release in found["releases"]] == [(3, ["alpha", "beta"])]
    assert list(found["errors"]) == ["beta"]
    assert found["errors"]["beta"].startswith("record 2 of 2 is malformed: ")


def recorded(world, **nodes):
    """A fleet whose nodes have recorded the releases ``nodes`` of one cluster, each with another image."""
    one = world()
    for name in one.facts:
        one.change(name, image=None)
    documents = {}
    for number in (1, 2, 3):
        plan = one.plan(number)
        documents[number] = {**one.document(plan, number), "image_digest": f"a/b@sha256:{number}"}
    return answering(world, **{name: [documents[number] for number in numbers] for name, numbers in nodes.items()})


def test_two_releases_on_different_nodes_are_compared(world):
    fleet, spec = recorded(world, alpha=[1], beta=[3])
    found = compared(fleet, spec, 1, 3)
    assert (found["old"], found["new"]) == (1, 3)
    assert "digest: a/b@sha256:1 → a/b@sha256:3" in found["differences"]


def test_if_nodes_disagree_about_a_release_the_record_of_the_majority_is_used(world):
    one = world("alpha beta gamma")
    plan = one.plan(1)
    right = one.document(plan, 1)
    other = {**right, "plan_hash": "f" * 64, "operator": "mallory@desk"}
    hosts = {
        name: FakeHost(name).program("releases", {"records": [document]})
        for name, document in {"alpha": other, "beta": right, "gamma": right}.items()
    }
    assert compared(Fleet(hosts), one.spec, 1, 1)["differences"] == []


def test_an_unrecorded_release_is_refused(world):
    fleet, spec = recorded(world, alpha=[1, 2], beta=[2])
    with pytest.raises(UsageError, match="no node has a readable record of release 9") as caught:
        compared(fleet, spec, 1, 9)
    assert caught.value.hint.startswith("sparkcluster releases INVENTORY ")


IMAGES = {letter: f"sha256:{letter * 64}" for letter in "abcde"}


class Deployed:
    """Releases of a cluster, each with an image, and the nodes' answers about kept ones."""

    def __init__(self, world, images, **changes):
        """``images`` has one letter per release, oldest first."""
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
            name: FakeHost(name).program("releases", answer).program("probe", self.facts[name].model_dump(mode="json"))
            for name, answer in self.answers.items()
        }
        return history(Fleet(hosts), self.spec)

    def kept(self):
        """Whether each release is kept, and its missing parts, by number."""
        return {each["number"]: (each["kept"], each["lost"]) for each in self.history()["releases"]}


WHOLE = (True, {"image": [], "secrets": []})
OLD = (False, {"image": [], "secrets": []})


def test_a_release_is_kept_if_a_node_has_its_image_and_missing_images_are_reported(world):
    deployed = Deployed(world, "abcd")
    alpha, beta = deployed.answers["alpha"], deployed.answers["beta"]
    del alpha["images"]["000001"], alpha["images"]["000002"], beta["images"]["000001"]
    beta["images"] |= {"000003": IMAGES["d"]}
    alpha["secrets"], beta["secrets"] = [3, 4], [4]
    assert deployed.kept() == {
        1: OLD,
        2: (True, {"image": ["alpha"], "secrets": ["alpha", "beta"]}),
        3: (True, {"image": ["beta"], "secrets": ["beta"]}),
        4: WHOLE,
    }


@pytest.mark.parametrize(
    "answer",
    [
        {"images": {"../x": IMAGES["a"]}},
        {"images": {"000001": "a b"}},
        {"secrets": [-1]},
        {"switch": 3},
    ],
    ids=["tag", "image", "number", "switch"],
)
def test_an_impossible_answer_about_kept_images_is_an_error_of_that_node(world, answer):
    deployed = Deployed(world, "a")
    deployed.answers["beta"] |= answer
    found = deployed.history()
    assert [release["nodes"] for release in found["releases"]] == [["alpha"]]
    assert found["errors"]["beta"].startswith("beta sent a malformed answer to releases: ")
