"""The copies that a dry run predicts: source, destination, size, and approximate duration."""

from __future__ import annotations

import pytest

from sparkcluster.hosts.fleet import Fleet
from sparkcluster.staging.copy import HERE
from sparkcluster.staging.copy_request import Settings
from sparkcluster.staging.expected import BUILD, moves
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers
from sparkcluster.topology.build import build

GB = 10**9
CABLE = "its cable (enp1s0f0np0, 200 Gb/s)"


@pytest.fixture
def expected(spark, cluster):
    """``expected(staging, outside)`` for three Sparks on one switch."""
    facts = {name: spark({"enp1s0f0np0": f"10.1.0.{place}/24"}) for place, name in enumerate("abc", 11)}
    topology = build(cluster({name: name for name in "abc"}), facts)

    def run(staging, outside="hub", size=60 * GB, **settings):
        sizes = dict.fromkeys((node for node, _ in staging.missing), size)
        run = Transfers(Fleet({}), facts, topology, dict, print, settings=Settings(**settings))
        found = moves(run, staging, sizes, outside)
        return [(each.node, each.source, each.bytes, each.over, each.seconds) for each in found], found

    return run


def lacking(*nodes, what="weights", sources=(), download=(), **more):
    return Staging(what, "o/m", sources, tuple((node, "missing") for node in nodes), download, None, spec=None, **more)


def test_files_that_no_node_has_are_downloaded_once_and_copied(expected):
    rows, _ = expected(lacking(*"abc", download=("b", "a", "c")))
    assert rows == [
        ("b", "hub", 60 * GB, "download", None), ("a", "b", 60 * GB, CABLE, 30.0), ("c", "a", 60 * GB, CABLE, 30.0),
    ]  # fmt: skip
    rows, _ = expected(lacking(*"abc", download=("b", "a", "c")), size=None)
    assert [row[2:] for row in rows] == [(None, "download", None), (None, CABLE, None), (None, CABLE, None)]
    assert [each[1:4] for each in expected(lacking("c", "a"), HERE)[0]] == [
        (HERE, 60 * GB, "SSH"), ("c", 60 * GB, CABLE),
    ]  # fmt: skip
    built = lacking(*"ab", what="image", download=("a", "b"), built=True)
    assert [each[1] for each in expected(built, BUILD, None)[0]] == [BUILD, "a"]
