"""Failed paths between nodes, and the node that is responsible."""

from __future__ import annotations

import itertools

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import Context
from sparkcluster.facts.between import Path, Reach

RAILS = ("192.168.177.0/24", "192.168.178.0/24")
NAMES = ("alpha", "beta", "gamma", "delta")


def attempts(names, kinds=("ping", "jumbo", "ephemeral", "port"), lost=None):
    """All attempts between ``names``; ``lost(source, target, subnet, kind)`` gives the point of failure: lost_at, or ``?``."""
    found = []
    for (place, source), (number, target) in itertools.permutations(enumerate(names), 2):
        for rail, subnet in enumerate(RAILS):
            for kind in kinds:
                if kind == "port" and (number or rail):
                    continue
                at = lost(source, target, subnet, kind) if lost else None
                found.append(
                    Path(
                        source=source, target=target, subnet=subnet,
                        source_address=f"192.168.{177 + rail}.{11 + place}",
                        target_address=f"192.168.{177 + rail}.{11 + number}",
                        kind=kind, ok=at is None, seen="no answer within 1.5 s" if at else "",
                        lost_at=None if at in (None, "?") else at,
                        port={"port": 6379, "ephemeral": 41000}.get(kind), use="Ray" if kind == "port" else "",
                        size_bytes=9000 if kind == "jumbo" else None,
                    )
                )  # fmt: skip
    return tuple(found)


@pytest.fixture
def found(spark, cluster):
    """Findings about the attempts of ``number`` nodes, by node and code."""

    def look(lost=None, number=2, unasked=None, without=(), firewall="ufw"):
        names = NAMES[:number]
        facts = {
            name: spark(
                {"enp1s0f1np1": f"192.168.177.{11 + place}/24", "enP2p1s0f1np1": f"192.168.178.{11 + place}/24"},
                management=f"192.168.86.{11 + place}/24",
                firewall=firewall,
            )
            for place, name in enumerate(names)
        }
        spec = cluster({name: f"192.168.86.{11 + place}" for place, name in enumerate(names)})
        kinds = [kind for kind in ("ping", "jumbo", "ephemeral", "port") if kind not in without]
        reach = Reach(attempts(names, kinds, lost), unasked or {})
        context = Context(spec, facts, topology.build(spec, facts), reach=reach)
        return checks.run_stage(context, ("reach",))

    return look


def only(findings, code, node):
    assert [(finding.code, finding.node) for finding in findings] == [(code, node)], findings
    assert findings[0].remedy
    assert findings[0].seen
    assert not findings[0].summary.endswith(".")
    return findings[0]


def closed(node, *, kinds=("ping", "ephemeral", "port", "jumbo"), of=None, rails=RAILS):
    """Nothing sent to ``node`` (from ``of``) arrives: neither attempts of others nor answers to its own."""

    def lost(source, target, subnet, kind):
        if kind not in kinds or subnet not in rails or (of and of not in (source, target)):
            return None
        return "target" if target == node else "source" if source == node else None

    return lost


def test_nodes_that_reach_each_other_have_no_finding(found):
    assert found() == []
    assert found(number=4) == []


@pytest.mark.parametrize(("node", "number"), [("alpha", 3), ("beta", 2)])
def test_a_firewall_that_blocks_tcp_is_one_finding_with_all_blocked_ports(found, node, number):
    finding = only(found(closed(node, kinds=("ephemeral", "port")), number), "NET-043", node)
    assert finding.severity == "error"
    assert f"{node} drops TCP on any port" in finding.summary
    assert "port 6379 (Ray)" in finding.seen
    assert finding.remedy == ("sudo ufw allow in on enp1s0f1np1", "sudo ufw allow in on enP2p1s0f1np1")


@pytest.mark.parametrize(
    ("firewall", "command"),
    [
        ("ufw", "sudo ufw allow in on enp1s0f1np1"),
        (None, "sudo iptables -I INPUT -i enp1s0f1np1 -j ACCEPT"),
    ],
)
def test_a_firewall_that_blocks_one_port_is_reported_with_the_port_and_its_command(found, firewall, command):
    finding = only(found(closed("alpha", kinds=("port",)), firewall=firewall), "NET-043", "alpha")
    assert "alpha drops port 6379 (Ray) from beta on 192.168.177.0/24" in finding.summary
    assert finding.remedy[0] == command


def test_a_node_that_drops_all_traffic_of_one_peer_is_named(found):
    finding = only(found(closed("alpha", of="beta"), 3), "NET-041", "alpha")
    assert f"alpha cannot be reached by beta on {RAILS[0]} and {RAILS[1]}" == finding.summary


def test_a_rail_that_is_dead_between_two_nodes_blames_neither(found):
    finding = only(
        found(lambda source, target, subnet, kind: "target" if subnet == RAILS[1] else None), "NET-041", None
    )
    assert finding.summary == f"alpha and beta do not reach each other on {RAILS[1]}"
    assert "41000" not in finding.summary


def test_of_three_nodes_the_unreachable_one_is_reported_once(found):
    lost = found(lambda source, target, *_: "target" if "beta" in (source, target) else None, 3)
    assert all(name in only(lost, "NET-041", "beta").summary for name in NAMES[:3])


def test_a_switch_without_power_is_not_blamed_on_a_node(found):
    findings = found(lambda source, target, subnet, kind: "target" if subnet == RAILS[0] else None, 4)
    assert only(findings, "NET-041", None).summary.startswith("alpha, beta, delta and gamma do not reach each other")


def test_a_black_hole_for_large_packets_is_reported_with_the_command_to_reproduce_it(found):
    finding = only(found(closed("beta", kinds=("jumbo",))), "NET-042", "beta")
    assert "packets of 9000 bytes" in finding.summary
    assert "on alpha: ping -M do -c 3 -W 1 -s 8972 192.168.177.12" in finding.remedy
    symmetric = only(found(lambda *way: "target" if way[3] == "jumbo" else None), "NET-042", None)
    assert "between alpha and beta" in symmetric.summary


def test_filtered_icmp_or_udp_alone_is_not_a_finding(found):
    assert found(lambda *way: "target" if way[3] == "ping" else None, without=("jumbo",)) == []


def test_two_faults_are_two_findings(found):
    jumbo, port = closed("beta", kinds=("jumbo",)), closed("alpha", kinds=("port",))
    findings = found(lambda *way: jumbo(*way) or port(*way))
    assert {(finding.code, finding.node) for finding in findings} == {("NET-042", "beta"), ("NET-043", "alpha")}


def test_a_node_that_could_not_take_part_is_reported(found):
    finding = only(found(unasked={"beta": "reach failed on beta: no output"}), "NET-040", "beta")
    assert finding.severity == "warning"
    assert "no output" in finding.seen
