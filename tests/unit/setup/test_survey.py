"""Surveys of all nodes: one round trip, and a second one to nodes that hear no other although they have a cable."""

from __future__ import annotations

from typing import Any

from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.setup import cabling, survey
from tests.unit.setup.wired import ONE, TWINS, documents, mac

RAILS = {"a": {TWINS["p1"][0]: "192.168.177.11/24", TWINS["p1"][1]: "192.168.178.11/24"}}


def fleet(found: dict[str, Any]) -> Fleet:
    return Fleet({name: FakeHost(name).program("survey", document) for name, document in found.items()})


def requests(hosts: Fleet, name: str) -> list[dict[str, Any]]:
    return [request for _, request in hosts[name].requests]


def test_one_round_trip_if_all_nodes_hear_each_other() -> None:
    hosts = fleet(documents(ONE))
    collected = survey.survey(hosts, "~/hf", requests={"files": ["/etc/hosts"]})
    assert list(collected.surveys) == ["a", "b"]
    assert not collected.errors
    for name in ("a", "b"):
        (request,) = requests(hosts, name)
        assert request["hf_home"] == "~/hf"
        assert request["files"] == ["/etc/hosts", "/etc/netplan/*.yaml"]
        assert "look_for" not in request


def test_a_node_that_hears_no_other_tries_the_others_addresses_which_confirm_it() -> None:
    """``a`` was set up; ``b`` is new, and hears only a switch until it asks for an address of ``a``.

    Only then has the kernel of ``a`` heard from ``b``; so ``a`` is queried a second time.
    """
    found = documents(ONE, addresses=RAILS)
    hosts = Fleet({})

    def confirm(_: dict[str, Any]) -> dict[str, Any]:
        heard = [{"interface": TWINS["p1"][0], "mac": mac(1, TWINS["p1"][0]), "address": "10.77.0.12"}]
        return {**found["a"], "neighbours": heard if len(requests(hosts, "a")) == 3 else []}

    hosts.hosts["a"] = FakeHost("a").program("survey", confirm)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        heard = [{"interface": TWINS["p1"][0], "mac": mac(0, TWINS["p1"][1]), "address": "192.168.178.11"}]
        switch = [{"interface": TWINS["p1"][0], "mac": "aa:bb:cc:00:00:01", "address": "fe80::1"}]
        return {**found["b"], "neighbours": heard if request.get("look_for") else switch, "files": {"/x": {"mode": 1}}}

    hosts.hosts["b"] = FakeHost("b").program("survey", answer)
    collected = survey.survey(hosts, "~/hf", requests={"files": ["/x"]})
    asked = ["192.168.177.11", "192.168.178.11"]
    assert [request.get("look_for") for request in requests(hosts, "b")] == [None, asked, asked]
    assert len(requests(hosts, "a")) == 3
    assert cabling.cabling(collected.surveys).groups == (("a", "b"),)
    assert collected.surveys["b"].files["/x"].mode == 1
