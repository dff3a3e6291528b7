"""Every fault ends an ``up`` with its name, within seconds, and a group that is all up or all down. Stub engine."""

from __future__ import annotations

import signal
import time

import pytest

SLOW = {"env": {"STUB_FAULT": "slow-start=60"}, "verify": {"pause_s": 1}}
"""A playbook whose weights take a minute: time enough for a fault to meet the launch."""

DEAD_RANK_S = 8
"""From the death of a rank to the end of `up`: 5 s is the product's promise, the rest this slow machine's."""

FAULT_S = 15
"""The same for faults that have to be told from a slow moment first."""


@pytest.fixture
def loading(lab, cli, variant):
    """An ``up`` in the middle of loading weights on both nodes."""
    up = cli.start("up", variant(lab, playbook=SLOW))
    up.wait_for("loading weights", timeout=40)
    return up


def ended(up, since, limit, *words):
    """The ``up`` failed within ``limit`` seconds of ``since``, and its one error line holds all ``words``."""
    done = up.wait(limit + 20)
    took = time.monotonic() - since
    error = [line for line in done.err.splitlines() if line.startswith("error: ")]
    print(f"after {took:.1f} s {error}")
    assert done.code == 1, done
    assert len(error) == 1, done
    for word in words:
        assert word in error[0], done
    assert not error[0].endswith(".")
    assert took <= limit, f"{took:.1f} s: {done}"
    return done


def none_left(ranks, lab):
    assert ranks(lab) == {spark.name: [] for spark in lab.sparks}


def test_a_worker_that_is_killed_ends_the_launch_and_its_head(loading, lab, ranks, cli):
    lab.fault("right", "kill-worker")
    done = ended(loading, time.monotonic(), DEAD_RANK_S, "right", "SIGKILL")
    none_left(ranks, lab)
    # The ranks are gone and their words are not.
    hint = " ".join(line for line in done.err.splitlines() if line.startswith(("hint: ", "or: ")))
    assert "--failed" in hint
    assert "died unexpectedly" in cli("logs", lab.inventory, "left", "--failed").ok().out
    kept = cli("logs", lab.inventory, "--failed").ok()
    assert "right | [sparkcluster]" in kept.out
    assert "SIGKILL" in kept.err


@pytest.mark.full
def test_a_head_that_is_killed_ends_the_launch_and_its_worker(loading, lab, ranks):
    lab.fault("left", "kill-worker")
    ended(loading, time.monotonic(), DEAD_RANK_S, "left")
    none_left(ranks, lab)


@pytest.mark.full
def test_an_engine_that_is_killed_ends_the_launch(loading, lab, ranks):
    lab.fault("left", "kill-engine")
    ended(loading, time.monotonic(), DEAD_RANK_S, "left", "engine")
    none_left(ranks, lab)


def test_an_engine_killed_between_its_answers_is_found_though_health_says_200(lab, cli, variant, ranks):
    # The second question is far enough from the first for the fault, and only that one can tell.
    up = cli.start("up", variant(lab, playbook={"verify": {"pause_s": 6}}))
    up.wait_for("verifying the answer")
    wait_for_answer(lab.sparks[0])
    lab.fault("left", "kill-engine")
    since = time.monotonic()
    assert http(lab.sparks[0], "/health") == 200
    assert http(lab.sparks[0], "/v1/models") == 200
    ended(up, since, FAULT_S, "left", "again after a pause")
    none_left(ranks, lab)


def http(spark, path):
    """Status of a GET on the Spark's own API."""
    code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).status)"
    return int(spark.run(["python3", "-c", code, f"http://{spark.host}:8000{path}"]).stdout)


def wait_for_answer(spark):
    """Wait until the engine has finished one completion."""
    code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
    until = time.monotonic() + 20
    while True:
        metrics = spark.run(["python3", "-c", code, f"http://{spark.host}:8000/metrics"]).stdout
        finished = [line for line in metrics.splitlines() if line.startswith("vllm:request_success_total")]
        if any(float(line.split()[-1]) >= 1 for line in finished):
            return
        assert time.monotonic() < until, metrics
        time.sleep(0.1)


def logs(spark):
    return spark.run(["sh", "-c", "docker logs $(docker ps -q) 2>&1"]).stdout


@pytest.mark.full
def test_a_node_whose_sshd_hangs_for_good_serves_and_is_named(loading, lab, cli, ranks):
    lab.fault("right", "ssh-hang")
    loading.wait_for("right: no report for 7 s", timeout=FAULT_S)
    done = loading.wait(400)
    assert done.code == 1, done
    assert "the model answers, and right could not be recorded" in done.err
    assert "left running on" not in done.err
    lab.heal()
    assert [len(found) for found in ranks(lab).values()] == [1, 1]
    cli(*loading.argv).ok()
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"


