"""The record of a release, and the running release as facts show it."""

from __future__ import annotations

import json

import pytest

from sparkcluster.errors import PlanError
from sparkcluster.facts.base import Unread
from sparkcluster.plan.release_record import (
    cluster_ranks,
    kept_rank,
    labelled_heads,
    next_number,
    recorded_groups,
    recorded_release,
)
from sparkcluster.spec.playbook import Playbook


def test_a_record_is_json_with_only_the_address_of_every_node(world):
    site = world(nodes={"beta": {"ssh": {"port": 2222}}}, ssh={"user": "ann"})
    document = site.document(site.plan(5), 5)
    assert json.loads(json.dumps(document)) == document
    assert document["nodes"] == {"alpha": {"host": "192.168.86.11"}, "beta": {"host": "192.168.86.12"}}
    assert (document["number"], document["plan_hash"]) == (5, site.plan().hash)
    assert Playbook.model_validate(document["playbook"]) == site.spec.playbook


def known(site):
    return recorded_release(site.spec.inventory, site.facts)


def test_a_group_is_defined_by_the_record_on_its_head(world):
    site = world()
    site.record(site.plan(), 3, "alpha").record(site.plan(), 4, "beta")
    assert known(site).number == 3
    site.change("beta", release={"unread": "no number and plan_hash"})
    assert known(site).number == 3
    site.change("beta", release=None)
    assert known(site).number == 3
    assert known(world()) is None


def test_a_worker_without_its_head_defines_no_group(world):
    site = world()
    assert known(site.run(site.plan(4)).record(site.plan(4), 4, "beta")) is None


PAIRS = [{"name": "east", "nodes": ["alpha", "beta"]}, {"name": "west", "nodes": ["gamma", "delta"]}]
FOUR = "alpha beta gamma delta"


def test_each_group_is_the_one_of_its_head(world):
    site = world(FOUR, groups=PAIRS)
    site.record(site.plan(), 3)
    site.record(site.plan(), 5, "gamma")
    found = recorded_groups(known(site).record)
    assert list(found) == ["east", "west"]
    assert (found["east"].ranks, found["west"].head) == (
        {"alpha": {"sparkcluster-atlas-1-alpha"}, "beta": {"sparkcluster-atlas-1-beta"}}, "gamma",
    )  # fmt: skip
    for name in ("gamma", "delta"):
        del site.facts[name]
    assert list(recorded_groups(known(site).record)) == ["east", "west"]


def test_if_two_nodes_claim_a_group_the_one_with_rank_0_precedes_then_the_first(world):
    site, turned = world(), world("beta alpha")
    plans = site.plan(3), turned.plan(4)
    site.record(plans[0], 3, "alpha")
    site.change("beta", release=turned.record(plans[1], 4).facts["beta"].release)
    assert known(site).number == 3
    assert known(site.run(plans[1], "beta")).number == 4
    assert known(site.run(plans[0], "alpha", state="exited")).number == 3


@pytest.mark.parametrize(
    "harm",
    [
        lambda plan: plan["nodes"].update({"a\x1b[2J": plan["nodes"]["beta"]}),
        lambda plan: plan["nodes"]["alpha"].update(containers=[{}]),
        lambda plan: plan["nodes"]["alpha"].update(containers=5),
        lambda plan: plan["nodes"]["alpha"]["containers"][0].update(name="../../x"),
        lambda plan: plan["nodes"].pop("alpha"),
    ],
)
def test_a_damaged_record_is_none(world, harm):
    site = world()
    document = json.loads(json.dumps(site.document(site.plan(3), 3)))
    harm(document["plan"])
    site.change("alpha", release={"number": 3, "plan_hash": "x", "record": document})
    assert known(site) is None


def test_only_the_record_of_rank_0_defines_the_head(world):
    """Alpha's start is not recorded yet; beta claims the group, with itself or an unreachable machine as the head."""
    site, turned = world(), world("beta alpha")
    site.run(site.plan(1))
    for plan, head in ((turned.plan(9), "beta"), (site.plan(9), "zeus")):
        document = json.loads(json.dumps(turned.document(plan, 9)))
        if head == "zeus":
            document["plan"]["nodes"]["zeus"] = document["plan"]["nodes"].pop("alpha")
        site.change("beta", release={"number": 9, "plan_hash": "x", "record": document})
        assert known(site) is None
    # A rank 0 on a node of another group does not count either.
    four = world(
        FOUR, groups=[{"name": "east", "nodes": ["gamma", "delta"]}, {"name": "west", "nodes": ["alpha", "beta"]}]
    )
    four.run(four.plan(3)).record(four.plan(3), 3)
    four.run(four.plan(9), "alpha", **{"io.sparkcluster.group": "east"})
    assert labelled_heads(four.spec.inventory, four.facts) == {"east": "gamma", "west": "alpha"}
    assert known(four).number == 3


