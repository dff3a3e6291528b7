"""Weights along a chain of eight Sparks: every copy is the same, and each cable carries each byte once.

Bytes are those of the kernel's counters, on all rails of a Spark together.
"""

from __future__ import annotations

import pytest
import yaml
from staging_lab import MB, Rails

FOLDER = "/root/models/tiny"
FILE_BYTES = 12 * MB


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{}, " + ", ".join(["{model: absent}"] * 7) + "]\n")


@pytest.fixture
def eight(lab):
    """The first Spark has a model with a large file; the others have none, and links are slow."""
    source, *targets = lab.sparks
    source.run(["sh", "-c", f"head -c {FILE_BYTES} /dev/urandom > {FOLDER}/merges.txt"])
    for spark in targets:
        spark.run(["rm", "-rf", FOLDER])
    for spark in lab.sparks:
        lab.fault(spark.name, "slow-link", "40mbit")
    return lab


def sums(spark):
    return spark.run(["sh", "-c", f"cd {FOLDER} && find . -type f | sort | xargs sha256sum"]).stdout


@pytest.mark.parametrize(
    "receivers", [pytest.param(each, marks=() if each in (1, 7) else pytest.mark.full) for each in (1, 2, 4, 7)]
)
def test_each_node_gets_every_byte_once_and_sends_it_once(eight, cli, variant, receivers):
    chain = eight.sparks[: receivers + 1]
    nodes = yaml.safe_load(eight.inventory.read_text())["nodes"]
    inventory = variant(eight, nodes=nodes[: receivers + 1])
    with Rails(eight) as rails:
        done = cli("stage", inventory, "weights", "--json", timeout=300).ok().json
    names = [spark.name for spark in chain]
    assert {copy["node"]: copy["source"] for copy in done["copied"]} == dict(zip(names[1:], names, strict=False))
    (payload,) = {copy["bytes"] for copy in done["copied"]}
    assert payload > FILE_BYTES
    assert len({sums(spark) for spark in chain}) == 1
    for place, spark in enumerate(eight.sparks):
        for sent, carries in ((True, place < receivers), (False, 0 < place <= receivers)):
            moved = rails.bytes(spark, sent=sent)
            assert carries * payload <= moved <= (carries + 0.05) * payload, (spark.name, sent)
