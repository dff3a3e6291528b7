"""The life of a cluster on virtual Sparks with the stub engine: up, status, ask, logs, plan, down.

No model runs here: answers come from the stub. test_engine tests a real model.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sparkcluster

STATE = "/root/.local/state/sparkcluster"


def inspected(spark, name):
    return json.loads(spark.run(["docker", "inspect", name]).stdout)[0]


def newest_record(spark, cluster):
    found = spark.run(["sh", "-c", f"ls {STATE}/clusters/{cluster}/releases"]).stdout.split()
    return json.loads(spark.run(["cat", f"{STATE}/clusters/{cluster}/releases/{max(found)}"]).stdout)


def test_two_different_sparks_start_and_stop(lab, cli, ranks, variant):
    up = cli("up", lab.inventory).ok()
    assert "release 1, " in up.out
    assert up.out.count("/v1") == 1

    status = cli("status", lab.inventory, "--json").ok().json
    assert status["state"] == "serving"
    assert status["model"] == "tiny"
    assert status["endpoint"] == f"http://{lab.sparks[0].host}:8000/v1"
    assert [(node["name"], node["role"], node["state"], node["ray"]) for node in status["nodes"]] == [
        ("left", "head", "running", "alive"),
        ("right", "worker", "running", "alive"),
    ]
    before = ranks(lab)
    assert [[state for _, _, state in found] for found in before.values()] == [["running"], ["running"]]
    again = cli("up", lab.inventory, "--json").ok().json
    assert (again["state"], again["changed"], again["release"]) == ("serving", False, 1)
    the_plan_is_what_runs(lab, cli)

    refused = cli("up", variant(lab, playbook={"args": {"max-num-seqs": 7}}), "--json")
    assert (refused.code, refused.error["kind"]) == (1, "OtherPlan")
    assert any("max-num-seqs" in line for line in refused.error["difference"])
    assert ranks(lab) == before

    following = cli.start("logs", lab.inventory, "left", "-f", "-n", "1")
    following.wait_for("left  |")
    cli("ask", lab.inventory, "Hello", "--max-tokens", "1").ok()
    following.wait_for("POST /v1/chat/completions")
    following.kill(signal.SIGINT)
    assert following.wait().code == 130

    # a node removed from the inventory is cleaned if the user requests it
    left, right = lab.sparks
    cut = variant(lab, nodes=[{"name": "left", "host": left.host}])
    down = cli("down", cut, "--json").ok().json
    assert set(down["removed"]) == {"left"}
    assert down["not_contacted"] == [{"name": "right", "host": right.host, "named_by": ["left"]}]
    assert [len(found) for found in ranks(lab).values()] == [0, 1]
    assert len(cli("down", cut, "--also", right.host, "--json").ok().json["removed"]) == 1
    assert ranks(lab) == {"left": [], "right": []}
    assert "nothing was running" in cli("down", lab.inventory).ok().out


@pytest.mark.full
def test_up_copies_the_weights_encrypted_if_the_inventory_says_so(lab, cli, variant):
    left, right = lab.sparks
    right.run(["rm", "-r", "/root/models/tiny"])
    assert "release 1, " in cli("up", variant(lab, staging={"encrypt": True})).ok().out
    sums = {
        spark.run(["sh", "-c", "cd /root/models/tiny && sha256sum $(find . -type f | sort)"]).stdout
        for spark in lab.sparks
    }
    assert len(sums) == 1
    (observed,) = (cli.home / ".local/state/sparkcluster/observed").glob("*.jsonl")
    copies = [each for each in map(json.loads, observed.read_text().splitlines()) if each.get("artifact") == "weights"]
    assert [(copy["node"], copy["source"], copy["medium"], copy["encrypted"]) for copy in copies] == [
        (right.name, left.name, "rail", True)
    ]


def the_plan_is_what_runs(lab, cli):
    plan = cli("plan", lab.inventory, "--json").ok().json
    assert plan["groups"] == [["left", "right"]]
    for spark in lab.sparks:
        node = plan["nodes"][spark.name]
        planned = node["containers"][0]["argv"]
        # `plan` describes the next release; the record describes the running one.
        recorded = newest_record(spark, lab.state.name)
        assert recorded["plan_hash"] == plan["hash"]
        container = recorded["plan"]["nodes"][spark.name]["containers"][0]
        argv = container["argv"]
        release = [word for word in argv if word.startswith("io.sparkcluster.release=")]
        assert release == [f"io.sparkcluster.release={recorded['number']}"]
        assert len(argv) == len(planned)

        found = inspected(spark, container["name"])
        host = found["HostConfig"]
        assert argv[argv.index("--network") + 1] == host["NetworkMode"] == "host"
        assert argv[argv.index("--ipc") + 1] == host["IpcMode"] == "host"
        assert host["Privileged"] is False
        assert "--privileged" not in argv
        assert host["RestartPolicy"]["Name"] in ("", "no")
        assert host["Init"] is True
        assert {limit["Name"]: limit["Soft"] for limit in host["Ulimits"]} == {
            "memlock": -1,
            "stack": 67108864,
            "nofile": 1048576,
        }
        assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/infiniband"]
        assert host["DeviceRequests"][0]["Count"] == -1
        assert found["Image"] == container["image"]
        assert container["image"] in argv
        mounts = {argv[at + 1] for at, word in enumerate(argv) if word == "--mount"}
        assert {(m["Source"], m["Target"]) for m in host["Mounts"]} == {
            tuple(part.partition("=")[2] for part in mount.split(",")[1:3]) for mount in mounts
        }
        labels = {word.partition("=")[0] for word in argv if word.startswith("io.sparkcluster.")}
        assert labels <= set(found["Config"]["Labels"])

        env = dict(row.partition("=")[::2] for row in found["Config"]["Env"])
        assert {name: env.get(name) for name in node["env"]} == node["env"]
        assert env["VLLM_HOST_IP"] == node["env"]["VLLM_HOST_IP"]


def test_one_spark_serves_locally_without_ssh(lab, cli, variant, ranks):
    spark = lab.sparks[0]
    nodes = [{"name": "left", "host": spark.host, "connection": "local"}]
    path = variant(lab, nodes=nodes, ssh=None, playbook={})
    with inside(spark, path.parent) as prefix:
        # A paused sshd proves that it was not contacted.
        lab.fault("left", "ssh-hang")
        cli.start("up", path, prefix=prefix).wait().ok()
        assert cli.start("status", path, "--json", prefix=prefix).wait().ok().json["state"] == "serving"
        assert '"changed": false' in cli.start("up", path, "--json", prefix=prefix).wait().ok().out
        cli.start("down", path, prefix=prefix).wait().ok()
    assert ranks(lab) == {"left": [], "right": []}


SHARE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    done = libc.syscall(*words)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(words))
    return done
namespace = os.open(f"/proc/{sys.argv[1]}/ns/mnt", os.O_RDONLY)
root = os.open(f"/proc/{sys.argv[1]}/root", os.O_RDONLY)
trees = [(path, call(428, -100, path.encode(), 1)) for path in sys.argv[2:]]
if libc.setns(namespace, 0):
    raise OSError(ctypes.get_errno(), "setns")
os.fchdir(root)
os.chroot(".")
for path, tree in trees:
    os.makedirs(path, exist_ok=True)
    call(429, tree, b"", -100, path.encode(), 4)
"""
"""Mounts directories of the machine on a Spark at the same place: open_tree(2), setns(2), move_mount(2)."""