@pytest.mark.full
def test_what_a_hanging_node_keeps_up_waiting_for_is_said_every_10_s_and_ctrl_c_ends_it(lab, cli, variant, ranks):
    playbook = {"env": {"STUB_FAULT": "slow-start=20"}, "verify": {"pause_s": 1}}
    up = cli.start("up", variant(lab, playbook=playbook))
    up.wait_for("loading weights", timeout=40)
    lab.fault("right", "ssh-hang")
    up.wait_for("right: no report for 7 s", timeout=FAULT_S)
    lines, last, longest, recording = len(up.err), time.monotonic(), 0.0, None
    began = last
    while recording is None or last < recording + 30:
        time.sleep(0.2)
        now = time.monotonic()
        longest = max(longest, now - last)
        assert now < began + 240, up.err
        assert now - last < 15, up.err
        if len(up.err) > lines:
            lines, last = len(up.err), now
        if recording is None and any(line.startswith("record: ") for line in up.err):
            recording = now
    print(f"at most {longest:.1f} s without a line", "".join(up.err))
    assert longest < 11.5
    assert any("the model answers: waiting up to 120 s" in line for line in up.err)
    up.kill(signal.SIGINT)
    began = time.monotonic()
    done = up.wait(30)
    assert time.monotonic() - began < FAULT_S
    assert done.code == 130, done
    assert "the model serves, and sparkcluster up again records it" in done.err
    assert "Traceback" not in done.err
    lab.heal()
    assert [len(found) for found in ranks(lab).values()] == [1, 1]
    cli(*up.argv).ok()


@pytest.mark.full
def test_what_a_hanging_node_kept_is_said_and_cleaned_by_the_next_up(loading, lab, cli, ranks):
    lab.fault("right", "ssh-hang")
    loading.wait_for("right: no report for 7 s", timeout=FAULT_S)
    lab.fault("left", "kill-worker")
    done = ended(loading, time.monotonic(), FAULT_S, "left", "left running on right")
    assert "sparkcluster down" in done.err
    assert ranks(lab)["left"] == []
    lab.heal()
    # Without its head the rank that could not be reached ends by itself.
    until = time.monotonic() + 15
    while any(state == "running" for _, _, state in ranks(lab)["right"]):
        assert time.monotonic() < until, logs(lab.sparks[1])
        time.sleep(0.2)
    cli("up", lab.inventory).ok()
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"
    assert [len(found) for found in ranks(lab).values()] == [1, 1]


@pytest.mark.full
def test_a_node_that_hangs_before_the_launch_is_named_and_nothing_starts(lab, cli, ranks):
    lab.fault("right", "ssh-hang")
    done = ended(cli.start("up", lab.inventory), time.monotonic(), 20, "")
    assert "right" in done.err
    assert "SSH-003" in done.err
    none_left(ranks, lab)


def test_a_cable_that_is_pulled_is_named(loading, lab, ranks):
    lab.fault("right", "cable-out")
    done = ended(loading, time.monotonic(), FAULT_S, "right", "no carrier", "cable")
    assert "fast0" in done.err or "fast1" in done.err
    none_left(ranks, lab)


@pytest.mark.full
def test_a_cable_that_is_out_before_the_launch_is_named_and_nothing_starts(lab, cli, ranks):
    lab.fault("right", "cable-out")
    done = cli("up", lab.inventory)
    assert done.code == 1, done
    assert "right" in done.err
    assert "cable" in done.err
    none_left(ranks, lab)


@pytest.mark.full
def test_a_cable_that_flaps_for_a_second_ends_nothing(lab, cli, variant):
    up = cli.start("up", variant(lab, playbook={"env": {"STUB_FAULT": "slow-start=8"}}))
    up.wait_for("loading weights", timeout=40)
    lab.fault("right", "cable-out")
    lab.heal("right")
    up.wait(60).ok()


def test_a_port_that_is_taken_is_named_with_its_holder_and_nothing_starts(lab, cli, ranks):
    lab.fault("left", "port-busy", "8000")
    done = cli("up", lab.inventory)
    assert done.code == 1, done
    assert "HOST-004" in done.err
    assert "left" in done.err
    assert "8000" in done.err
    assert "python3" in done.err
    assert done.seconds < FAULT_S
    none_left(ranks, lab)


