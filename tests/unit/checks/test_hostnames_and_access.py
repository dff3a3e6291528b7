"""Names that resolve to another machine, traffic over WiFi, and open ports."""

from __future__ import annotations

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import Context
from sparkcluster.facts.base import Unread
from sparkcluster.facts.network import Listener

from .conftest import reported

WIFI = "192.168.50.7"
NAMED = {"alpha": {"host": "alpha.local"}, "beta": {"host": "beta.local"}}


def wifi_of(node, address):
    return tuple(
        interface.model_copy(update={"addresses": (f"{address}/24",)}) if interface.wireless else interface
        for interface in node.interfaces
    )


@pytest.fixture
def known(see, spark, cluster):
    """Findings with nodes addressed by name: the addresses that each node resolves."""

    def look(names, **more):
        facts = {}
        for number, node in ((11, "alpha"), (12, "beta")):
            base = spark(
                {"enp1s0f0np0": f"192.168.177.{number}/24", "enP2p1s0f0np0": f"192.168.178.{number}/24"},
                management=f"192.168.86.{number}/24",
            )
            own = {"interfaces": wifi_of(base, f"192.168.50.{number}"), "names": names.get(node, {})}
            facts[node] = base.model_copy(update={**own, **more.get(node, {})})
        spec = cluster({"alpha": "alpha.local", "beta": "beta.local"})
        return checks.run_stage(Context(spec, facts, topology.build(spec, facts)), ("facts",))

    return look


RIGHT = {
    "alpha": {"alpha.local": ("127.0.1.1",), "beta.local": ("192.168.86.12",)},
    "beta": {"alpha.local": ("192.168.86.11",), "beta.local": ("127.0.1.1",)},
}


def test_a_hostname_may_resolve_to_the_nodes_loopback_address(known):
    assert known(RIGHT) == []


@pytest.mark.parametrize(
    "addresses",
    [(), ("203.0.113.9",), ("192.168.86.99", "192.168.86.12"), ("192.168.50.12", "192.168.86.12")],
    ids=["unknown", "beyond", "one is right", "WiFi and wire"],
)
def test_names_that_are_ignored(known, addresses):
    unread = {"alpha.local": Unread(unread="timed out")}
    assert known({"alpha": {"beta.local": addresses}, "beta": unread}) == []


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.168.86.99", "which beta does not have"),
        ("192.168.86.11", "an address of alpha"),
        ("127.0.0.1", "which beta does not have"),
    ],
)
def test_a_hostname_that_resolves_to_another_machine_is_reported_with_the_node(known, address, whose):
    (finding,) = known({**RIGHT, "alpha": {"beta.local": (address,)}})
    assert reported([finding]) == [("NET-017", "warning", "alpha")]
    assert whose in finding.seen
    assert any("192.168.86.12 beta.local" in command for command in finding.remedy)


def test_a_hostname_that_resolves_to_the_wifi_is_reported_with_the_node(known):
    (finding,) = known({**RIGHT, "alpha": {"beta.local": ("192.168.50.12",)}})
    assert reported([finding]) == [("NET-017", "warning", "alpha")]


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_ssh_over_wifi_is_a_warning_if_a_wire_is_connected(see, name):
    (finding,) = see({name: {"reached_at": WIFI}})
    assert reported([finding]) == [("NET-016", "warning", name)]
    assert "set host of" in finding.remedy[0]


def test_ssh_over_wifi_is_an_info_finding_without_a_wire(see):
    (finding,) = see(
        {"solo": {"reached_at": WIFI}}, names=("solo",), described={"solo": {"rails": {}, "management": None}}
    )
    assert reported([finding]) == [("NET-016", "info", "solo")]


@pytest.mark.parametrize(
    ("host", "severity"),
    [
        ("127.0.0.1", None),
        ("interconnect", None),
        ("management", "warning"),
        ("::", "warning"),
    ],
)
def test_an_api_without_a_key(cluster, host, severity):
    said = [
        finding
        for finding in checks.check_written(cluster({"a": "h"}, api={"host": host}))
        if finding.code == "NET-020"
    ]
    assert [finding.severity for finding in said] == ([severity] if severity else [])
    assert all("sparkcluster key INVENTORY" in finding.remedy for finding in said)
    locked = cluster({"a": "h"}, api={"host": host, "key": {"env": "KEY"}})
    assert not [finding for finding in checks.check_written(locked) if finding.code == "NET-020"]


@pytest.mark.parametrize(
    ("address", "port", "process", "open_"),
    [
        ("0.0.0.0", 8265, None, True),
        ("::", 8265, "python3", True),
        ("127.0.0.1", 8265, "ray", False),
        ("0.0.0.0", 8265, "grafana", False),
        ("0.0.0.0", 9265, "ray", False),
    ],
)
def test_rays_job_api(see, address, port, process, open_):
    findings = see({"beta": {"listeners": (Listener(address=address, port=port, process=process),)}})
    assert reported(findings) == ([("NET-021", "warning", "beta")] if open_ else [])


def test_a_container_bridge_is_not_a_rail(see):
    described = {name: {"management": f"192.168.86.{number}/24"} for number, name in ((11, "alpha"), (12, "beta"))}
    nodes = {name: {"interconnect": {"interfaces": ["docker0"]}} for name in ("alpha", "beta")}
    findings = see(described=described, nodes=nodes)
    assert {("NET-022", "error", "alpha"), ("NET-022", "error", "beta")} <= set(reported(findings))


@pytest.mark.parametrize("name", ["wg0", "wlP9s9"])
def test_a_tunnel_or_wifi_as_a_rail_is_a_warning(see, spark, name):
    nodes = {node: {"interconnect": {"interfaces": [name]}} for node in ("alpha", "beta")}
    changes = {}
    for number, node in ((11, "alpha"), (12, "beta")):
        wires = spark(management=f"192.168.86.{number}/24").interfaces
        address = {"name": name, "addresses": (f"10.9.0.{number}/24",), "wireless": name == "wlP9s9"}
        others = [each for each in wires if not each.wireless]
        changes[node] = {"interfaces": (*others, wires[0].model_copy(update=address))}
    findings = [finding for finding in see(changes, nodes=nodes) if finding.code == "NET-022"]
    assert reported(findings) == [("NET-022", "warning", "alpha"), ("NET-022", "warning", "beta")]