@contextlib.contextmanager
def inside(spark, *paths):
    """Prefix that runs a command on the Spark, with this Python and the files it needs."""
    source = Path(sparkcluster.__file__).parent.parent
    shared = []
    for path in (source, Path(sys.prefix), Path(sys.base_prefix), *paths):
        distribution = path.is_relative_to("/usr") and not path.is_relative_to("/usr/local")
        if not distribution and not any(path.is_relative_to(other) for other in shared):
            shared.append(path)
    words = [str(path) for path in shared]
    subprocess.run([sys.executable, "-c", SHARE, str(spark.pid), *words], check=True)
    try:
        yield (*spark.enter([f"PYTHONPATH={source}"]),)
    finally:
        spark.run(["umount", "-l", *words])


WITHOUT = """
sparks:
- name: has
- name: lacks
  image: absent
  model: absent
"""


@pytest.fixture(scope="module")
def uneven(make_lab):
    """Two Sparks, one with neither image nor model."""
    return make_lab(WITHOUT)


@pytest.mark.full
def test_missing_weights_and_images_are_copied_over_the_interconnect_before_the_start(uneven, cli, ranks):
    lacks = uneven.spark("lacks")
    assert lacks.run(["docker", "images", "-q"]).stdout == ""
    rails = {name: received(lacks, name) for name in ("enp1s0f1np1", "enP2p1s0f1np1", "enP7s7")}
    up = cli("up", uneven.inventory).ok()
    steps = [line.split()[1] for line in up.err.splitlines() if line.startswith("✓")]
    assert "lacks" in up.err
    assert steps.index("start") > max(steps.index("copy"), steps.index("check"))
    over_rails = sum(received(lacks, name) - rails[name] for name in ("enp1s0f1np1", "enP2p1s0f1np1"))
    over_management = received(lacks, "enP7s7") - rails["enP7s7"]
    assert over_rails > 10_000_000
    assert over_management < 5_000_000
    assert cli("status", uneven.inventory, "--json").ok().json["state"] == "serving"
    ids = {spark.run(["docker", "images", "-q", "--no-trunc"]).stdout.strip() for spark in uneven.sparks}
    assert len(ids) == 1
    sums = {spark.run(["sh", "-c", "cd /root/models/tiny && sha256sum *"]).stdout for spark in uneven.sparks}
    assert len(sums) == 1
    cli("down", uneven.inventory).ok()
    assert ranks(uneven) == {"has": [], "lacks": []}


def received(spark, interface):
    """Bytes received by an interface."""
    return int(spark.run(["cat", f"/sys/class/net/{interface}/statistics/rx_bytes"]).stdout)
