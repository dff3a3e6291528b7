"""Weights from node to node along the cables: real links, of which some fail in the middle, and nothing but the look decides."""

from __future__ import annotations

import json
import re
import time

import pytest

FILE = "/root/models/tiny/merges.txt"
FILE_BYTES = 40_000_000
STAGING = "/root/.local/state/sparkcluster/clusters"


def sums(lab, names=None):
    sparks = [lab.spark(name) for name in names] if names else lab.sparks
    return {spark.run(["sha256sum", FILE]).stdout for spark in sparks}


def worker(spark):
    """Process ID of the worker on ``spark``."""
    found = spark.run(["sh", "-c", f"cat {STAGING}/*/staging/*/state.json"]).stdout
    return str(json.loads(found)["pid"])


def arriving(spark, size):
    """Wait until ``size`` bytes of the file are on ``spark``."""
    until = time.monotonic() + 90
    while True:
        there = spark.run(["sh", "-c", f"stat -c %s $(dirname {FILE})/.merges.txt.*.partial"], check=False).stdout
        if any(int(each) > size for each in there.split()):
            return
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.fixture
def four(lab):
    """The first Spark has a model with a large file; the others have none, and links are slow."""
    lab.sparks[0].run(["sh", "-c", f"head -c {FILE_BYTES} /dev/urandom > {FILE}"])
    for spark in lab.sparks[1:]:
        spark.run(["sh", "-c", f"rm -rf $(dirname {FILE})"])
    for spark in lab.sparks:
        lab.fault(spark.name, "slow-link", "40mbit")
    return lab


class TestOneSwitch:
    @pytest.fixture(scope="class")
    @classmethod
    def shared_lab(cls, make_lab):
        absent = "{name: b, model: absent}, {name: c, model: absent}, {name: d, model: absent}"
        return make_lab(f"sparks: [{{name: a}}, {absent}]\n")

    def test_all_get_it_in_little_more_than_the_time_of_one(self, four, cli):
        done = cli("stage", four.inventory, "weights", "--json").ok().json
        assert {copy["node"]: copy["source"] for copy in done["copied"]} == {"b": "a", "c": "b", "d": "c"}
        assert done["warnings"] == []
        assert len(sums(four)) == 1
        seconds = [copy["seconds"] for copy in done["copied"]]
        assert max(seconds) < 1.5 * min(seconds)

    @pytest.mark.parametrize("signal", ["KILL", "STOP"])
    def test_a_worker_that_fails_in_the_middle_is_gone_past_and_named(self, four, cli, signal):
        b = four.spark("b")
        stage = cli.start("stage", four.inventory, "weights")
        arriving(b, FILE_BYTES // 4)
        victim = worker(b)
        b.run(["kill", f"-{signal}", victim])
        failed = stage.wait(150)
        b.run(["kill", "-KILL", victim], check=False)
        assert failed.code == 1
        assert "b was left out" in failed.err
        assert re.search(r"c: .* goes on with a at", failed.err)
        assert len(sums(four, "acd")) == 1
        cli("stage", four.inventory, "weights").ok()
        assert len(sums(four)) == 1

    def test_a_cable_that_goes_out_leaves_the_management_network_which_is_said(self, four, cli):
        stage = cli.start("stage", four.inventory, "weights")
        arriving(four.spark("b"), FILE_BYTES // 4)
        four.fault("b", "cable-out")
        done = stage.wait(200).ok()
        assert re.search(
            r"warning: [acd] and b share no cable: b gets weights from [acd] over the management network \(", done.out
        )
        assert len(sums(four)) == 1


class TestPairs:
    @pytest.fixture(scope="class")
    @classmethod
    def shared_lab(cls, make_lab):
        return make_lab("topology: pairs\nsparks: [{}, {model: absent}, {model: absent}, {model: absent}]\n")

    def test_pairs_with_the_same_addresses_get_it_over_their_cables_and_one_bridge(self, four, cli, variant):
        names = [spark.name for spark in four.sparks]
        groups = [{"name": "one", "nodes": names[:2]}, {"name": "two", "nodes": names[2:]}]
        inventory = variant(four, groups=groups)
        done = cli("stage", inventory, "weights", "--json", timeout=200).ok()
        (warning,) = done.json["warnings"]
        assert re.match(rf"{names[0]} and ({names[2]}|{names[3]}) share no cable: ", warning)
        assert "encrypted" in warning
        sources = {copy["node"]: copy["source"] for copy in done.json["copied"]}
        assert sources[names[1]] == names[0]
        assert len({sources[names[2]], sources[names[3]]} & set(names[:2])) == 1
        assert len(sums(four)) == 1
