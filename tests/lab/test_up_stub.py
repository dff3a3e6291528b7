"""The life of a cluster on virtual Sparks with the stub engine: up, status, ask, logs, plan, down.

No model runs here: what the stub says is the stub's. That a real one answers is test_up_engine's.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparkcluster

HOST_NAMES = ("left", "right")
STATE = "/root/.local/state/sparkcluster"


@pytest.fixture
def serving(shared_lab, ranks, clean, cli_alone):
    """The module's lab, serving; a test that takes it leaves it so, and whoever finds it otherwise mends it."""
    lab = shared_lab
    status = cli_alone("status", lab.inventory, "--json")
    if status.code != 0 or lab.state.faults:
        clean(lab)
        cli_alone("up", lab.inventory).ok()
    return lab


@pytest.fixture
def cli_alone(make_cli):
    """The command line without a cleaned lab behind it."""
    return make_cli()


def inspected(spark, name):
    return json.loads(spark.run(["docker", "inspect", name]).stdout)[0]


def newest_record(spark, cluster):
    found = spark.run(["sh", "-c", f"ls {STATE}/clusters/{cluster}/releases"]).stdout.split()
    return json.loads(spark.run(["cat", f"{STATE}/clusters/{cluster}/releases/{max(found)}"]).stdout)


def test_two_sparks_that_differ_come_up_and_go_down(lab, cli, ranks):
    up = cli("up", lab.inventory).ok()
    assert "is up (release 1," in up.out
    assert "http://" in up.out
    assert up.out.count("/v1") == 2  # of the endpoint, and of the curl line

    status = cli("status", lab.inventory, "--json").ok().json
    assert status["state"] == "serving"
    assert status["model"] == "tiny"
    assert status["endpoint"] == f"http://{lab.sparks[0].host}:8000/v1"
    assert [(node["name"], node["role"], node["state"], node["ray"]) for node in status["nodes"]] == [
        ("left", "head", "running", "alive"),
        ("right", "worker", "running", "alive"),
    ]

    before = ranks(lab)
    assert {name: [state for _, _, state in found] for name, found in before.items()} == {
        "left": ["running"],
        "right": ["running"],
    }
    again = cli("up", lab.inventory, "--json").ok().json
    assert (again["state"], again["changed"], again["release"]) == ("serving", False, 1)
    assert "already up, nothing changed" in cli("up", lab.inventory).ok().out
    assert ranks(lab) == before

    assert "2 ranks removed" in cli("down", lab.inventory).ok().out
    assert ranks(lab) == {"left": [], "right": []}
    assert cli("status", lab.inventory, "--json").json["state"] == "down"
    assert "nothing was running" in cli("down", lab.inventory).ok().out


def test_up_copies_the_weights_encrypted_where_the_inventory_wants_it(lab, cli, variant):
    left, right = lab.sparks
    right.run(["rm", "-r", "/root/models/tiny"])
    assert "is up (release 1," in cli("up", variant(lab, staging={"encrypt": True}), timeout=180).ok().out
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


def test_an_answer_is_streamed_and_its_speed_told(serving, cli_alone):
    answer = cli_alone("ask", serving.inventory, "Why is the sky blue?").ok()
    assert len(answer.out.split()) > 3
    assert "tokens" in answer.err
    assert "first after" in answer.err
    document = cli_alone("ask", serving.inventory, "Why is the sky blue?", "--json", "--max-tokens", "7").ok().json
    assert document["usage"]["completion_tokens"] == 7
    assert document["ttft_s"] > 0


def test_another_playbook_is_refused_with_the_difference_and_nothing_is_touched(serving, cli_alone, ranks, variant):
    before = ranks(serving)
    other = variant(serving, playbook={"args": {"max-num-seqs": 7}, "env": {"OF_ANOTHER": "kind"}})
    refused = cli_alone("up", other)
    assert refused.code == 1
    assert "max-num-seqs" in refused.err
    assert "OF_ANOTHER" in refused.err
    assert "hint: " in refused.err
    refused = cli_alone("up", other, "--json")
    assert refused.code == 1
    assert refused.error["kind"] == "OtherPlan"
    assert any("max-num-seqs" in line for line in refused.error["difference"])
    assert ranks(serving) == before


