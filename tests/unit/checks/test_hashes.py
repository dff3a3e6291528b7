"""Weights whose bytes differ from their name or from the other nodes."""

from __future__ import annotations

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import Context
from sparkcluster.facts.between import HashedFile, Hashes

GOOD, BAD = "5a" * 32, "e0" * 32
NAMES = ("alpha", "beta", "gamma")


@pytest.fixture
def found(spark, cluster):
    def look(files, unasked=None):
        facts = {
            name: spark(
                {"enp1s0f1np1": f"192.168.177.{11 + place}/24", "enP2p1s0f1np1": f"192.168.178.{11 + place}/24"},
                management=f"192.168.86.{11 + place}/24",
                weights={"path": "/models/Qwen 3", "files": [{"name": "a.safetensors", "size_bytes": 4}]},
            )
            for place, name in enumerate(NAMES[: max(2, len(files))])
        }
        spec = cluster({name: f"192.168.86.{11 + place}" for place, name in enumerate(facts)})
        context = Context(spec, facts, topology.build(spec, facts), hashes=Hashes(files, unasked or {}))
        return checks.run_stage(context, ("deep",))

    return look


def file(sha256, blob=None, name="a.safetensors"):
    return HashedFile(name, 4, sha256, blob)


def test_equal_weights_have_no_finding(found):
    assert found({name: (file(GOOD, GOOD), file(BAD, name="config.json")) for name in NAMES}) == []


@pytest.mark.parametrize("node", NAMES[:2])
def test_a_file_whose_hash_differs_from_its_name_is_corrupt_on_that_node(found, node):
    (finding,) = found({name: (file(BAD if name == node else GOOD, GOOD),) for name in NAMES[:2]})
    assert (finding.code, finding.node, finding.severity) == ("MDL-020", node, "error")
    assert "a.safetensors" in finding.summary
    assert finding.remedy == ("sparkcluster stage INVENTORY weights --verify",)


@pytest.mark.parametrize("node", NAMES)
def test_without_a_hash_in_the_name_the_majority_is_right(found, node):
    (finding,) = found({name: (file(BAD if name == node else GOOD),) for name in NAMES})
    assert (finding.code, finding.node) == ("MDL-020", node)


def test_with_two_nodes_no_copy_is_blamed(found):
    (finding,) = found({"alpha": (file(GOOD),), "beta": (file(BAD),)})
    assert (finding.code, finding.node) == ("MDL-020", None)
    assert "alpha and beta" in finding.summary


def test_unreadable_weights_are_reported(found):
    (finding,) = found({"alpha": (file(GOOD),)}, {"beta": "permission denied"})
    assert (finding.code, finding.node, finding.severity) == ("MDL-020", "beta", "warning")
