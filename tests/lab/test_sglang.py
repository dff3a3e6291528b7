"""SGLang's stub, written after its source: a cluster's life on one Spark and on two, its key, a rank that exits, and the
queue of ranks behind a firewall."""

from __future__ import annotations

import json

import pytest

from sparkcluster.lab.inventory import ENGINE_ARGUMENTS
from tests.lab.test_secrets import Watcher
from tests.lab.test_serving import until

KEY = "s3cret-of-the-lab-9f2c"


@pytest.fixture
def cli(lab, make_cli, monkeypatch):
    del lab
    monkeypatch.setenv("LAB_KEY", KEY)
    return make_cli()


@pytest.fixture
def inventory(lab, variant):
    """``inventory(count)``: SGLang on ``count`` of the lab's Sparks, with a key."""

    def write(count):
        nodes = [{"name": spark.name, "host": spark.host} for spark in lab.sparks[:count]]
        playbook = {"engine": "sglang", "args": None, "env": None}
        return variant(lab, nodes=nodes, api={"key": {"env": "LAB_KEY"}}, playbook=playbook)

    return write


@pytest.fixture
def doctor(cli):
    """Doctor's findings, except info."""

    def ask(path):
        found = cli("doctor", path, "--json").json["findings"]
        return [finding for finding in found if finding["severity"] != "info"]

    return ask


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.full)])
def test_sglang_is_planned_started_queried_switched_restored_and_stopped(lab, cli, inventory, doctor, count):
    path = inventory(count)
    plan = cli("plan", path, "--json").ok().json
    assert {name: node["secrets"] for name, node in plan["nodes"].items()}["left"] == ["SGLANG_API_KEY"]
    with Watcher(KEY) as watcher:
        assert "release 1, " in cli("up", path).ok().out
    assert watcher.seen == set()
    for spark in lab.sparks[:count]:
        shown = json.loads(spark.run(["sh", "-c", "docker inspect $(docker ps -q)"]).stdout)
        assert KEY not in json.dumps([(each["Path"], each["Args"], each["Config"]["Labels"]) for each in shown])
    status = cli("status", path, "--json").ok().json
    assert (status["state"], status["groups"][0]["ready"]) == ("serving", True)
    assert status["groups"][0]["load"]["running"] is not None
    assert len(cli("ask", path, "What is 12 * 17?").ok().out.split()) > 10
    log = cli("logs", path, "left").ok().out
    assert "The server is fired up and ready to roll!" in log
    assert KEY not in log
    assert doctor(path) == []

    switch = ("upgrade", path, "--min-speed", "0", "--json", "--set")
    assert cli(*switch, "args.context-length=512").ok().json["release"] == 2
    broken = cli(*switch, "env.STUB_FAULT=oom")
    assert (broken.code, broken.error["kind"], broken.error["node"]) == (4, "RolledBack", "left")
    assert "the GPU ran out of the memory" in broken.error["message"]
    assert cli("rollback", path, "1", "--json").ok().json["release"] > 2
    assert f"{count} rank" in cli("down", path).ok().out


def test_an_exited_rank_and_an_unreachable_queue_are_reported(lab, cli, inventory, doctor, ranks):
    path = inventory(2)
    left, right = lab.sparks
    sender = cli("plan", path, "--json").ok().json["nodes"]["right"]["env"]["SGLANG_HOST_IP"]
    cli("up", path).ok()
    assert doctor(path) == []
    right.run(["pkill", "-KILL", "-f", "^sglang::scheduler"])
    until(lambda: all(state == "exited" for found in ranks(lab).values() for _, _, state in found))
    lost = doctor(path)  # although right exited with 0, and left by SIGKILL
    assert {finding["node"] for finding in lost} == {"right"}, lost
    assert "signal 9" in lost[0]["summary"]

    # Only the configured port is open, and the queue listens on another one.
    rule = f"INPUT -p tcp --syn -s {sender} ! --dport 29501 -j DROP"
    left.run(["sh", "-c", f"iptables -I {rule}"])
    refused = cli("preflight", path, "--json")
    assert [(found["code"], found["node"]) for found in refused.json["findings"] if found["severity"] == "error"] == [
        ("NET-043", "left")
    ]
    left.run(["sh", "-c", f"iptables -D {rule}"])
    starting = cli.start("up", path)
    starting.wait_for("✓ check")
    left.run(["sh", "-c", f"iptables -I {rule}"])
    starting.wait_for("waiting for all ranks")
    frozen = until(lambda: [finding for finding in doctor(path) if finding["code"] == "RUN-030"])
    assert "Init parallel begin" in frozen[0]["seen"]
    left.run(["sh", "-c", f"iptables -D {rule}"])
    starting.wait().ok()
    assert "2 ranks removed" in cli("down", path).ok().out


@pytest.mark.full
def test_sglang_serves_next_to_vllm_behind_a_gateway_and_an_upgrade_changes_the_engine(lab, cli, variant):
    nodes = [{"name": "left", "host": lab.sparks[0].host}]
    every = {"verify": {"pause_s": 0}}
    of_sglang = {
        **every,
        "engine": "sglang",
        "args": {**dict.fromkeys(ENGINE_ARGUMENTS), "context-length": 4096},
        "env": None,
    }
    models = [
        {"name": "radix", "playbook": {**of_sglang, "served_name": "radix"}},
        {"name": "paged", "playbook": {**every, "served_name": "paged"}},
    ]
    path = variant(lab, nodes=nodes, models=models, gateway={"port": 8100}, api={"key": {"env": "LAB_KEY"}})
    cli("up", path).ok()
    for name in ("radix", "paged"):
        assert cli("ask", path, "--model", name, "Hello").ok().out.split()
    metrics = cli("export", path, "--once").ok().out
    assert 'model="radix"' in metrics
    assert KEY not in metrics
    for way in ((), ("--through", "gateway")):
        record = cli("bench", path, "--model", "radix", *way, "--runs", "1", "--json", timeout=400).ok().json
        assert record["ended"] == "complete"
    cli("down", path).ok()

    alone = variant(lab, nodes=nodes, api={"key": {"env": "LAB_KEY"}})
    cli("up", alone).ok()
    switched = variant(lab, nodes=nodes, api={"key": {"env": "LAB_KEY"}}, playbook=of_sglang)
    assert cli("upgrade", switched, "--min-speed", "0", "--json").ok().json["release"] == 2
    assert "sglang" in cli("plan", switched, "-v").ok().out
    assert cli("rollback", switched, "1", "--json").ok().json["release"] == 3
    cli("down", switched).ok()
