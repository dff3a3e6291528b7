"""Twins that share a subnet, twins in another order than their peers', and the netplan file that fixes both."""

from __future__ import annotations

import shlex

import pytest
import yaml

from sparkcluster import topology
from sparkcluster.checks import netplan
from sparkcluster.checks.check import Context

from .conftest import PORT_0, rails, reported

PORT_1 = ("enp1s0f1np1", "enP2p1s0f1np1")
SHARED = {
    "alpha": {PORT_0[0]: "192.168.100.11/24", PORT_0[1]: "192.168.100.61/24"},
    "beta": {PORT_1[0]: "192.168.100.12/24", PORT_1[1]: "192.168.100.62/24"},
}


def described(rails):
    return {name: {"rails": own} for name, own in rails.items()}


def test_twins_in_one_subnet_serve_with_a_warning_and_a_generated_netplan_file(see):
    findings = see(described=described(SHARED))
    assert reported(findings) == [("NET-005", "warning", "alpha"), ("NET-005", "warning", "beta")]
    for finding, twins, number in zip(findings, (PORT_0, PORT_1), (11, 12), strict=True):
        command, apply = finding.remedy
        assert command.endswith("| sudo tee /etc/netplan/40-cx7.yaml >/dev/null")
        words = shlex.split(command)
        assert words[:2] == ["printf", "%s\\n"]
        assert yaml.safe_load("\n".join(words[2 : words.index("|")])) == {
            "network": {
                "version": 2,
                "ethernets": {
                    twin: {
                        "addresses": [f"192.168.{subnet}.{number}/24"],
                        "dhcp4": False,
                        "link-local": [],
                        "mtu": 9000,
                    }
                    for twin, subnet in zip(twins, (177, 178), strict=True)
                },
            }
        }
        assert apply.startswith("sudo chmod 600 /etc/netplan/40-cx7.yaml && sudo netplan apply")


def test_the_generated_file_makes_two_rails(see, spark, cluster):
    facts = {name: spark(rails) for name, rails in SHARED.items()}
    spec = cluster({"alpha": "192.168.86.11", "beta": "192.168.86.12"})
    context = Context(spec, facts, topology.build(spec, facts))
    files = netplan.files(context)
    applied = {
        name: {twin: each["addresses"][0] for twin, each in yaml.safe_load(text)["network"]["ethernets"].items()}
        for name, text in files.items()
    }
    assert see(described=described(applied)) == []
    facts = {name: spark(rails) for name, rails in applied.items()}
    assert netplan.files(Context(spec, facts, topology.build(spec, facts))) == {}


def test_link_local_rails_get_the_generated_file_too(see):
    drawn = {
        "alpha": {PORT_0[0]: "169.254.1.11/16", PORT_0[1]: "169.254.2.11/16"},
        "beta": {PORT_0[0]: "169.254.1.12/16", PORT_0[1]: "169.254.2.12/16"},
    }
    findings = see(described=described(drawn))
    assert {(finding.code, finding.severity) for finding in findings} == {
        ("NET-005", "warning"),
        ("NET-005", "warning"),
    }
    assert all("sudo tee /etc/netplan/40-cx7.yaml" in finding.remedy[0] for finding in findings)


def test_listing_both_twins_in_the_inventory_is_an_error(see):
    nodes = {
        "alpha": {"interconnect": {"interfaces": list(PORT_0)}},
        "beta": {"interconnect": {"interfaces": list(PORT_1)}},
    }
    findings = see(described=described(SHARED), nodes=nodes)
    assert reported(findings) == [("NET-005", "error", "alpha"), ("NET-005", "error", "beta")]


ONE_CABLE = {"alpha": {PORT_0[0]: "10.0.1.1/24", PORT_0[1]: "10.0.2.1/24"}}
TWO_CABLES = {
    "alpha": {PORT_0[0]: "10.0.1.1/24", PORT_0[1]: "10.0.2.1/24", PORT_1[0]: "10.0.3.1/24", PORT_1[1]: "10.0.4.1/24"}
}


@pytest.mark.parametrize("port", [PORT_0, PORT_1])
def test_crossed_twins_are_reported_with_the_addresses_to_change(see, port):
    crossing = {**ONE_CABLE, "beta": {port[0]: "10.0.2.2/24", port[1]: "10.0.1.2/24"}}
    (finding,) = see(described=described(crossing))
    assert reported([finding]) == [("NET-026", "error", "beta")]
    assert finding.remedy == (
        f"give {port[0]} of beta an address in 10.0.1.0/24 in /etc/netplan/40-cx7.yaml",
        f"give {port[1]} of beta an address in 10.0.2.0/24 in /etc/netplan/40-cx7.yaml",
        "sudo netplan apply",
    )
    straight = {**ONE_CABLE, "beta": {port[0]: "10.0.1.2/24", port[1]: "10.0.2.2/24"}}
    assert see(described=described(straight)) == []


def test_crossed_cables_are_reported_with_the_cables_to_swap(see):
    crossing = {
        **TWO_CABLES,
        "beta": {
            PORT_1[0]: "10.0.1.2/24",
            PORT_1[1]: "10.0.2.2/24",
            PORT_0[0]: "10.0.3.2/24",
            PORT_0[1]: "10.0.4.2/24",
        },
    }
    (finding,) = see(described=described(crossing))
    assert reported([finding]) == [("NET-026", "error", "beta")]
    assert finding.remedy[-1] == "or swap the two cables at beta, if p0 is connected to p1 of alpha"
    straight = {**TWO_CABLES, "beta": {name: each.replace(".1/", ".2/") for name, each in TWO_CABLES["alpha"].items()}}
    assert see(described=described(straight)) == []


def test_of_three_on_a_switch_the_node_that_differs_is_named(see):
    crossing = {"a": {PORT_0[0]: "192.168.178.11/24", PORT_0[1]: "192.168.177.11/24"}}
    assert reported(see(names=("a", "b", "c"), described=described(crossing))) == [("NET-026", "error", "a")]


def test_a_link_with_only_two_lanes_gets_the_hint_about_firmware(see, spark):
    own = spark(rails(12))
    half = tuple(each.model_copy(update={"pcie": "Gen5 x2"}) if each.netdev == PORT_0[1] else each for each in own.hcas)
    (finding,) = see({"beta": {"hcas": half}})
    assert reported([finding]) == [("NET-009", "warning", "beta")]
    assert finding.remedy[0].startswith("sudo fwupdmgr refresh && sudo fwupdmgr update")
