"""Every fault that owners of running clusters reported is found by `doctor` on its node. Stub engine.

One cluster serves; a file in its containers switches faults of the stub on and off. Faults of hardware (power, clocks,
the kernel's log, a container that lost its GPU) are simulated by the lab and marked as such.
"""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Callable, Iterator

import pytest

from sparkcluster.lab import Lab, Spark
from tests.lab.test_serving import until

CONTROL = "/tmp/ails"
SERVES = {"env": {"STUB_CONTROL": CONTROL}, "args": {"moe-backend": "marlin"}}
STATE = "/root/.local/state/sparkcluster"
XID = "NVRM: Xid (PCI:000f:01:00): 119, pid=2431, name=VLLM::EngineCor, Timeout after 6s of waiting for RPC response"
XID_OF_RANK = "NVRM: Xid (PCI:000f:01:00): 43, pid=2431, name=VLLM::Worker, Ch 00000008"
LOCKUP = "watchdog: BUG: soft lockup - CPU#11 stuck for 48s! [irq/51-aerdrv:131]"
NVML = "#!/bin/sh\necho 'Failed to initialize NVML: Unknown Error'\nexit 255\n"


@pytest.fixture(scope="module")
def inventory(shared_lab, module_variant):
    return module_variant(shared_lab, playbook=SERVES)


def inside(spark: Spark, script: str) -> None:
    """Run a shell script in every container of a Spark."""
    spark.run(["sh", "-c", f"for c in $(docker ps -q); do docker exec $c sh -c {shlex.quote(script)}; done"])


def set_stub_faults(spark: Spark, *faults: str) -> None:
    """Set faults of the stub in a Spark's containers; replaces earlier ones."""
    inside(spark, f"printf '%s\\n' {' '.join(faults)} > {CONTROL}")


@pytest.fixture
def serving(shared_lab, inventory, clean, make_cli) -> Iterator[Lab]:
    """The module's lab, serving; after a test that changed it, the next test starts it."""
    lab, cli = shared_lab, make_cli()
    lab.heal()
    for spark in lab.sparks:
        set_stub_faults(spark, "clear")
    if cli("status", inventory, "--json").code != 0:
        clean(lab)
        cli("up", inventory).ok()
    yield lab
    lab.heal()


@pytest.fixture
def fresh(serving, clean, make_cli, inventory) -> Iterator[Lab]:
    """The same, for tests whose traces stay in logs: the next test gets a new cluster."""
    yield serving
    clean(serving)


@pytest.fixture
def doctor(make_cli, inventory) -> Callable[..., dict]:
    cli = make_cli()

    def run(*flags: str, of=inventory) -> dict:
        # A short limit, and so a short pause between the two readings.
        done = cli("doctor", of, "--json", *(flags or ("--timeout", "10")))
        document = done.json
        assert "error" not in document, done
        assert done.code == (0 if document["ok"] else 1), done
        assert "Traceback" not in done.err
        return document

    return run


def ended(spark: Spark) -> None:
    """Wait until a container of a Spark has ended."""

    def exited():
        return spark.run(["docker", "ps", "-aq", "--filter", "status=exited"]).stdout.strip()

    until(exited)


def problems(document: dict) -> set[tuple[str, str | None]]:
    """Code and node of every error and warning."""
    return {(finding["code"], finding["node"]) for finding in document["findings"] if finding["severity"] != "info"}


def the(document: dict, code: str) -> dict:
    found = [finding for finding in document["findings"] if finding["code"] == code]
    assert len(found) == 1, document["findings"]
    assert found[0]["seen"]
    assert found[0]["why"]
    assert found[0]["remedy"]
    return found[0]


def test_a_healthy_cluster_is_reported_in_one_line_without_findings(serving, doctor, make_cli, inventory):
    """And no file, container or record differs after the observation."""
    script = f"find {STATE}/clusters -type f -newer /tmp/before; docker ps -aq --no-trunc | sort"
    before = {}
    for spark in serving.sparks:
        spark.run(["touch", "/tmp/before"])
        before[spark.name] = spark.run(["sh", "-c", script]).stdout
    healthy = doctor()
    assert (healthy["ok"], problems(healthy)) == (True, set())
    node = healthy["running"]["nodes"]["left"]
    assert node["ray"] == {"192.168.177.11": True, "192.168.177.12": True}
    assert node["health"] == 200
    assert node["counters"][1]["generated"] > 0
    assert healthy["running"]["nodes"]["right"]["ranks"][0]["state"] == "running"
    reply = healthy["running"]["replies"]["default"]
    assert (reply["problem"], reply["head"]) == (None, "left")
    assert reply["ttft_s"] > 0

    lines = make_cli()("doctor", inventory, "--timeout", "10").ok().out.strip().splitlines()
    assert len(lines) == 1
    assert " tokens, first after " in lines[0]
    assert "tokens/s" in lines[0]
    assert {spark.name: spark.run(["sh", "-c", script]).stdout for spark in serving.sparks} == before


def test_a_hung_collective_is_reported_although_health_returns_200(serving, doctor):
    set_stub_faults(serving.sparks[1], "hang-serve")
    hung = doctor("--timeout", "8")
    assert problems(hung) == {("RUN-003", "left")}
    assert "tokens before and after" in the(hung, "RUN-003")["seen"]
    assert hung["running"]["nodes"]["left"]["health"] == 200


def test_dead_generation_is_reported_although_health_returns_200(serving, doctor):
    set_stub_faults(serving.sparks[0], "lie-health")
    lying = doctor()
    assert problems(lying) == {("RUN-016", "left")}
    assert "/health: 200" in the(lying, "RUN-016")["seen"]


