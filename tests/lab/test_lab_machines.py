"""The lab: separate machines, real faults, and nothing left behind."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkcluster.errors import SparkclusterError
from sparkcluster.lab import Lab, down


def left_of(base: Path, index: int) -> list[str]:
    """Leftovers of a lab on this machine."""
    reservation = Path("/run/sparkcluster-lab") / str(index)
    found = []
    # Another lab may have taken the number since.
    if not reservation.exists() or str(base) in reservation.read_text():
        found += [f"reservation {path}" for path in [reservation] if path.exists()]
        found += [f"namespace {path.name}" for path in Path("/run/netns").glob(f"sclab{index}-*")]
        found += [f"device {path.name}" for path in Path("/sys/class/net").glob(f"sclab{index}")]
        found += [f"control group {path}" for path in Path("/sys/fs/cgroup").glob(f"**/sclab{index}-*")]
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(base) in line]
    found += [f"file {path}" for path in base.iterdir()]
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


def test_each_spark_is_a_separate_machine_that_reaches_the_others_on_both_rails(lab):
    left, right = lab.sparks
    left.run(["sh", "-c", "echo mine > /dev/shm/x; echo mine > /root/x; echo mine > /etc/x; echo mine > /tmp/x"])
    assert right.run(["sh", "-c", "ls /dev/shm/x /root/x /etc/x /tmp/x"], check=False).stdout == ""
    assert not Path("/etc/x").exists()
    processes = left.run(["ps", "-eo", "comm"]).stdout.split()
    assert processes.count("sshd") == 1
    assert "pytest" not in " ".join(processes)
    engine = ["docker", "info", "--format", "{{.Name}} {{.MemTotal}}"]
    assert left.run(engine).stdout.split() == ["left", "130595926016"]
    for address in ("192.168.177.12", "192.168.178.12"):
        left.run(["ping", "-c1", "-w10", "-Mdo", "-s8972", address])
    left.run(["rm", "/dev/shm/x", "/root/x", "/etc/x", "/tmp/x"])


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A directory of labs for one test, removed with its contents after the test."""
    directory = tmp_path / "labs"
    directory.mkdir()
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(directory))
    yield directory
    with contextlib.suppress(SparkclusterError):
        down("short")


def test_down_leaves_nothing_and_can_be_repeated(alone):
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
def test_a_lab_killed_while_starting_leaves_nothing_after_down(alone, moment):
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


def test_the_commands_follow_the_contract(alone):
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


@pytest.mark.full
def test_the_commands_that_lab_up_suggests_work(alone):
    """It names an image that an upgrade switches to, and one that an upgrade rolls back from."""

    def command(*words):
        return subprocess.run(
            [sys.executable, "-m", "sparkcluster", *words], capture_output=True, text=True, check=False
        )

    up = command("lab", "up", "--sparks", "1", "--engine", "stub", "--name", "short")
    lines = [
        shlex.split(line.partition("   ")[0])
        for line in up.stderr.splitlines()
        if " --image " in line or " up " in line
    ]
    begin, newer, broken = [line[line.index("sparkcluster") + 1 :] for line in lines]
    codes = [command(*begin).returncode, *(command(*line, "--yes").returncode for line in (newer, broken))]
    assert codes == [0, 0, 4]
    status = json.loads(command("status", begin[1], "--json").stdout)
    assert (status["state"], status["release"]) == ("serving", 3)


def again_host(done) -> str:
    return json.loads(done.stdout)["sparks"][0]["host"]
