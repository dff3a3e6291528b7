"""One operator at a time, over real connections: the second waits, and a silent one loses the lease. Stub engine."""

from __future__ import annotations

import random
import re
import signal
import time

import pytest

from sparkcluster.lab.machine import wait_until

SLOW = {"env": {"STUB_FAULT": "slow-start=600"}}
LOCK = "/root/.local/state/sparkcluster/clusters/{}/lease.lock"


@pytest.mark.full
@pytest.mark.parametrize("seed", [1])
def test_of_two_concurrent_ups_one_serves_and_the_other_exits_3(lab, cli, ranks, seed):
    first = cli.start("up", lab.inventory, "--json")
    time.sleep(random.Random(seed).uniform(0, 0.4))
    second = cli.start("up", lab.inventory, "--json")
    done = [first.wait(), second.wait()]
    assert sorted(result.code for result in done) == [0, 3], done
    served, refused = sorted(done, key=lambda result: result.code)
    assert served.json["state"] == "serving"
    assert refused.error["kind"] == "LeaseHeld"
    assert {node: len(containers) for node, containers in ranks(lab).items()} == {spark.name: 1 for spark in lab.sparks}


def lapsed(lab):
    """Wait until no node's lease is held, which takes 60 s without heartbeats."""
    cluster = re.search(r"cluster: (\S+)", lab.inventory.read_text())[1]

    def free():
        # flock(1) exits with 1 if another process holds the lock.
        words = ["flock", "-n", LOCK.format(cluster), "true"]
        return all(spark.run(words, check=False).returncode == 0 for spark in lab.sparks)

    assert wait_until(free, limit_s=120, step_s=0.5), "the lease of a stopped controller is still held"


def test_a_second_up_is_refused_until_the_paused_first_loses_its_lease_and_notices_when_resumed(
    lab, cli, ranks, variant
):
    first = cli.start("up", variant(lab, playbook=SLOW), "--json")
    first.wait_for("loading weights")
    before = ranks(lab)
    for command in ("up", "down"):
        refused = cli(command, lab.inventory, "--json")
        assert (refused.code, refused.error["kind"]) == (3, "LeaseHeld"), refused
        assert f"(pid {first.pid}) is running up on " in refused.error["message"]
        assert refused.error["hint"]
    assert ranks(lab) == before
    status = cli("status", lab.inventory, "--json")
    assert (status.code, status.json["state"], status.json["lease"]["operation"]) == (1, "starting", "up")
    first.kill(signal.SIGSTOP)
    try:
        lapsed(lab)
        second = cli("up", lab.inventory, "--replace", "--json").ok()
        assert (second.json["state"], second.json["changed"]) == ("serving", True)
        before = ranks(lab)
    finally:
        first.kill(signal.SIGCONT)
    woken = first.wait()
    assert woken.code == 1, woken
    assert woken.error["kind"] in {"LeaseLost", "HostSilent"}, woken
    assert "left running" not in woken.error["message"]
    assert woken.error["hint"]
    assert ranks(lab) == before
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False


@pytest.mark.full
def test_a_paused_up_starts_nothing_after_a_down(lab, cli, ranks):
    first = cli.start("up", lab.inventory, "--json-lines")
    first.wait_for('"name": "start"')
    first.kill(signal.SIGSTOP)
    try:
        lapsed(lab)
        cli("down", lab.inventory).ok()
    finally:
        first.kill(signal.SIGCONT)
    woken = first.wait()
    assert woken.code == 1, woken
    assert woken.error["kind"] in {"LeaseLost", "HostSilent"}, woken
    time.sleep(1)
    assert ranks(lab) == {spark.name: [] for spark in lab.sparks}


@pytest.mark.full
def test_a_cluster_is_stopped_although_a_disk_is_full(lab, cli, ranks):
    """The lease's record is overwritten in place: space is freed only when the engine closes its files."""
    cli("up", lab.inventory).ok()
    cli("enable", lab.inventory).ok()
    lab.fault("right", "disk-full")
    assert lab.sparks[1].run(["sh", "-c", "echo more > /root/more"], check=False).returncode == 1
    down = cli("down", lab.inventory)
    assert down.code == 0, down
    assert ranks(lab) == {"left": [], "right": []}
    lab.heal()
    cli("disable", lab.inventory).ok()
    again = cli("up", lab.inventory, "--json").ok().json
    assert again["state"] == "serving"