@pytest.mark.full
def test_a_port_that_is_taken_after_the_checks_is_named(lab, cli, variant, ranks):
    """The launcher's setup is the last moment: vLLM binds its port before it loads anything."""
    up = cli.start("up", variant(lab, playbook={"setup": ["sleep 6"]}), "--yes")
    up.wait_for("watch: ", timeout=40)
    lab.fault("left", "port-busy", "8000")
    ended(up, time.monotonic(), 20, "left", "a port is in use")
    none_left(ranks, lab)


def test_an_image_that_nobody_has_is_named_and_nothing_starts(lab, cli, variant, ranks):
    wrong = variant(lab, playbook={"image": "sparkcluster-lab/nobody-has-it:1"})
    done = cli("up", wrong)
    assert done.code == 1, done
    assert "sparkcluster-lab/nobody-has-it:1" in done.err
    assert "hint: " in done.err
    assert done.seconds < FAULT_S
    none_left(ranks, lab)


@pytest.mark.full
def test_an_image_that_differs_on_one_node_is_found_and_replaced(lab, cli, ranks):
    right = lab.spark("right")
    image = right.run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]).stdout.split()[0]
    before = right.run(["docker", "images", "-q", "--no-trunc", image]).stdout.strip()
    steps = (
        "docker create --name xx $1 true",
        "docker cp /etc/hostname xx:/other",
        "docker commit xx $1",
        "docker rm xx",
    )
    right.run(["sh", "-c", " && ".join(steps), "sh", image])
    plan = cli("plan", lab.inventory, "--json")
    assert plan.code == 1, plan
    found = [finding for finding in plan.json["findings"] if finding["severity"] == "error"]
    assert [(finding["code"], finding["node"]) for finding in found] == [("IMG-001", "right")]
    cli("up", lab.inventory).ok()
    assert right.run(["docker", "images", "-q", "--no-trunc", image]).stdout.strip() == before


@pytest.mark.full
def test_weights_that_nobody_has_are_named_and_nothing_starts(lab, cli, variant, ranks):
    wrong = variant(lab, playbook={"model": {"path": "/root/models/nobody-has-it"}})
    done = cli("up", wrong)
    assert done.code == 1, done
    assert "/root/models/nobody-has-it" in done.err
    assert "hint: " in done.err
    assert done.seconds < FAULT_S
    none_left(ranks, lab)


@pytest.mark.full
def test_weights_that_vanish_during_the_launch_are_named(lab, cli, variant, ranks):
    """Between the check and the load; the launcher's setup is the last moment."""
    playbook = {"setup": ["sleep 4"], "env": {"STUB_FAULT": "slow-start=1"}}
    up = cli.start("up", variant(lab, playbook=playbook), "--yes")
    up.wait_for("watch: ", timeout=40)
    right = lab.spark("right")
    right.run(["sh", "-c", "mv /root/models/tiny/model.safetensors /root/models/tiny/gone"])
    try:
        ended(up, time.monotonic(), 30, "right")
        none_left(ranks, lab)
    finally:
        right.run(["sh", "-c", "mv /root/models/tiny/gone /root/models/tiny/model.safetensors"])


