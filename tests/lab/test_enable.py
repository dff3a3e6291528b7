"""An enabled cluster comes back after a reboot, and a dead group is restarted. Stub engine.

A virtual Spark has no systemd: the tests run what ExecStart says.
"""

from __future__ import annotations

import json
import re
import shlex
import time

import pytest

DIE = {"env": {"STUB_CONTROL": "/root/.cache/vllm/control"}}
PORT = 29_750


def directory(lab):
    return f"/root/.local/state/sparkcluster/clusters/{lab.name}/enabled"


def boot(lab, *names):
    """Run ExecStart's line of the unit, as systemd does after a boot."""
    for spark in lab.sparks:
        if not names or spark.name in names:
            unit = spark.run(["cat", f"{directory(lab)}/sparkcluster-{lab.name}.service"]).stdout
            command = re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE)[1]
            spark.run(["sh", "-c", f"setsid {command} >> /root/guard.log 2>&1 < /dev/null &"])


def eventually(true, limit_s=120):
    until = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < until
        time.sleep(1)
    return found


def journal(lab, spark=0):
    done = lab.sparks[spark].run(["cat", f"{directory(lab)}/journal.jsonl"], check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def acts(lab):
    return [entry["act"] for entry in journal(lab)]


def ids(ranks, lab):
    return {node: [each[0] for each in found] for node, found in ranks(lab).items()}


@pytest.fixture
def enabled(lab, cli):
    """``enabled(inventory, **limits)``: the cluster serves and is enabled; its guards run, with other limits."""

    def do(inventory, **limits):
        cli("up", inventory, timeout=180).ok()
        document = cli("enable", inventory, "--json").ok().json
        assert set(document["nodes"]) == {spark.name for spark in lab.sparks}
        assert {each["unit"] for each in document["nodes"].values()} == {None}
        for spark in lab.sparks:
            path = f"{directory(lab)}/config.json"
            config = json.loads(spark.run(["cat", path]).stdout)
            config["limits"] = {"pause_s": 1, "most_pause_s": 2, "probe_s": 3, **limits}
            spark.run(["sh", "-c", f"echo {shlex.quote(json.dumps(config))} > {path}"])
            spark.run(["rm", "-f", "/root/guard.log"])
        boot(lab)
        eventually(lambda: cli("status", inventory, "--json").json["guards"] == {})
        return document

    yield do
    for spark in lab.sparks:
        spark.run(["pkill", "-KILL", "-f", "enabled/guard.py"], check=False)


def serves_again(lab, cli, inventory, release):
    status = eventually(lambda: (found := cli("status", inventory, "--json").json)["state"] == "serving" and found)
    assert (status["release"], status["enabled"], status["guards"]) == (release, True, {})
    eventually(lambda: acts(lab)[-1:] == ["serving"])


def test_after_a_reboot_the_same_release_comes_back_and_after_down_it_does_not(lab, cli, ranks, enabled):
    document = enabled(lab.inventory)
    assert cli("status", lab.inventory, "--json").ok().json["enabled"] is True
    for spark in lab.sparks:
        lab.fault(spark.name, "reboot")
    assert "it is not running" in cli("status", lab.inventory, "--json").json["guards"]["left"]
    boot(lab, "left")
    time.sleep(6)
    assert {state for found in ranks(lab).values() for *_, state in found} == {"exited"}
    boot(lab, "right")
    serves_again(lab, cli, lab.inventory, document["release"])
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False

    before = ids(ranks, lab)
    lab.fault("right", "reboot")
    boot(lab, "right")
    eventually(lambda: acts(lab) == ["restart", "serving"] * 2)
    serves_again(lab, cli, lab.inventory, document["release"])
    assert not any(set(before[node]) & set(found) for node, found in ids(ranks, lab).items())

    cli("down", lab.inventory).ok()
    time.sleep(8)
    assert ids(ranks, lab) == {"left": [], "right": []}
    for spark in lab.sparks:
        lab.fault(spark.name, "reboot")
    boot(lab)
    time.sleep(12)
    assert ids(ranks, lab) == {"left": [], "right": []}
    assert acts(lab) == ["restart", "serving"] * 2

    up = cli("up", lab.inventory, "--json", timeout=180).ok().json
    lab.fault("left", "reboot")
    boot(lab, "left")
    serves_again(lab, cli, lab.inventory, up["release"])
    cli("disable", lab.inventory).ok()
    status = cli("status", lab.inventory, "--json").ok().json
    assert (status["state"], status["enabled"]) == ("serving", False)
    for spark in lab.sparks:
        assert spark.run(["test", "-e", directory(lab)], check=False).returncode == 1
        assert spark.run(["pgrep", "-f", "enabled/guard.py"], check=False).returncode == 1


@pytest.mark.full
def test_a_killed_worker_is_restarted_by_the_watch_and_an_up_meanwhile_exits_3(lab, cli, ranks, enabled, variant):
    inventory = variant(lab, playbook={"env": {"STUB_FAULT": "slow-start=12"}}, api={"key": {"env": "THE_KEY"}})
    key = {"THE_KEY": "kEy-dIsTiNcTiVe"}
    cli("up", inventory, env=key, timeout=180).ok()
    enabled_with_key = cli("enable", inventory, "--json").ok().json
    boot(lab)
    eventually(lambda: cli("status", inventory, "--json").json["guards"] == {})
    before = ids(ranks, lab)
    lab.fault("right", "kill-worker")
    eventually(lambda: acts(lab) == ["restart"], 40)
    other = cli("up", inventory, "--json", env=key)
    assert other.code == 3, other
    assert re.search(r"the guard on \w+ is running restart on ", other.error["message"])
    assert "sparkcluster disable" in other.error["hint"]
    assert cli("status", inventory, "--json").json["state"] == "starting"
    serves_again(lab, cli, inventory, enabled_with_key["release"])
    assert "not running" in journal(lab)[0]["why"]
    after = ids(ranks, lab)
    assert all(len(found) == 1 for found in after.values())
    assert not any(set(before[node]) & set(found) for node, found in after.items())
    assert cli("up", inventory, "--json", env=key).ok().json["changed"] is False
    for spark in lab.sparks:
        assert "kEy-dIsTiNcTiVe" not in spark.run(["sh", "-c", f"cat {directory(lab)}/* /root/guard.log"]).stdout
        assert spark.run(["stat", "-c", "%a", directory(lab), f"{directory(lab)}/token"]).stdout.split() == [
            "700",
            "600",
        ]
        spark.run(["pkill", "-KILL", "-f", "enabled/guard.py"], check=False)


@pytest.mark.full
def test_a_crash_loop_stops_at_its_cap_and_up_ends_that(lab, cli, ranks, enabled, variant):
    inventory = variant(lab, playbook=DIE)
    document = enabled(inventory, starts=2)
    crash = "for each in $(find /root/.local/state/sparkcluster/caches -type d -name vllm); do echo die-load=0 > $each/control; done"
    for spark in lab.sparks:
        spark.run(["sh", "-c", crash])
    lab.fault("left", "kill-worker")
    eventually(lambda: acts(lab)[-1:] == ["gave up"], 180)
    assert acts(lab) == ["restart", "failed", "restart", "failed", "gave up"]
    status = cli("status", inventory, "--json").json
    assert status["enabled"] is True
    assert "it gave up: 2 starts in 60 min, and still: " in status["guards"]["left"]
    assert "gave up" in cli("status", inventory).out
    time.sleep(6)
    assert acts(lab).count("restart") == 2
    for spark in lab.sparks:
        spark.run(["sh", "-c", "find /root/.local/state/sparkcluster/caches -name control -delete"])
    up = cli("up", inventory, "--json", timeout=180).ok().json
    assert up["release"] > document["release"]
    assert cli("status", inventory, "--json").ok().json["guards"] == {}


def test_a_forged_hello_starts_nothing(lab, cli, ranks, enabled):
    enabled(lab.inventory)
    for spark in lab.sparks:
        lab.fault(spark.name, "reboot")
    boot(lab, "right")
    config = json.loads(lab.sparks[1].run(["cat", f"{directory(lab)}/config.json"]).stdout)
    assert config["port"] == PORT
    start = f"/root/.local/state/sparkcluster/clusters/{lab.name}/start.json"
    address = json.loads(lab.sparks[1].run(["cat", start]).stdout)["address"]
    forged = f"""
import json, socket
def lines(sock):
    return sock.makefile("rwb")
for proof in ("00" * 32, None):
    with socket.create_connection(("{address}", {PORT}), 5) as sock, lines(sock) as file:
        file.write(json.dumps({{"cluster": "{lab.name}", "from": "left", "to": "right", "nonce": "00"}}).encode() + b"\\n")
        file.flush()
        answer = json.loads(file.readline())
        file.write(json.dumps({{"proof": proof or answer["proof"]}}).encode() + b"\\n")
        file.write(json.dumps({{"body": json.dumps({{"do": "take"}}), "code": "00"}}).encode() + b"\\n")
        file.flush()
        assert file.readline() == b"", proof
print("refused")
"""
    eventually(lambda: "guards" in lab.sparks[1].run(["cat", "/root/guard.log"]).stdout)
    eventually(lambda: str(PORT) in lab.sparks[1].run(["ss", "-ltn"]).stdout)
    assert lab.sparks[0].run(["python3", "-c", forged]).stdout.strip() == "refused"
    assert "(2 refused)" in lab.sparks[1].run(["cat", "/root/guard.log"]).stdout
    listening = lab.sparks[1].run(["ss", "-ltn"]).stdout
    assert [line.split()[3] for line in listening.splitlines() if str(PORT) in line] == [f"{address}:{PORT}"]
    assert {state for found in ranks(lab).values() for *_, state in found} == {"exited"}