def test_logs_name_their_node(serving, cli_alone):
    both = cli_alone("logs", serving.inventory).ok().out.splitlines()
    assert {line.split("|")[0].strip() for line in both} == set(HOST_NAMES)
    lines = cli_alone("logs", serving.inventory, "right", "-n", "3").ok().out.splitlines()
    assert 1 <= len(lines) <= 3
    assert all(line.startswith("right | ") for line in lines)


def test_logs_are_merged_by_time_and_searched(serving, cli_alone):
    lines = cli_alone("logs", serving.inventory, "--since", "1d", "--json").ok().json["lines"]
    times = [line["at"] for line in lines]
    assert times == sorted(times)
    assert {line["node"] for line in lines} == set(HOST_NAMES)
    found = cli_alone("logs", serving.inventory, "--grep", "phase=\\w+", "--since", "1d").ok().out.splitlines()
    assert found
    assert all("phase=" in line for line in found)


def test_logs_go_on_until_interrupted(serving, cli_alone):
    following = cli_alone.start("logs", serving.inventory, "left", "-f", "-n", "1")
    following.wait_for("left  |")
    cli_alone("ask", serving.inventory, "Hello", "--max-tokens", "1").ok()
    following.wait_for("POST /v1/chat/completions", timeout=10)
    following.kill(2)
    assert following.wait(10).code == 130


def test_the_plan_is_what_runs(serving, cli_alone):
    plan = cli_alone("plan", serving.inventory, "--json").ok().json
    assert plan["groups"] == [["left", "right"]] or [group["nodes"] for group in plan["groups"]] == [["left", "right"]]
    for spark in serving.sparks:
        node = plan["nodes"][spark.name]
        planned = node["containers"][0]["argv"]
        # `plan` would make the next release; the one that runs is told by its record.
        recorded = newest_record(spark, serving.state.name)
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