ENGINE_FAULTS = {
    "oom": ("memory",),
    "die-load=2@right": ("right",),
    "nccl-memlock": ("memlock",),
    "nccl-gid": ("GID",),
    "exit0": (),
    "lie-health": ("500",),
    "garbage": ("garbage",),
    "null-content": ("empty",),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", ENGINE_FAULTS)
def test_an_engine_that_fails_by_itself_is_named(fault, lab, cli, variant, ranks):
    up = cli.start("up", variant(lab, playbook={"env": {"STUB_FAULT": fault}}))
    ended(up, time.monotonic(), 40, *ENGINE_FAULTS[fault])
    none_left(ranks, lab)


@pytest.mark.full
def test_a_first_request_that_compiles_longer_than_vllms_own_limit_is_waited_for(lab, cli, variant, ranks):
    """Its limit of a step is 300 s, which follows ready_timeout_s."""
    fault = {"STUB_FAULT": "slow-first=900"}
    cli("up", variant(lab, playbook={"env": fault, "ready_timeout_s": 1200}), timeout=120).ok()
    cli("down", lab.inventory).ok()
    own = {**fault, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "300"}
    up = cli.start("up", variant(lab, playbook={"env": own}))
    done = ended(up, time.monotonic(), 40, "did not finish a step")
    assert "ready_timeout_s" in done.err
    none_left(ranks, lab)


@pytest.mark.full
@pytest.mark.parametrize("fault", ["hang-load", "hang-rendezvous", "hang-serve"])
def test_an_engine_that_hangs_ends_with_the_limit_and_a_suspect(fault, lab, cli, variant, ranks):
    path = variant(lab, playbook={"env": {"STUB_FAULT": fault}, "verify": {"timeout_s": 8}})
    up = cli.start("up", path, "--timeout", "12")
    # A request that is never answered keeps a head that drains until it is killed, 30 s after it was told to stop.
    ended(up, time.monotonic(), 40 + (30 if fault == "hang-serve" else 0), "left")
    none_left(ranks, lab)


@pytest.mark.full
def test_ctrl_c_leaves_nothing_running(loading, lab, ranks):
    loading.kill(2)
    done = loading.wait(20)
    assert done.code == 130, done
    assert "nothing is left running" in done.err
    none_left(ranks, lab)


@pytest.fixture
def serving(lab, cli):
    """The lab, serving."""
    cli("up", lab.inventory).ok()
    return lab


def degraded_then_serving(lab, cli, ranks):
    """``status`` says that it is not well, and ``up`` again ends serving, with new ranks on every node."""
    before = {rank[0] for found in ranks(lab).values() for rank in found}
    status = cli("status", lab.inventory, "--json")
    assert status.code == 1, status
    assert status.json["state"] == "degraded"
    assert status.json["endpoint"] is None
    assert "degraded" in cli("status", lab.inventory).out
    up = cli("up", lab.inventory, "--json").ok()
    assert up.json["changed"] is True
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"
    after = {rank[0] for found in ranks(lab).values() for rank in found}
    assert len(after) == 2
    assert not after & before


def test_an_engine_that_died_while_serving_is_degraded_and_up_mends_it(serving, cli, ranks):
    serving.fault("left", "kill-engine")
    assert http(serving.sparks[0], "/health") == 200
    degraded_then_serving(serving, cli, ranks)


@pytest.mark.full
def test_a_worker_that_died_while_serving_is_degraded_and_up_mends_it(serving, cli, ranks):
    serving.fault("right", "kill-worker")
    degraded_then_serving(serving, cli, ranks)


@pytest.mark.full
def test_after_a_reboot_status_says_so_and_up_mends_it(serving, cli, ranks):
    serving.fault("right", "reboot")
    degraded_then_serving(serving, cli, ranks)


@pytest.mark.full
def test_after_a_reboot_of_all_nodes_up_mends_it(serving, cli, ranks):
    for spark in serving.sparks:
        serving.fault(spark.name, "reboot")
    degraded_then_serving(serving, cli, ranks)


@pytest.mark.full
def test_a_pulled_cable_while_serving_is_degraded_and_up_mends_it_once_it_is_in(serving, cli, ranks):
    serving.fault("right", "cable-out")
    assert cli("status", serving.inventory, "--json", timeout=200).json["state"] == "degraded"
    serving.heal()
    assert cli("up", serving.inventory, timeout=200).ok()
    assert cli("status", serving.inventory, "--json").ok().json["state"] == "serving"


@pytest.mark.full
def test_down_says_what_it_cannot_reach_and_cleans_the_rest(serving, cli, ranks):
    serving.fault("right", "ssh-hang")
    done = cli("down", serving.inventory)
    assert done.code == 1, done
    assert "right" in done.err
    assert "then sparkcluster down again" in done.err
    assert ranks(serving)["left"] == []
    serving.heal()
    cli("down", serving.inventory).ok()
    none_left(ranks, serving)


@pytest.mark.full
def test_a_host_key_that_changed_is_refused_with_the_line_that_mends_it(lab, cli, ranks):
    lab.fault("right", "host-key-changed")
    done = cli("up", lab.inventory)
    assert done.code == 1, done
    assert "SSH-005" in done.err
    assert "ssh-keygen" in done.err
    none_left(ranks, lab)


@pytest.mark.full
@pytest.mark.parametrize(("fault", "code"), [(("mtu", "1500"), "NET-006"), (("gid-missing",), "NET-003")])
def test_what_would_hang_is_found_before_the_launch(fault, code, lab, cli, ranks):
    lab.fault("right", *fault)
    done = cli("up", lab.inventory)
    assert done.code == 1, done
    assert code in done.err
    assert "right" in done.err
    none_left(ranks, lab)


@pytest.mark.full
def test_a_shifted_gid_table_is_followed(lab, cli):
    lab.fault("right", "gid-shift")
    plan = cli("plan", lab.inventory, "--json").ok().json
    assert plan["nodes"]["right"]["env"]["NCCL_IB_GID_INDEX"] == "6"
