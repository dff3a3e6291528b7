"""The lab keeps its promises: separate machines, faults that are real, and nothing left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.lab import Lab, down
from sparkcluster.lab.spec import load

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="virtual Sparks need root: sudo ./scripts/test"),
]

UNLIKE = """
sparks:
- name: left
  ports: p0
  gids: shifted
- name: right
  ports: p1
  interfaces: {enp1s0f1np1: fast0, enP2p1s0f1np1: fast1}
  driver: '580.142'
  nvidia_runtime: false
  disk_gb: 2
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A directory of labs of this test's own."""
    directory = tmp_path_factory.mktemp("labs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKCLUSTER_LAB_DIR", str(directory))
        yield directory


@pytest.fixture(scope="module")
def lab(base):
    """Two Sparks that differ in all that may differ."""
    spec = base / "unlike.yaml"
    spec.write_text(UNLIKE)
    with Lab.up(engine="none", spec=load(spec), name="unlike") as made:
        yield made


def ssh(lab, spark, *argv, user="root", check=True):
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=3", "-o", "StrictHostKeyChecking=yes"]
    options += ["-o", f"UserKnownHostsFile={lab.directory / 'known_hosts'}", "-F", "none"]
    options += ["-i", str(lab.directory / "id_ed25519"), f"{user}@{spark.host}"]
    return subprocess.run(["ssh", *options, *argv], capture_output=True, text=True, timeout=20, check=check)


def out(spark, *argv):
    return spark.run(list(argv)).stdout


def left_of(base: Path, index: int) -> list[str]:
    """Whatever of a lab is still on this machine."""
    reservation = Path("/run/sparkcluster-lab") / str(index)
    found = []
    # Somebody else's lab may have taken the number since.
    if not reservation.exists() or str(base) in reservation.read_text():
        found += [f"reservation {path}" for path in [reservation] if path.exists()]
        found += [f"namespace {path.name}" for path in Path("/run/netns").glob(f"sclab{index}-*")]
        found += [f"device {path.name}" for path in Path("/sys/class/net").glob(f"sclab{index}")]
        found += [f"control group {path}" for path in Path("/sys/fs/cgroup").glob(f"**/sclab{index}-*")]
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(base) in line]
    found += [f"file {path}" for path in base.iterdir() if "unlike" not in path.name]
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if str(base) in file.read_text():
                found.append(f"loop device {file.read_text()}")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            if str(base) in words and process.name != str(os.getpid()):
                found.append(f"process {process.name} {words}")
    return found


def test_each_spark_is_a_machine_of_its_own(lab):
    left, right = lab.sparks
    assert ssh(lab, left, "hostname").stdout == "left\n"
    assert ssh(lab, right, "hostname", user="spark").stdout == "right\n"
    left.run(["sh", "-c", "echo mine > /dev/shm/x; echo mine > /root/x; echo mine > /etc/x; echo mine > /tmp/x"])
    assert right.run(["sh", "-c", "ls /dev/shm/x /root/x /etc/x /tmp/x"], check=False).stdout == ""
    assert not Path("/etc/x").exists()
    processes = out(left, "ps", "-eo", "comm").split()
    assert processes.count("sshd") == 1
    assert "pytest" not in " ".join(processes)
    assert out(left, "docker", "info", "--format", "{{.Name}} {{.MemTotal}}").split() == [
        "left",
        "130595926016",
    ]


def test_every_spark_reaches_the_others_on_both_rails_with_jumbo_frames(lab):
    left, right = lab.sparks
    for address in ("192.168.177.12", "192.168.178.12"):
        left.run(["ping", "-c1", "-W2", "-Mdo", "-s8972", address])
    right.run(["ping", "-c1", "-W2", left.host])


def test_up_twice_changes_nothing_and_another_shape_is_refused(lab):
    before = [spark.pid for spark in lab.sparks]
    again = Lab.up(engine="none", spec=lab.state.spec, name="unlike")
    assert [spark.pid for spark in again.sparks] == before
    with pytest.raises(UsageError, match="already up with other Sparks"):
        Lab.up(3, engine="none", name="unlike")


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A directory of labs for one test; whatever is in it goes with the test."""
    directory = tmp_path / "labs"
    directory.mkdir()
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(directory))
    yield directory
    with contextlib.suppress(SparkclusterError):
        down("short")


def test_down_leaves_nothing_and_can_be_said_twice(alone):
    lab = Lab.up(2, engine="none", name="short")
    lab.down()
    assert left_of(alone, lab.state.index) == []
    lab.down()
    assert down("short") is False


MOMENTS = {
    "a cable": "nodes",
    "a boot": "nodes/spark-0002/pid",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lab_killed_while_it_comes_up_leaves_nothing_after_down(alone, moment):
    with coming_up() as process:
        until = time.monotonic() + 20
        while not (alone / "short" / MOMENTS[moment]).exists() and time.monotonic() < until:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    index = json.loads((alone / "short" / "state.json").read_text())["index"]
    assert down("short") is True
    assert left_of(alone, index) == []


def coming_up():
    command = ["lab", "up", "--sparks", "2", "--engine", "none", "--name", "short"]
    return subprocess.Popen(
        [sys.executable, "-m", "sparkcluster", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_the_commands_speak_as_the_contract_says(alone):
    def command(*words):
        return subprocess.run(
            [sys.executable, "-m", "sparkcluster", "lab", *words], capture_output=True, text=True, check=False
        )

    up = command("up", "--sparks", "1", "--engine", "none", "--name", "short")
    assert up.returncode == 0
    assert up.stdout.splitlines()[-1] == str(alone / "short" / "inventory.yaml")
    again = command("up", "--sparks", "1", "--engine", "none", "--name", "short", "--json")
    assert json.loads(again.stdout)["sparks"] == [{"name": "spark-0001", "host": again_host(again)}]
    wrong = command("fault", "spark-0001", "meteor", "--name", "short")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "hint:" in wrong.stderr
    assert command("down", "--name", "short").returncode == 0
    assert command("down", "--name", "short").returncode == 0


def again_host(done) -> str:
    return json.loads(done.stdout)["sparks"][0]["host"]
