"""Two models on one Spark that runs out of memory: the victim is stopped before the kernel acts, and the other keeps answering."""

from __future__ import annotations

import threading

import pytest
import yaml

from tests.lab.test_enable import acts
from tests.lab.test_serving import complete, until

CONTROL = "/tmp/takes"
SPARK = """
sparks:
- name: one
  memory_available_kb: 40000000
  memory_free_kb: 38000000
  memory_scale: 16
"""
"""Two GiB fill it; the stub allocates them in 15 s."""
MORE_MB = 8000


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(SPARK)


@pytest.fixture
def two_models(lab, tmp_path):
    """An inventory with two models: the first is the victim."""
    playbook = yaml.safe_load(lab.playbook.read_text())
    for name in ("large", "small"):
        own = {"name": name, **({"served_name": name} if name == "large" else {})}
        text = yaml.safe_dump({**playbook, **own, "env": {**playbook.get("env", {}), "STUB_CONTROL": CONTROL}})
        (tmp_path / f"{name}.yaml").write_text(text)
    inventory = yaml.safe_load(lab.inventory.read_text())
    del inventory["playbook"]
    inventory["models"] = [{"playbook": "./large.yaml", "victim": 1}, {"playbook": "./small.yaml", "name": "small"}]
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    return path


class Client(threading.Thread):
    """Sends requests one after the other until the ``with`` block ends.

    Attributes:
        answered: number of answered requests.
        failed: reasons of failed ones.
    """

    def __init__(self, spark, endpoint):
        super().__init__(daemon=True)
        self.spark, self.endpoint = spark, endpoint
        self.answered, self.failed, self.over = 0, [], threading.Event()

    def run(self):
        while not self.over.is_set():
            try:
                complete(self.spark, self.endpoint, 8)
                self.answered += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, a client saw it
                self.failed.append(str(error))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def kernel_kills(spark):
    """Number of processes of the Spark that the kernel has killed for memory."""
    script = "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2> /dev/null"
    lines = [line.split() for line in spark.run(["sh", "-c", script], check=False).stdout.splitlines()]
    return [int(count) for name, count in lines if name == "oom_kill"]


def available_gib(spark, *inside):
    """MemAvailable on a Spark, or with ``docker exec NAME`` inside a container."""
    text = spark.run([*inside, "cat", "/proc/meminfo"]).stdout
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable")) / 2**20


def test_meminfo_of_a_spark_and_its_containers_includes_the_memory_of_its_processes(lab):
    (spark,) = lab.sparks
    before = available_gib(spark)
    image = spark.run(["docker", "images", "-q"]).stdout.split()[0]
    takes = "import time; taken = b'1' * (512 << 20); time.sleep(600)"
    spark.run(["docker", "run", "-d", "--name", "takes", "--entrypoint", "python3", image, "-c", takes])
    inside = ["docker", "exec", "takes"]
    until(lambda: available_gib(spark) < before - 8 and available_gib(spark, *inside) < before - 8)
    assert available_gib(spark) > before - 10
    spark.run(["docker", "rm", "-f", "takes"])
    until(lambda: available_gib(spark) > before - 1)


def takes_all(spark, container):
    spark.run(["docker", "exec", container, "sh", "-c", f"echo take={MORE_MB} > {CONTROL}"])


def end_of(spark, container):
    """State, exit code, and whether the kernel killed the container for memory."""
    form = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
    return spark.run(["docker", "inspect", "--format", form, container]).stdout.split()


@pytest.fixture
def guarded(lab, cli, two_models):
    """Both serve, and a guard watches the first."""
    cli("up", two_models).ok()
    cli("enable", two_models, "--model", "large").ok()
    return two_models


def test_the_victim_is_stopped_before_the_kernel_acts_and_the_other_model_keeps_answering(lab, cli, guarded):
    """Its guard does not restart it."""
    (spark,), two_models = lab.sparks, guarded
    small = cli("status", two_models, "--model", "small", "--json").ok().json["endpoint"]
    names = spark.run(["docker", "ps", "--format", "{{.Names}}"]).stdout.split()
    (victim,) = [name for name in names if "-small-" not in name]
    with Client(spark, small) as client:
        takes_all(spark, victim)
        until(lambda: end_of(spark, victim) == ["exited", "90", "false"])
        answered = client.answered
        until(lambda: client.answered > answered + 10 or client.failed)
    assert client.failed == []
    assert kernel_kills(spark) == [0]

    words = "killed to protect the machine: MemAvailable was "
    until(lambda: acts(lab) == ["victim"])
    status = cli("status", two_models, "--model", "large", "--json").json
    assert words in status["why"]
    assert words in status["guards"]["one"]
    doctor = cli("doctor", two_models, "--model", "large", "--json", "--timeout", "10").json
    (found,) = [each for each in doctor["findings"] if each["code"] == "RUN-014"]
    assert words in found["summary"]
    assert any("kv-cache-memory-bytes" in each for each in found["remedy"])
    cli("status", two_models, "--model", "small", "--json").ok()

    cli("up", two_models, "--model", "large").ok()


@pytest.mark.full
def test_if_the_victim_is_too_small_the_growing_model_is_stopped_before_the_kernel_acts(lab, cli, two_models):
    (spark,) = lab.sparks
    cli("up", two_models).ok()
    names = spark.run(["docker", "ps", "--format", "{{.Names}}"]).stdout.split()
    takes_all(spark, next(name for name in names if "-small-" in name))
    until(lambda: [end_of(spark, name) for name in names] == [["exited", "90", "false"]] * 2)
    assert kernel_kills(spark) == [0]
