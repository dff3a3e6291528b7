"""The drawing of a cluster: every topology as a file, with problems marked at their place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkcluster import topology as topologies
from sparkcluster.cli import drawing
from sparkcluster.findings import Finding
from tests.unit import golden

P0 = ("enp1s0f0np0", "enP2p1s0f0np0")
P1 = ("enp1s0f1np1", "enP2p1s0f1np1")


def rails(port, number, subnets=(177, 178)):
    return {name: f"192.168.{subnet}.{number}/24" for name, subnet in zip(port, subnets, strict=True)}


def names(count):
    return [f"spark-{number:04d}" for number in range(1, count + 1)]


def hosts(count):
    return {name: f"10.77.0.{11 + at}" for at, name in enumerate(names(count))}


def shape(kind, spark, cluster):
    """Spec, facts and findings of one topology."""
    findings = []
    if kind == "one":
        return cluster(hosts(1)), {names(1)[0]: spark()}, findings
    if kind == "ring":
        pairs = {0: ((P0, (1, 2)), (P1, (5, 6))), 1: ((P0, (3, 4)), (P1, (1, 2))), 2: ((P0, (5, 6)), (P1, (3, 4)))}
        facts = {
            name: spark(
                {key: value for port, subnets in pairs[at] for key, value in rails(port, 11 + at, subnets).items()},
                management=f"10.77.0.{11 + at}/24",
            )
            for at, name in enumerate(names(3))
        }
        return cluster(hosts(3)), facts, findings
    if kind == "management":
        return cluster(hosts(2)), {name: spark(management=f"{host}/24") for name, host in hosts(2).items()}, findings
    if kind == "replicas":
        facts = {
            name: spark(rails(P1, 11 + at, (177, 178) if at < 2 else (179, 180))) for at, name in enumerate(names(4))
        }
        groups = [{"name": "left", "nodes": names(4)[:2]}, {"name": "right", "nodes": names(4)[2:]}]
        return cluster(hosts(4), groups=groups), facts, findings
    count = {"two": 2, "two-faults": 2, "two-hanging": 2, "four": 4, "eight": 8}[kind]
    facts = {name: spark(rails(P1 if at % 2 else P0, 11 + at)) for at, name in enumerate(names(count))}
    if kind == "two-faults":
        second = names(2)[1]
        facts[second] = spark(rails(P1, 12), mtu={P1[0]: 1500}, gid={P1[1]: None})
        findings = [
            Finding("NET-006", "error", "MTU differs", second, seen=f"{P1[0]} of {second} has 1500"),
            Finding("NET-003", "error", f"roceP2p1s0f1 of {second} has no RoCE v2 GID for 192.168.178.12", second),
            Finding("HOST-006", "warning", f"{second} has less free memory than the engine needs", second),
            Finding("HOST-099", "info", "not drawn", second),
        ]
    if kind == "two-hanging":
        first = names(2)[0]
        del facts[first]
        findings = [Finding("SSH-003", "error", "sshd said nothing for 10 s", first)]
    return cluster(hosts(count)), facts, findings


SHAPES = ["one", "two", "two-faults", "two-hanging", "ring", "management", "four", "replicas", "eight"]


def drawn(kind, spark, cluster, width):
    spec, facts, findings = shape(kind, spark, cluster)
    missing = {node.label for node in spec.inventory.nodes} - set(facts)
    topology = topologies.build(spec, facts, missing=missing)
    view = SimpleNamespace(spec=spec, facts=facts, topology=topology)
    return ["".join(parts) for parts in drawing.draw(view, findings, width)]


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("kind", SHAPES)
def test_every_topology_is_drawn_as_in_its_file(kind, width, spark, cluster):
    text = "\n".join(drawn(kind, spark, cluster, width)) + "\n"
    golden.check_text(golden.ROOT / "drawing" / f"{kind}-{width}.txt", text)
    assert max(map(len, text.splitlines())) <= width
