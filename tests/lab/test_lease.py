"""One operator at a time, over real connections: who comes second waits, who fell silent may not. Stub engine."""

from __future__ import annotations

import random
import re
import signal
import time

import pytest

SLOW = {"env": {"STUB_FAULT": "slow-start=90"}}
LOCK = "/root/.local/state/sparkcluster/clusters/{}/lease.lock"
LAPSE_S = 15
"""How long a node keeps a lease that nobody feeds."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 8))])
def test_of_two_ups_at_once_one_serves_and_one_exits_3(lab, cli, ranks, seed):
    first = cli.start("up", lab.inventory, "--json")
    time.sleep(random.Random(seed).uniform(0, 0.4))
    second = cli.start("up", lab.inventory, "--json")
    done = [first.wait(), second.wait()]
    assert sorted(result.code for result in done) == [0, 3], done
    served, refused = sorted(done, key=lambda result: result.code)
    assert served.json["state"] == "serving"
    assert refused.error["kind"] == "LeaseHeld"
    assert re.search(r"^\w+@\S+ \(pid \d+\) is running up on ", refused.error["message"])
    assert refused.error["hint"]
    pids = {command.pid for command in (first, second)}
    assert int(re.search(r"pid (\d+)", refused.error["message"])[1]) in pids
    assert {node: len(containers) for node, containers in ranks(lab).items()} == {spark.name: 1 for spark in lab.sparks}


def test_down_waits_for_nobody_and_breaks_nothing_while_an_up_is_at_work(lab, cli, ranks, variant):
    up = cli.start("up", variant(lab, playbook=SLOW))
    up.wait_for("loading weights")
    before = ranks(lab)
    down = cli("down", lab.inventory, "--json")
    assert down.code == 3
    assert f"(pid {up.pid})" in down.error["message"]
    assert ranks(lab) == before
    status = cli("status", lab.inventory, "--json")
    assert (status.code, status.json["state"]) == (1, "starting")
    assert f"(pid {up.pid})" in status.json["lease"]["operator"]
    assert status.json["lease"]["operation"] == "up"


def lapsed(lab):
    """Wait until no node's lease is held any more; the seconds that took."""
    began = time.monotonic()
    cluster = re.search(r"cluster: (\S+)", lab.inventory.read_text())[1]
    while time.monotonic() < began + LAPSE_S + 15:
        # flock(1) exits with 1 where somebody else holds the lock.
        if all(
            spark.run(["flock", "-n", LOCK.format(cluster), "true"], check=False).returncode == 0
            for spark in lab.sparks
        ):
            return time.monotonic() - began
        time.sleep(0.5)
    raise AssertionError("the lease of a stopped controller is still held")


def test_a_controller_that_was_stopped_is_refused_by_every_node_when_it_wakes(lab, cli, ranks, variant):
    first = cli.start("up", variant(lab, playbook=SLOW), "--json")
    first.wait_for("loading weights")
    first.kill(signal.SIGSTOP)
    try:
        assert LAPSE_S - 5 < lapsed(lab) < LAPSE_S + 8
        second = cli("up", lab.inventory, "--json").ok()
        assert (second.json["state"], second.json["changed"]) == ("serving", True)
        before = ranks(lab)
    finally:
        first.kill(signal.SIGCONT)
    woken = first.wait(60)
    assert woken.code == 1, woken
    assert woken.error["kind"] == "LeaseLost"
    assert re.search(r"@\S+ \(pid \d+\) has the lease on \w+ now", woken.error["message"])
    assert "left running" not in woken.error["message"]
    assert woken.error["hint"]
    assert ranks(lab) == before
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False


@pytest.mark.full
def test_a_controller_that_was_stopped_goes_on_where_nobody_took_the_lease(lab, cli, ranks, variant):
    first = cli.start("up", variant(lab, playbook={"env": {"STUB_FAULT": "slow-start=30"}}), "--json")
    first.wait_for("loading weights")
    first.kill(signal.SIGSTOP)
    try:
        lapsed(lab)
    finally:
        first.kill(signal.SIGCONT)
    assert first.wait(120).ok().json["state"] == "serving"
    assert [len(found) for found in ranks(lab).values()] == [1, 1]


@pytest.mark.full
def test_a_controller_that_was_stopped_makes_nothing_after_a_down(lab, cli, ranks):
    for stage in ("stage", "start", "verify"):
        first = cli.start("up", lab.inventory, "--json-lines")
        first.wait_for(f'"name": "{stage}"')
        first.kill(signal.SIGSTOP)
        try:
            lapsed(lab)
            cli("down", lab.inventory).ok()
        finally:
            first.kill(signal.SIGCONT)
        woken = first.wait(60)
        assert woken.code == 1, woken
        assert woken.error["kind"] == "LeaseLost", woken
        time.sleep(1)
        assert ranks(lab) == {spark.name: [] for spark in lab.sparks}


def test_a_cluster_is_stopped_although_a_disk_of_it_is_full(lab, cli, ranks):
    """What takes the lease writes over its record: a user frees space only once the engine lets go of its files."""
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