def test_each_node_has_its_own_interfaces_and_hcas(serving, cli_alone):
    plan = cli_alone("plan", serving.inventory, "--json").ok().json
    left, right = (plan["nodes"][name]["env"] for name in HOST_NAMES)
    assert left["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert right["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert (left["NCCL_IB_GID_INDEX"], right["NCCL_IB_GID_INDEX"]) == ("6", "3")
    assert (left["GLOO_SOCKET_IFNAME"], right["GLOO_SOCKET_IFNAME"]) == ("enp1s0f0np0", "fast0")
    assert (left["VLLM_HOST_IP"], right["VLLM_HOST_IP"]) == ("192.168.177.11", "192.168.177.12")


def test_every_node_keeps_the_record(serving):
    records = [newest_record(spark, serving.state.name) for spark in serving.sparks]
    assert records[0] == records[1]
    assert records[0]["number"] >= 1
    assert set(records[0]["nodes"]) == set(HOST_NAMES)
    assert records[0]["verified_at"] > 0


def test_output_fits_80_columns_and_a_pipe_gets_no_colour(serving, cli_alone):
    for environment in ({"COLUMNS": "80"}, {"COLUMNS": "80", "NO_COLOR": "1"}, {}):
        done = cli_alone("status", serving.inventory, env=environment).ok()
        assert "\x1b" not in done.out + done.err
        assert max(len(line) for line in done.out.splitlines()) <= 80, done
    up = cli_alone("up", serving.inventory).ok()
    assert "\x1b" not in up.out + up.err
    assert max(len(line) for line in up.err.splitlines()) <= 80, up


def test_status_shows_a_terminal_what_fits(serving, cli_alone):
    words = " ".join([sys.executable, "-m", "sparkcluster", "status", str(serving.inventory)])
    shown = subprocess.run(
        ["script", "-qec", f"stty cols 80; {words}", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm", "NO_COLOR": "1", "HOME": "/root", **python_path()},
    ).stdout
    assert "serving" in shown
    # Bold is no colour.
    assert set(re.findall(r"\x1b\[([0-9;]*)m", shown)) <= {"0", "1"}
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in shown.splitlines()]
    assert max(len(line) for line in lines if not line.startswith("next: ")) <= 80, shown  # its path is this long


def python_path():
    return {"PYTHONPATH": str(Path(sparkcluster.__file__).parent.parent)}


def test_one_spark_by_ssh_serves_without_ray(lab, cli, variant, ranks):
    alone = variant(lab, nodes=[{"name": "left", "host": lab.sparks[0].host, "connection": "ssh"}])
    cli("up", alone).ok()
    status = cli("status", alone, "--json").ok().json
    assert [node["name"] for node in status["nodes"]] == ["left"]
    assert status["nodes"][0]["ray"] is None
    assert [name for name, found in ranks(lab).items() if found] == ["left"]
    assert cli("ask", alone, "Hello", "--max-tokens", "3").ok().out.strip()
    cli("down", alone).ok()
    assert ranks(lab) == {"left": [], "right": []}


def test_one_spark_from_inside_serves_without_ssh(lab, cli, variant, ranks):
    spark = lab.sparks[0]
    nodes = [{"name": "left", "host": spark.host, "connection": "local"}]
    path = variant(lab, nodes=nodes, ssh=None, playbook={})
    with inside(spark, path.parent) as prefix:
        # An sshd that is stopped shows that nobody asked it.
        lab.fault("left", "ssh-hang")
        cli.start("up", path, prefix=prefix).wait(60).ok()
        assert cli.start("status", path, "--json", prefix=prefix).wait(60).ok().json["state"] == "serving"
        assert '"changed": false' in cli.start("up", path, "--json", prefix=prefix).wait(60).ok().out
        cli.start("down", path, prefix=prefix).wait(60).ok()
    assert ranks(lab) == {"left": [], "right": []}


def test_auto_finds_that_it_stands_on_the_spark(lab, cli, variant):
    spark = lab.sparks[0]
    path = variant(lab, nodes=[{"name": "left", "host": spark.host}], ssh=None, playbook={})
    with inside(spark, path.parent) as prefix:
        lab.fault("left", "ssh-hang")
        assert cli.start("plan", path, "--json", prefix=prefix).wait(60).ok().json["groups"]


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
    """What to put before a command so that it runs on the Spark, with this Python and the files it needs."""
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


def test_a_node_taken_out_of_the_inventory_is_cleaned_by_down_if_the_user_says_so(lab, cli, variant, ranks):
    cli("up", lab.inventory).ok()
    left, right = lab.sparks
    cut = variant(lab, nodes=[{"name": "left", "host": left.host}])
    down = cli("down", cut, "--json").ok().json
    assert set(down["removed"]) == {"left"}
    assert down["not_contacted"] == [{"name": "right", "host": right.host, "named_by": ["left"]}]
    assert [len(found) for found in ranks(lab).values()] == [0, 1]
    assert len(cli("down", cut, "--also", right.host, "--json").ok().json["removed"]) == 1
    assert ranks(lab) == {"left": [], "right": []}


@pytest.mark.full
def test_up_on_fewer_nodes_than_run_says_what_differs(lab, cli, variant, ranks):
    cli("up", lab.inventory).ok()
    before = ranks(lab)
    cut = variant(lab, nodes=[{"name": "left", "host": lab.sparks[0].host}])
    refused = cli("up", cut)
    assert refused.code == 1
    assert "right" in refused.err
    assert ranks(lab) == before


@pytest.mark.full
def test_up_without_the_head_that_still_serves_touches_nothing_and_down_finds_it(lab, cli, variant, ranks):
    cli("up", lab.inventory).ok()
    before = ranks(lab)
    cut = variant(lab, nodes=[{"name": "right", "host": lab.sparks[1].host}])
    refused = cli("up", cut)
    assert refused.code == 1, refused
    assert "left" in refused.err
    assert "hint: sparkcluster down" in refused.err
    assert ranks(lab) == before
    cli("down", cut, "--also", lab.sparks[0].host).ok()
    assert ranks(lab) == {"left": [], "right": []}


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


def test_what_a_node_lacks_is_brought_over_the_interconnect_before_anything_starts(uneven, cli, ranks):
    lacks = uneven.spark("lacks")
    assert lacks.run(["docker", "images", "-q"]).stdout == ""
    rails = {name: received(lacks, name) for name in ("enp1s0f1np1", "enP2p1s0f1np1", "enP7s7")}
    up = cli("up", uneven.inventory, timeout=180).ok()
    steps = [line.split(":")[0] for line in up.err.splitlines() if not line.startswith(" ")]
    assert "lacks" in up.err
    assert steps.index("start") > max(at for at, line in enumerate(steps) if line in ("stage", "check"))
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
    """Bytes that came in by an interface."""
    return int(spark.run(["cat", f"/sys/class/net/{interface}/statistics/rx_bytes"]).stdout)