def test_several_simultaneous_faults_are_each_reported_on_their_node(fresh, doctor):
    """Simulated: Ray's list, power and clocks, the kernel's log, and nvidia-smi in the container.

    A worker's line is attributed to it, although Ray's head repeats it in the head's log.
    """
    left, right = fresh.sparks
    set_stub_faults(left, "garbage", "ray-dead=192.168.177.12")
    set_stub_faults(right, "tcp-fallback", "nan-scales", "moe-backend=FLASHINFER_CUTLASS", "eager")
    fresh.fault("left", "gpu-wedged")
    fresh.fault("left", "kernel-log", XID)
    fresh.fault("right", "kernel-log", XID_OF_RANK)
    fresh.fault("right", "crashed", LOCKUP)
    inside(right, f"printf %s {shlex.quote(NVML)} > /usr/local/bin/nvidia-smi; chmod +x /usr/local/bin/nvidia-smi")
    ailing = doctor()
    on_left = {("RUN-004", "left"), ("RUN-013", "left"), ("RUN-015", "left")}
    on_right = {(f"RUN-{number}", "right") for number in ("007", "008", "011", "012", "013", "026")}
    assert problems(ailing) == on_left | on_right
    assert "!!!!" in the(ailing, "RUN-004")["seen"]
    assert "192.168.177.12 as dead" in the(ailing, "RUN-007")["seen"]
    assert "Using network Socket" in the(ailing, "RUN-008")["seen"]
    assert "Using 'FLASHINFER_CUTLASS'" in the(ailing, "RUN-011")["seen"]
    assert "non-finite" in the(ailing, "RUN-012")["seen"]
    lost = {finding["node"]: finding for finding in ailing["findings"] if finding["code"] == "RUN-013"}
    assert lost["right"]["severity"] == "error"
    assert "Failed to initialize NVML" in lost["right"]["seen"]
    # The model answers, so the kernel's messages are from the past.
    assert lost["left"]["severity"] == "warning"
    assert "17.2 W and 799 MHz" in the(ailing, "RUN-015")["seen"]
    assert any("disconnect its power supply" in remedy for remedy in the(ailing, "RUN-015")["remedy"])
    # The log of this boot, and of the boot before.
    assert XID_OF_RANK in the(ailing, "RUN-026")["seen"]
    assert LOCKUP in the(ailing, "RUN-027")["seen"]
    # The playbook itself asks for eager mode: a note.
    assert the(ailing, "RUN-018")["severity"] == "info"


@pytest.mark.full
@pytest.mark.parametrize(
    ("cause", "code", "shown"),
    [("gid", "RUN-021", "ibv_modify_qp failed"), ("oom", "RUN-014", "CUDA out of memory")],
)
def test_a_rank_that_dies_while_serving_is_reported_with_its_cause(cause, code, shown, fresh, doctor):
    set_stub_faults(fresh.sparks[1], f"die-serve={cause}")
    ended(fresh.sparks[0])
    dead = doctor()
    assert problems(dead) == {(code, "right")}
    assert shown in the(dead, code)["seen"]


@pytest.mark.full
def test_a_killed_worker_is_reported_and_not_the_ranks_that_died_with_it(fresh, doctor):
    fresh.fault("right", "kill-worker")
    ended(fresh.sparks[0])
    dead = doctor()
    assert problems(dead) == {("RUN-005", "right")}
    assert "SIGKILL" in the(dead, "RUN-005")["summary"]


def test_without_a_cluster_doctor_suggests_up(lab, make_cli, inventory):
    none = make_cli()("doctor", inventory)
    assert none.code == 1
    assert "RUN-001" in none.out
    assert f"hint: sparkcluster up {inventory}" in none.out
    assert " is down, " in none.out.splitlines()[-1]


KEYS = {"SPARK_KEY": "open-sesame-4711", "WANDB_KEY": "hf_QkVlTm9OZUV2ZXJTZWVUaGlz"}


@pytest.mark.full
def test_a_bundle_has_all_observations_and_no_secret(shared_lab, clean, make_cli, module_variant, tmp_path):
    """Planted where they occur on real nodes: in the ranks' environment, in their logs and in /etc/dgx-release."""
    lab, cli = shared_lab, make_cli()
    clean(lab)
    keyed = module_variant(
        lab,
        playbook={**SERVES, "secrets": ["WANDB_KEY"]},
        permit={"secrets": ["WANDB_KEY"]},
        api={"key": {"env": "SPARK_KEY"}, "host": "management"},
    )
    cli("up", keyed, "--yes", env=KEYS).ok()
    planted = []
    for spark in lab.sparks:
        secrets = [*KEYS.values()]
        secrets += re.findall(r'SERIAL\w*="?([^"\n]+)', spark.run(["cat", "/etc/dgx-release"]).stdout)
        values = spark.run(["sh", "-c", f"cat {STATE}/clusters/*/ranks/*/secrets.env"]).stdout
        secrets += [line.partition("=")[2] for line in values.split()]
        inside(spark, "env > /proc/1/fd/1")
        for secret in secrets:
            inside(spark, f"echo the engine says {secret} > /proc/1/fd/1")
        planted += secrets
    bundle = tmp_path / "seen.tar.gz"
    done = cli("doctor", keyed, "--json", "--bundle", bundle, env=KEYS).ok()
    assert bundle.stat().st_mode & 0o777 == 0o600
    every = gzip.decompress(bundle.read_bytes())
    assert len(set(planted)) >= 5
    for secret in planted:
        assert secret.encode() not in every, secret
        assert secret not in done.out
    assert every.count(b"the engine says") >= len(planted)
    assert b"README.txt" in every
    clean(lab)
