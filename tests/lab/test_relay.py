"""Weights are copied from node to node along the cables: real links, some of which fail during the copy."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest
import yaml
from staging_lab import MB, Rails

from sparkcluster.lab.machine import run
from tests.lab.test_serving import until

FILE = "/root/models/tiny/merges.txt"
FILE_BYTES = 40_000_000
STAGING = "/root/.local/state/sparkcluster/clusters"

# Tries to get data from a worker, with and without the secret.
STRANGER = """
import http.client, json, sys
from sparkcluster.node import receive, wire, sources
address, port, earlier, right = sys.argv[1:]
line = http.client.HTTPConnection(address, int(port), timeout=30)
line.request("GET", "/0", headers={"Range": "bytes=0-"})
answer = line.getresponse()
def dial(token):
    try:
        receive.Line(sources.Way("a", address, int(port), token, None)).close()
    except wire.Failed:
        return False
    return True
print(json.dumps({
    "without": [answer.status, len(answer.read())],
    "wrong": dial("0" * 32),
    "earlier": dial(earlier),
    "right": dial(right),
}))
"""


def sums(lab, names=None):
    sparks = [lab.spark(name) for name in names] if names else lab.sparks
    return {spark.run(["sh", "-c", f"cd $(dirname {FILE}) && sha256sum *"]).stdout for spark in sparks}


def state(spark):
    """The state that the worker on ``spark`` reports."""
    found = json.loads(spark.run(["sh", "-c", f"cat {STAGING}/*/staging/*/state.json"]).stdout)
    return {"pid": found["pid"], **found["said"]}


def worker(spark):
    """Process ID of the worker on ``spark``."""
    return str(state(spark)["pid"])


def arrived(spark):
    """Bytes of the partial file on ``spark``."""
    script = f"stat -c %s $(dirname {FILE})/.merges.txt.*.partial"
    return sum(map(int, spark.run(["sh", "-c", script], check=False).stdout.split()))


def arriving(spark, size):
    """Wait until ``size`` bytes of the file are on ``spark``."""
    until(lambda: arrived(spark) > size)


def only_the_rest_moves(lab, cli, names):
    """Stage a second time: it copies only missing files, to ``names``."""
    there = {name: arrived(lab.spark(name)) for name in names}
    assert all(there.values())
    done = cli("stage", lab.inventory, "weights", "--json").ok().json
    moved = {copy["node"]: copy["bytes"] for copy in done["copied"]}
    assert moved.keys() == set(names)
    for name in names:
        assert 0 < moved[name] <= FILE_BYTES - there[name] + MB, "other files of the model have less than 1 MB"
    assert len(sums(lab)) == 1


@pytest.fixture
def four(lab):
    """The first Spark has a model with a large file; the others have none, and links are slow."""
    lab.sparks[0].run(["sh", "-c", f"head -c {FILE_BYTES} /dev/urandom > {FILE} && rm -f $(dirname {FILE})/more-*"])
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

    @pytest.mark.full
    def test_a_worker_that_fails_during_a_copy_is_bypassed_and_reported(self, four, cli):
        b = four.spark("b")
        stage = cli.start("stage", four.inventory, "weights")
        arriving(b, FILE_BYTES // 4)
        victim = worker(b)
        b.run(["kill", "-KILL", victim])
        failed = stage.wait()
        assert failed.code == 1
        assert "b was skipped" in failed.err
        assert re.search(r"c: .* continuing with a at", failed.err)
        assert len(sums(four, "acd")) == 1
        only_the_rest_moves(four, cli, "b")

    @pytest.mark.full  # a lost source may return: the others wait a minute
    def test_a_killed_source_is_reported_and_received_files_are_kept(self, four, cli):
        a = four.spark("a")
        stage = cli.start("stage", four.inventory, "weights")
        arriving(four.spark("d"), FILE_BYTES // 4)
        a.run(["kill", "-KILL", worker(a)])
        failed = stage.wait()
        assert failed.code == 1
        assert "a was skipped: its process on this node was killed" in failed.err
        only_the_rest_moves(four, cli, "bcd")

    @pytest.mark.full
    def test_a_disk_that_fills_up_during_a_copy_is_reported_and_the_other_nodes_complete(self, four, cli):
        stage = cli.start("stage", four.inventory, "weights")
        arriving(four.spark("b"), FILE_BYTES // 4)
        four.fault("b", "disk-full")
        failed = stage.wait()
        assert failed.code == 1
        assert "b was skipped: no space left on device" in failed.err
        assert re.search(r"error: .*b: the disk is full: ", failed.err), failed.err
        assert len(sums(four, "acd")) == 1
        four.heal("b")
        only_the_rest_moves(four, cli, "b")

    @pytest.mark.full
    def test_a_byte_corrupted_between_two_nodes_names_them_and_no_copy_is_corrupt(self, four, cli):
        four.fault("b", "flip-byte", str(FILE_BYTES // 4))
        done = cli("stage", four.inventory, "weights").ok()
        assert "merges.txt from b arrived corrupt on c (wrong SHA-256); copying it again" in done.err
        assert "arrived corrupt on b" not in done.err
        assert len(sums(four)) == 1
        assert cli("stage", four.inventory, "weights", "--json").ok().json["copied"] == []

    @pytest.mark.full
    def test_a_failing_rail_is_reported_and_the_copy_completes_over_the_other(self, four, cli):
        more = f"cd $(dirname {FILE}) && for at in 1 2 3 4 5 6; do head -c {6 * MB} /dev/urandom > more-$at; done"
        four.spark("a").run(["sh", "-c", more])  # so that all streams, and both rails, have something to do
        stage = cli.start("stage", four.inventory, "weights")
        arriving(four.spark("c"), FILE_BYTES // 8)
        four.fault("b", "twin-down")
        done = stage.wait().ok()
        assert re.search(r"b: the link to a at 192\.168\.178\.11 failed: .*; continuing over another at ", done.err)
        assert re.search(r"c: the link to b at 192\.168\.178\.12 failed: .*; continuing over another at ", done.err)
        assert "skipped" not in done.err
        assert len(sums(four)) == 1

    @pytest.mark.full
    def test_a_stage_immediately_after_ctrl_c_resumes(self, four, cli):
        stage = cli.start("stage", four.inventory, "weights")
        arriving(four.spark("d"), FILE_BYTES // 4)
        stage.kill(signal.SIGINT)
        assert stage.wait().code == 130
        only_the_rest_moves(four, cli, "bcd")

    def test_an_unauthorized_machine_on_the_switch_gets_nothing_and_changes_nothing(self, four, cli, variant):
        a, b, c, d = four.sparks
        nodes = yaml.safe_load(four.inventory.read_text())["nodes"]
        inventory = variant(four, nodes=nodes[:3])
        cli("stage", inventory, "weights").ok()
        earlier = state(a)["token"]
        for spark in (b, c):
            spark.run(["sh", "-c", f"rm -r $(dirname {FILE})"])
        with Rails(four) as rails:
            stage = cli.start("stage", inventory, "weights")
            arriving(c, FILE_BYTES // 8)
            said = state(a)
            address, port = next(each for each in said["ports"].items() if each[0].startswith("192.168.17"))
            words = (address, str(port), earlier, said["token"])
            inside = ["ip", "netns", "exec", d.unit, sys.executable, "-c", STRANGER]
            found = run([*inside, *words], timeout_s=120).stdout
            stage.wait().ok()
            assert rails.bytes(d, sent=False) < 100_000
        expected = {"without": [401, 0], "wrong": False, "earlier": False, "right": True}
        assert json.loads(found) == expected
        assert len(sums(four, "abc")) == 1


class TestPairs:
    @pytest.fixture(scope="class")
    @classmethod
    def shared_lab(cls, make_lab):
        return make_lab("topology: pairs\nsparks: [{}, {model: absent}, {model: absent}, {model: absent}]\n")

    @pytest.mark.full
    def test_pairs_with_identical_addresses_copy_over_their_cables_and_one_bridge(self, four, cli, variant):
        names = [spark.name for spark in four.sparks]
        groups = [{"name": "one", "nodes": names[:2]}, {"name": "two", "nodes": names[2:]}]
        inventory = variant(four, groups=groups)
        done = cli("stage", inventory, "weights", "--json").ok()
        (warning,) = done.json["warnings"]
        assert re.match(rf"{names[0]} and ({names[2]}|{names[3]}) share no cable: ", warning)
        assert "encrypted" in warning
        sources = {copy["node"]: copy["source"] for copy in done.json["copied"]}
        assert sources[names[1]] == names[0]
        assert len({sources[names[2]], sources[names[3]]} & set(names[:2])) == 1
        assert len(sums(four)) == 1
