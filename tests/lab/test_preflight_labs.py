"""Preflight of labs that are unlike the usual one: without image and weights, and by other cables."""

from __future__ import annotations

import random

import pytest
import yaml

ERROR, WARNING, INFO = "error", "warning", "info"
BORN = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1", "enP7s7", "wlP9s9")
HCAS = ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1")


def drawn(seed, count=3):
    """A lab's spec whose names, ports, GID tables and addresses are drawn from ``seed``; all of it healthy."""
    luck = random.Random(seed)
    subnets = luck.sample(range(10, 250), 2)
    hosts = luck.sample(range(2, 250), count)
    sparks = []
    for host in hosts:
        port = luck.choice(("p0", "p1"))
        names: dict[str, str] = {}
        while len(names) < len(BORN):
            length = luck.randint(3, 15)
            name = luck.choice("abcdefghxyz") + "".join(luck.choice("abcxyz0123456789") for _ in range(length - 1))
            if name not in names.values() and not name.startswith(("br", "veth", "docker", "lo", "cali", "cni")):
                names[BORN[len(names)]] = name
        # One table for a node's HCAs: that they differ is a note of its own.
        rows = sorted(luck.sample(range(2, 40), 4))
        table = {0: "mac v1", 1: "mac v2", rows[0]: "privacy v1", rows[1]: "privacy v2"}
        first, second = luck.sample(rows[2:], 2)
        table |= {first: "ipv4 v1", second: "ipv4 v2"}
        cabled = [name for name in BORN[:4] if name.endswith(port)]
        addresses = {names[name]: f"10.{subnet}.7.{host}/24" for name, subnet in zip(cabled, subnets, strict=True)}
        sparks.append({"ports": port, "interfaces": names, "gids": dict.fromkeys(HCAS, table), "addresses": addresses})
    return yaml.safe_dump({"sparks": sparks}, sort_keys=False)


@pytest.mark.full
def test_before_image_and_weights_are_staged_it_says_what_it_cannot_ask_and_pulls_nothing(make_lab, preflight):
    """On two nodes nothing is there yet; what can be asked is asked, and nobody is made to fetch anything."""
    lab = make_lab("sparks: [{}, {image: absent, model: absent}, {image: absent, model: absent}]")
    bare = lab.sparks[1:]
    result = preflight(lab.inventory)
    assert result.found == set()
    unasked = {(question["node"], question["what"]) for question in result.document["unasked"]}
    assert unasked == {
        (spark.name, what) for spark in bare for what in ("the image's content", "whether the weights are complete")
    }
    lab.fault(bare[0].name, "gid-missing")
    assert preflight(lab.inventory).found == {("NET-003", bare[0].name, ERROR)}
    lab.heal()
    for spark in bare:
        assert spark.run(["docker", "images", "-aq"]).stdout == ""
        assert spark.run(["docker", "ps", "-aq"]).stdout == ""
        assert spark.run(["ls", "/root/models"], check=False).stdout == ""
    lab.down()


@pytest.fixture(scope="module")
def ring(make_lab):
    return make_lab("topology: ring\ndefaults: {ports: both}\nsparks: [{}, {}, {}]")


@pytest.mark.full
def test_in_a_ring_each_cable_is_looked_at_by_itself(ring, preflight, variant):
    """The stub has no NCCL: that it is unknown is a warning, which the playbook can accept."""
    assert preflight(ring.inventory).found == {("IMG-012", None, WARNING)}
    accepted = variant(ring, playbook={"allow": [{"code": "IMG-012", "reason": "a patched build"}]})
    assert preflight(accepted).found == set()
    spark = ring.sparks[1]
    ring.fault(spark.name, "gid-missing")
    assert {(code, node) for code, node, _ in preflight(accepted).found} == {("NET-003", spark.name)}
    ring.heal()
    ring.fault(spark.name, "firewall")
    assert {(code, node) for code, node, _ in preflight(accepted).found} == {("NET-044", spark.name)}
    ring.heal()
