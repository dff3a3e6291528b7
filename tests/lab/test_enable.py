"""An enabled cluster is started after a reboot, and a dead group is restarted. Stub engine."""

from __future__ import annotations

import json
import re
import shlex
import time

import pytest

from tests.lab.test_serving import until

PORT = 29_750


def directory(lab):
    return f"/root/.local/state/sparkcluster/clusters/{lab.name}/enabled"


def limit(lab, **limits):
    """Change the limits of the guards; they are killed, and restarted by the virtual Spark."""
    path = f"{directory(lab)}/config.json"
    for spark in lab.sparks:
        config = json.loads(spark.run(["cat", path]).stdout)
        config["limits"] = {"pause_s": 1, "probe_s": 3, **limits}
        spark.run(["sh", "-c", f"echo {shlex.quote(json.dumps(config))} > {path}"])
        spark.run(["pkill", "-KILL", "-f", "[e]nabled/guard.py"], check=False)  # not the process that runs this


def journal(lab, spark=0):
    done = lab.sparks[spark].run(["cat", f"{directory(lab)}/journal.jsonl"], check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def acts(lab):
    return [entry["act"] for entry in journal(lab)]


def ids(ranks, lab):
    return {node: [each[0] for each in found] for node, found in ranks(lab).items()}


@pytest.fixture
def enabled(lab, cli):
    """``enabled(inventory, **limits)``: the cluster serves and is enabled; its guards run, with changed limits."""

    def do(inventory, **limits):
        cli("up", inventory).ok()
        document = cli("enable", inventory, "--json").ok().json
        assert set(document["nodes"]) == {spark.name for spark in lab.sparks}
        assert {each["unit"] for each in document["nodes"].values()} == {None}
        limit(lab, **limits)
        until(lambda: cli("status", inventory, "--json").json["guards"] == {}, pause_s=2)
        return document

    return do


def serves_again(lab, cli, inventory, release):
    until(lambda: acts(lab)[-1:] == ["serving"])
    status = cli("status", inventory, "--json").ok().json
    assert (status["state"], status["release"], status["enabled"], status["guards"]) == ("serving", release, True, {})


def a_forged_hello_is_refused(lab):
    """A peer on the interconnect without the token cannot start a rank."""
    config = json.loads(lab.sparks[1].run(["cat", f"{directory(lab)}/config.json"]).stdout)
    assert config["port"] == PORT
    start = f"/root/.local/state/sparkcluster/clusters/{lab.name}/start.json"
    address = json.loads(lab.sparks[1].run(["cat", start]).stdout)["address"]
    forged = f"""
import json, socket
for proof in (bytes(64), None):
    with socket.create_connection(("{address}", {PORT}), 5) as sock:
        nonce = sock.recv(32)
        sock.sendall(proof or nonce + nonce)
        try:
            sock.sendall(json.dumps({{"do": "take"}}).encode() + b"\\n")
            assert sock.recv(32) == b""
        except ConnectionError:
            pass
print("refused")
"""
    until(lambda: str(PORT) in lab.sparks[1].run(["ss", "-ltn"]).stdout)
    assert lab.sparks[0].run(["python3", "-c", forged]).stdout.strip() == "refused"
    listening = lab.sparks[1].run(["ss", "-ltn"]).stdout
    assert [line.split()[3] for line in listening.splitlines() if str(PORT) in line] == [f"{address}:{PORT}"]


def test_after_a_reboot_the_release_is_started_and_after_down_it_is_not(lab, cli, ranks, enabled):
    document = enabled(lab.inventory)
    assert cli("status", lab.inventory, "--json").ok().json["enabled"] is True
    program = f"{directory(lab)}/guard.py"
    lab.sparks[0].run(["mv", program, f"{program}.away"])
    for spark in lab.sparks:
        lab.fault(spark.name, "reboot")
    assert "it is not running" in cli("status", lab.inventory, "--json").json["guards"]["left"]
    a_forged_hello_is_refused(lab)
    assert {state for found in ranks(lab).values() for *_, state in found} == {"exited"}
    lab.sparks[0].run(["mv", f"{program}.away", program])
    serves_again(lab, cli, lab.inventory, document["release"])
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False
    assert acts(lab) == ["restart", "serving"]

    cli("down", lab.inventory).ok()
    for spark in lab.sparks:
        lab.fault(spark.name, "reboot")
    until(lambda: cli("status", lab.inventory, "--json").json["guards"] == {}, pause_s=2)
    time.sleep(10)
    assert ids(ranks, lab) == {"left": [], "right": []}
    assert acts(lab) == ["restart", "serving"]
    cli("disable", lab.inventory).ok()
    for spark in lab.sparks:
        assert spark.run(["test", "-e", directory(lab)], check=False).returncode == 1
        assert spark.run(["pgrep", "-f", "enabled/guard.py"], check=False).returncode == 1


@pytest.mark.full
def test_a_guard_restarts_a_killed_worker_and_a_concurrent_up_exits_3(lab, cli, ranks, enabled, variant):
    inventory = variant(lab, playbook={"env": {"STUB_FAULT": "slow-start=12"}}, api={"key": {"env": "THE_KEY"}})
    key = {"THE_KEY": "kEy-dIsTiNcTiVe"}
    cli("up", inventory, env=key).ok()
    enabled_with_key = cli("enable", inventory, "--json").ok().json
    until(lambda: cli("status", inventory, "--json").json["guards"] == {}, pause_s=2)
    before = ids(ranks, lab)
    lab.fault("right", "kill-worker")
    until(lambda: acts(lab) == ["restart"])
    other = cli("up", inventory, "--json", env=key)
    assert other.code == 3, other
    assert re.search(r"the guard on \w+ is running restart on ", other.error["message"])
    assert "sparkcluster disable" in other.error["hint"]
    serves_again(lab, cli, inventory, enabled_with_key["release"])
    assert "not running" in journal(lab)[0]["why"]
    after = ids(ranks, lab)
    assert all(len(found) == 1 for found in after.values())
    assert not any(set(before[node]) & set(found) for node, found in after.items())
    assert cli("up", inventory, "--json", env=key).ok().json["changed"] is False
    for spark in lab.sparks:
        assert "kEy-dIsTiNcTiVe" not in spark.run(["sh", "-c", f"cat {directory(lab)}/*"]).stdout
        assert spark.run(["stat", "-c", "%a", directory(lab), f"{directory(lab)}/config.json"]).stdout.split() == [
            "700",
            "600",
        ]
