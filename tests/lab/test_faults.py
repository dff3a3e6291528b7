"""Every fault ends an ``up`` with an error that names it, and the group is either up or down as a whole. Stub engine."""

from __future__ import annotations

import pytest

from tests.lab.test_serving import until

SLOW = {"env": {"STUB_FAULT": "slow-start=60"}, "verify": {"pause_s": 1}}
"""A playbook whose weights take a minute: time enough for a fault during the launch."""


@pytest.fixture
def loading(lab, cli, variant):
    """An ``up`` that is loading weights on both nodes."""
    up = cli.start("up", variant(lab, playbook=SLOW))
    up.wait_for("loading weights")
    return up


def ended(up, *words):
    """The ``up`` failed, and its only error line contains all ``words``."""
    done = up.wait()
    error = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.code == 1, done
    assert len(error) == 1, done
    for word in words:
        assert word in error[0], done
    return done


def none_left(ranks, lab):
    assert ranks(lab) == {spark.name: [] for spark in lab.sparks}


def test_a_killed_worker_ends_the_launch_and_the_head(loading, lab, ranks, cli):
    lab.fault("right", "kill-worker")
    done = ended(loading, "right", "SIGKILL")
    none_left(ranks, lab)
    # The ranks are removed, but their logs are saved.
    hint = " ".join(line for line in done.err.splitlines() if line.startswith(("hint: ", "log: ")))
    assert "--failed" in hint
    assert "died unexpectedly" in cli("logs", lab.inventory, "left", "--failed").ok().out
    kept = cli("logs", lab.inventory, "--failed").ok()
    assert "right | [sparkcluster]" in kept.out
    assert "SIGKILL" in kept.err


@pytest.mark.full
def test_an_engine_killed_between_its_two_answers_is_detected_although_health_returns_200(lab, cli, variant, ranks):
    # The second request comes after the fault, and only this request can detect it.
    up = cli.start("up", variant(lab, playbook={"verify": {"pause_s": 6}}))
    up.wait_for("API ready")
    wait_for_answer(lab.sparks[0])
    lab.fault("left", "kill-engine")
    assert http(lab.sparks[0], "/health") == 200
    assert http(lab.sparks[0], "/v1/models") == 200
    ended(up, "left", "after a pause")
    none_left(ranks, lab)


def http(spark, path):
    """Status of a GET on the Spark's API."""
    code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).status)"
    return int(spark.run(["python3", "-c", code, f"http://{spark.host}:8000{path}"]).stdout)


def wait_for_answer(spark):
    """Wait until the engine has finished one completion."""
    code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"

    def finished():
        metrics = spark.run(["python3", "-c", code, f"http://{spark.host}:8000/metrics"]).stdout
        counts = [line.split()[-1] for line in metrics.splitlines() if line.startswith("vllm:request_success_total")]
        return any(float(count) >= 1 for count in counts)

    until(finished)


@pytest.mark.full
def test_leftovers_on_a_hanging_node_are_reported_and_removed_by_the_next_up(loading, lab, cli, ranks):
    lab.fault("right", "ssh-hang")
    loading.wait_for("right: no report for 7 s")
    lab.fault("left", "kill-worker")
    done = ended(loading, "left", "left running on right")
    assert "sparkcluster down" in done.err
    assert ranks(lab)["left"] == []
    lab.heal()
    # Without its head, the unreachable rank exits automatically.
    until(lambda: all(state != "running" for _, _, state in ranks(lab)["right"]))
    cli("up", lab.inventory).ok()
    assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"
    assert [len(found) for found in ranks(lab).values()] == [1, 1]


def test_a_pulled_cable_is_reported(loading, lab, ranks):
    lab.fault("right", "cable-out")
    done = ended(loading, "right", "no carrier", "cable")
    assert "fast0" in done.err or "fast1" in done.err
    none_left(ranks, lab)


@pytest.mark.full
def test_a_port_taken_after_the_checks_is_reported(lab, cli, variant, ranks):
    """The launcher's setup is the last chance: vLLM binds its port before it loads anything."""
    up = cli.start("up", variant(lab, playbook={"setup": ["sleep 6"]}), "--yes")
    up.wait_for("setup 1/1")
    lab.fault("left", "port-busy", "8000")
    ended(up, "left", "a port is in use")
    none_left(ranks, lab)


ENGINE_FAULTS = {
    "oom": ("memory",),
    "die-load=2@right": ("right",),
    "exit0": (),
    "garbage": ("garbage",),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", ENGINE_FAULTS)
def test_an_engine_that_fails_without_a_fault_of_the_cluster_is_reported(fault, lab, cli, variant, ranks):
    up = cli.start("up", variant(lab, playbook={"env": {"STUB_FAULT": fault}}))
    ended(up, *ENGINE_FAULTS[fault])
    none_left(ranks, lab)


@pytest.mark.full
@pytest.mark.parametrize("fault", ["hang-load", "hang-serve"])
def test_a_hanging_engine_times_out_with_a_suspect(fault, lab, cli, variant, ranks):
    path = variant(lab, playbook={"env": {"STUB_FAULT": fault}, "verify": {"timeout_s": 8}})
    up = cli.start("up", path, "--timeout", "12")
    ended(up, "left")
    none_left(ranks, lab)


@pytest.fixture
def serving(lab, cli):
    """The lab, serving."""
    cli("up", lab.inventory).ok()
    return lab


def degraded_then_serving(lab, cli, ranks):
    """``status`` reports a problem, and a second ``up`` serves, with new ranks on every node."""
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


@pytest.mark.full
def test_an_engine_that_died_while_serving_is_degraded_and_up_restarts_it(serving, cli, ranks):
    serving.fault("left", "kill-engine")
    assert http(serving.sparks[0], "/health") == 200
    degraded_then_serving(serving, cli, ranks)


@pytest.mark.full
def test_a_cable_pulled_while_serving_is_degraded_and_down_names_the_unreachable_node(serving, cli, ranks):
    serving.fault("right", "cable-out")
    assert cli("status", serving.inventory, "--json").json["state"] == "degraded"
    serving.heal()
    cli("up", serving.inventory).ok()
    assert cli("status", serving.inventory, "--json").ok().json["state"] == "serving"

    serving.fault("right", "ssh-hang")
    done = cli("down", serving.inventory)
    assert done.code == 1, done
    assert "right" in done.err
    assert "then sparkcluster down " in done.err
    assert ranks(serving)["left"] == []
    serving.heal()
    cli("down", serving.inventory).ok()
    none_left(ranks, serving)
