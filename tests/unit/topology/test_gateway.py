"""Where engines listen behind a gateway, and the gateway itself."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster import checks, topology
from sparkcluster.errors import PlanError
from sparkcluster.topology.build import gateway

PORTS = ("enp1s0f0np0", "enP2p1s0f0np0")
HOSTS = {"alpha": "192.168.86.11", "beta": "192.168.86.12"}


def cabled(number, first="192.168.177"):
    return {PORTS[0]: f"{first}.{number}/24", PORTS[1]: f"192.168.178.{number}/24"}


@pytest.fixture
def spec_behind_gateway(cluster):
    """``spec_behind_gateway(node, *names, **inventory)``: the spec of a model on nodes ``names`` behind a gateway on ``node``."""

    def make(node, *names, **inventory):
        spec = cluster({name: HOSTS[name] for name in names}, gateway={"port": 8080}, **inventory)
        return dataclasses.replace(spec, gateway_node=node)

    return make


@pytest.fixture
def facts(spark):
    """``facts(**beta)`` of both Sparks."""

    def make(**beta):
        return {
            "alpha": spark(cabled(11), management="192.168.86.11/24"),
            "beta": spark(**{"rails": cabled(12), "management": "192.168.86.12/24", **beta}),
        }

    return make


KEY = {"host": "management", "key": {"env": "KEY"}}


@pytest.mark.parametrize(
    ("node", "names", "beta", "api", "listens"),
    [
        ("alpha", ("alpha",), {}, {}, "127.0.0.1"),
        ("alpha", ("alpha", "beta"), {}, {}, "127.0.0.1"),
        ("beta", ("alpha", "beta"), {}, KEY, "192.168.177.11"),
        ("alpha", ("beta",), {}, {}, "192.168.177.12"),
        ("alpha", ("beta",), {"rails": cabled(12, "169.254.3")}, {}, "192.168.178.12"),
        ("alpha", ("beta",), {"rails": {}}, KEY, "192.168.86.12"),
        ("beta", ("alpha", "beta"), {"rails": {}}, KEY, "192.168.177.11"),
    ],
)
def test_an_engine_listens_where_only_the_gateway_reaches_it(
    spec_behind_gateway, facts, node, names, beta, api, listens
):
    """On the management network only if there is no other, and then with a key."""
    group = topology.build(spec_behind_gateway(node, *names, api=api), facts(**beta)).groups[0]
    assert (group.api_host, group.endpoint) == (listens, f"http://{listens}:8000/v1")


def test_an_open_gateway_is_a_warning_with_its_port(spec_behind_gateway, facts):
    spec, known = spec_behind_gateway("alpha", "alpha", api={"host": "management"}), facts()
    found = checks.run_checks(spec, known, topology.build(spec, known))
    assert [("port 8080" in each.seen, each.severity) for each in found if each.code == "NET-020"] == [
        (True, "warning")
    ]


def test_a_node_connected_to_the_gateway_only_by_the_management_network_is_refused_without_a_key(
    spec_behind_gateway, facts
):
    with pytest.raises(PlanError, match="beta has no address on the interconnect") as caught:
        topology.build(spec_behind_gateway("alpha", "beta"), facts(rails={}))
    assert "sparkcluster key INVENTORY" in caught.value.hint


@pytest.mark.parametrize(
    ("host", "listens", "shown"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("management", "192.168.86.11", "192.168.86.11"),
        ("interconnect", "192.168.177.11", "192.168.177.11"),
        ("0.0.0.0", "0.0.0.0", "192.168.86.11"),
    ],
)
def test_the_gateway_listens_on_the_host_of_the_api(spec_behind_gateway, facts, host, listens, shown):
    found = gateway(spec_behind_gateway("alpha", "alpha", api={"host": host}), facts()["alpha"])
    assert found == (listens, f"http://{shown}:8080/v1")