def test_an_unknown_engine_in_a_record_is_never_imported(world):
    site = world()
    document = site.document(site.plan(3), 3)
    document["playbook"]["engine"] = "..cli"
    site.change("alpha", release={"number": 3, "plan_hash": "x", "record": document})
    assert known(site) is None


def test_a_huge_number_from_a_node_does_not_make_the_next_number_endless(world):
    site = world()
    site.run(site.plan(7), "alpha").record(site.plan(5), 5)
    assert next_number(site.facts, "atlas") == 8
    for label in ("9" * 5000, "²", "٣٣", "-4", "", "9" * 10):
        site.run(site.plan(1), "beta", **{"io.sparkcluster.release": label})
    site.change("beta", release={"number": 10**30, "plan_hash": "x", "record": {}})
    assert next_number(site.facts, "atlas") == 8


def test_the_running_release_is_identified_by_the_names_of_its_ranks(world):
    site = world()
    site.run(site.plan(4)).record(site.plan(4), 4)
    known = recorded_release(site.spec.inventory, site.facts)
    assert cluster_ranks("atlas", site.facts).of_release(known)
    assert not cluster_ranks("atlas", world().facts).of_release(known)
    other = world()
    assert not cluster_ranks("atlas", other.run(other.plan(5)).facts).of_release(known)
    assert not cluster_ranks("atlas", site.facts).of_release(None)


def test_a_record_of_an_older_version_counts_as_one_of_groups_that_all_answered(world):
    site = world(playbook={"verify": {"expect": "204"}})
    document = site.document(site.plan(4), 4)
    whole = recorded_groups(document)["default"]
    del document["groups"]
    old = recorded_groups(document)["default"]
    assert (old.release, old.verified, old.network, old.secrets) == (4, True, None, {})
    assert (old.plan, old.verify.expect) == (whole.plan, "204")
    assert recorded_groups({"number": 4, "plan": {"model": "m"}}) == {}


def test_a_node_keeps_image_and_secrets_of_its_rank(world, monkeypatch):
    monkeypatch.setenv("KEY", "s3cret")
    pairs = [{"name": "east", "nodes": ["alpha", "beta"]}, {"name": "west", "nodes": ["gamma", "delta"]}]
    site = world("alpha beta gamma delta", groups=pairs, api={"key": {"env": "KEY"}})
    site.change("beta", image=site.facts["beta"].image.model_dump() | {"id": "sha256:" + "b" * 64})
    groups = recorded_groups(json.loads(json.dumps(site.document(site.plan(7), 9, answered=["east"])))).values()
    head = site.plan(7).nodes["alpha"].containers[0]
    assert kept_rank(groups, "alpha") == {"rank": {"release": 7, "image": head.image, "env_file": head.env_file}}
    assert head.env_file.endswith(f"/ranks/{head.name}/secrets.env")
    assert kept_rank(groups, "beta")["rank"]["image"] == "sha256:" + "b" * 64
    assert kept_rank(groups, "gamma") == {}, "its group has not answered"
    assert kept_rank(groups, "omega") == {}


def test_a_node_that_exhausts_the_release_numbers_is_named(world):
    site = world()
    site.record(site.plan(5), 5)
    site.change("beta", release={"number": 999_999_998, "plan_hash": "x", "record": {}})
    with pytest.raises(PlanError, match="beta has a record of release 999999998, but no other node has one above 5"):
        next_number(site.facts, "atlas")


def test_a_record_with_more_nodes_than_a_cluster_has_is_malformed(world):
    site = world()
    document = site.document(site.plan(3), 3)
    nodes = document["plan"]["nodes"]
    nodes |= {f"n{at}": nodes["alpha"] for at in range(1100)}
    site.change("alpha", release={"number": 3, "plan_hash": "x", "record": document})
    assert isinstance(site.facts["alpha"].release, Unread) or known(site) is None
