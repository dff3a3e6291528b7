"""The lab keeps its promises: separate machines, faults that are real, and nothing left behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.lab import Lab, LabError, down
from sparkcluster.lab.machine import wait_until
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


@pytest.fixture
def healed(lab):
    """The same, without faults before and after."""
    yield lab
    lab.heal()


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


def test_a_login_finds_the_sparks_own_tools_first(lab):
    seen = ssh(lab, lab.sparks[0], "which nvidia-smi python3; uname -r; cat /proc/sys/kernel/osrelease", user="spark")
    assert seen.stdout.split() == [
        "/usr/local/bin/nvidia-smi",
        "/usr/bin/python3",
        "6.14.0-1015-nvidia",
        "6.14.0-1015-nvidia",
    ]


def test_every_spark_reaches_the_others_on_both_rails_with_jumbo_frames(lab):
    left, right = lab.sparks
    for address in ("192.168.177.12", "192.168.178.12"):
        left.run(["ping", "-c1", "-W2", "-Mdo", "-s8972", address])
    right.run(["ping", "-c1", "-W2", left.host])


def test_the_machine_itself_has_no_way_onto_the_rails(lab):
    route = subprocess.run(["ip", "route", "get", "192.168.177.11"], capture_output=True, text=True, check=False)
    assert "sclab" not in route.stdout
    assert "spark" not in subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    devices = [path.name for path in Path("/sys/class/net").iterdir()]
    assert [name for name in devices if name.startswith(f"sclab{lab.state.index}")] == [lab.state.host_device]


def test_interfaces_hcas_and_gids_are_as_the_spec_says(lab):
    left, right = lab.sparks
    assert "rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)" in out(left, "ibdev2netdev")
    assert "roceP2p1s0f1 port 1 ==> fast1 (Up)" in out(right, "ibdev2netdev")
    gids = "/sys/class/infiniband/rocep1s0f0/ports/1"
    assert out(left, "cat", f"{gids}/gids/6", f"{gids}/gid_attrs/types/6", f"{gids}/gid_attrs/ndevs/6").split("\n") == [
        "0000:0000:0000:0000:0000:ffff:c0a8:b10b",
        "RoCE v2",
        "enp1s0f0np0",
        "",
    ]
    empty = left.run(["cat", f"{gids}/gid_attrs/types/3"], check=False)
    assert "Invalid argument" in empty.stderr
    assert out(right, "cat", "/sys/class/net/fast0/phys_port_name", "/sys/class/net/fast0/speed") == "p1\n200000\n"
    assert out(right, "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") == "580.142\n"


def test_a_changed_address_changes_the_gid_by_itself(healed):
    right = healed.sparks[1]
    right.run(["ip", "addr", "add", "192.168.177.99/24", "dev", "fast0"])
    table = "/sys/class/infiniband/rocep1s0f1/ports/1/gids/5"
    expected = "0000:0000:0000:0000:0000:ffff:c0a8:b163\n"
    assert eventually(lambda: out(right, "cat", table) == expected)
    right.run(["ip", "addr", "del", "192.168.177.99/24", "dev", "fast0"])
    assert eventually(lambda: out(right, "cat", table) != expected)


def eventually(true) -> bool:
    for _ in range(100):
        if true():
            return True
        time.sleep(0.02)
    return False


def test_docker_has_nvidias_runtime_only_where_the_spec_says(lab):
    runtimes = [json.loads(out(spark, "docker", "info", "--format", "{{json .Runtimes}}")) for spark in lab.sparks]
    assert ["nvidia" in names for names in runtimes] == [True, False]


@pytest.fixture(scope="module")
def container(lab):
    """A small image on both Sparks: the machine's own shell and what it needs."""
    script = (
        "mkdir -p /tmp/i/bin && cp /bin/sh /bin/cat /bin/ls /bin/sleep /tmp/i/bin/ && "
        "for f in $(ldd /bin/sh /bin/cat /bin/ls | grep -o '/lib[^ ]*' | sort -u); do "
        "mkdir -p /tmp/i/$(dirname $f); cp -L $f /tmp/i/$f; done && tar -C /tmp/i -c . | docker import - small"
    )
    for spark in lab.sparks:
        spark.run(["sh", "-c", script])
    return "small"


RANK = (
    "--rm",
    "--network",
    "host",
    "--ipc",
    "host",
    "--gpus",
    "all",
    "--device",
    "/dev/infiniband",
    "--init",
)


def test_a_rank_starts_as_on_a_real_spark(lab, container):
    left, right = lab.sparks
    limits = ("--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--cap-add", "SYS_NICE")
    inside = "ls /dev/infiniband; cat /sys/class/infiniband/rocep1s0f0/ports/1/state"
    seen = out(left, "docker", "run", *RANK, *limits, container, "sh", "-c", inside)
    assert "uverbs0" in seen
    assert "4: ACTIVE" in seen
    refused = right.run(["docker", "run", *RANK, container, "true"], check=False)
    assert "could not select device driver" in refused.stderr


def test_without_a_driver_no_container_gets_the_gpu(healed, container):
    left = healed.sparks[0]
    healed.fault("left", "driver", "none")
    refused = left.run(["docker", "run", *RANK, container, "true"], check=False)
    assert "nvml error: driver not loaded" in refused.stderr
    healed.heal("left")
    left.run(["docker", "run", *RANK, container, "sh", "-c", ":"])


def test_cable_out_takes_the_light_and_heal_brings_it_back(healed):
    left, right = healed.sparks
    healed.fault("left", "cable-out")
    assert out(left, "ibdev2netdev").count("(Up)") == 0
    assert out(left, "cat", "/sys/class/net/enp1s0f0np0/carrier") == "0\n"
    assert right.run(["ping", "-c1", "-W1", "192.168.177.11"], check=False).returncode == 1
    assert out(right, "ibdev2netdev").count("(Up)") == 2
    healed.heal("left")
    assert out(left, "ibdev2netdev").count("(Up)") == 2
    right.run(["ping", "-c1", "-W2", "192.168.177.11"])


def test_mtu_lets_small_packets_through_and_no_large_ones(healed):
    left = healed.sparks[0]
    healed.fault("right", "mtu", "1500")
    left.run(["ping", "-c1", "-W1", "192.168.177.12"])
    assert left.run(["ping", "-c1", "-W1", "-Mdo", "-s8972", "192.168.177.12"], check=False).returncode == 1


def test_gid_faults_move_and_empty_the_entries(healed):
    right = healed.sparks[1]
    healed.fault("right", "gid-shift")
    assert "\t6\t0000:0000:0000:0000:0000:ffff:c0a8:b10c" in out(right, "show_gids", "rocep1s0f1")
    healed.fault("right", "gid-missing", "rocep1s0f1")
    assert "ffff:c0a8" not in out(right, "show_gids", "rocep1s0f1")
    assert "ffff:c0a8" in out(right, "show_gids", "roceP2p1s0f1")
    assert len(healed.heal("right")) == 2
    assert "\t3\t0000:0000:0000:0000:0000:ffff:c0a8:b10c" in out(right, "show_gids", "rocep1s0f1")


def bandwidth_gbps(left, right) -> float:
    left.run(["sh", "-c", "ib_write_bw -d rocep1s0f0 > /run/bw.log 2>&1 &"])
    assert eventually(lambda: "18515" in out(left, "ss", "-ltn"))
    rows = out(right, "ib_write_bw", "-d", "rocep1s0f1", left.host).splitlines()
    return float(next(row for row in rows if row.startswith(" 65536")).split()[3])


def test_a_slow_link_is_measured_slow(healed):
    left, right = healed.sparks
    assert bandwidth_gbps(left, right) == pytest.approx(97.3)
    healed.fault("left", "slow-link", "200mbit")
    assert bandwidth_gbps(left, right) < 0.25


def test_ib_write_bw_with_a_bad_gid_index_says_nothing_and_exits_0(lab):
    left, right = lab.sparks
    left.run(["sh", "-c", "ib_write_bw -d rocep1s0f0 > /run/bw.log 2>&1 &"])
    assert eventually(lambda: "18515" in out(left, "ss", "-ltn"))
    seen = out(right, "ib_write_bw", "-d", "rocep1s0f1", "-x", "9", left.host)
    assert "BW average" in seen
    assert "\n 65536" not in seen


def test_a_busy_port_has_a_holder(healed):
    left = healed.sparks[0]
    healed.fault("left", "port-busy", "8000")
    assert "python3" in out(left, "ss", "-ltnp", "sport = :8000")
    with pytest.raises(LabError, match="already in use"):
        healed.fault("left", "port-busy", "8000")
    healed.heal("left")
    assert ":8000" not in out(left, "ss", "-ltn")


def test_a_full_disk_is_full_and_takes_no_room_on_the_machine(healed):
    right = healed.sparks[1]
    healed.fault("right", "disk-full")
    assert right.run(["dd", "if=/dev/zero", "of=/root/y", "bs=1M", "count=1"], check=False).returncode == 1
    image = right.directory / "disk.ext4"
    assert image.stat().st_blocks * 512 < 500_000_000
    healed.heal("right")
    right.run(["dd", "if=/dev/zero", "of=/root/y", "bs=1M", "count=1"])


def test_a_hanging_sshd_takes_connections_and_says_nothing(healed):
    left = healed.sparks[0]
    healed.fault("left", "ssh-hang")
    with socket.create_connection((left.host, 22), timeout=2) as client:
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
    healed.heal("left")
    assert ssh(healed, left, "hostname").stdout == "left\n"


def test_another_host_key_is_refused_until_healed(healed):
    left = healed.sparks[0]
    healed.fault("left", "host-key-changed")
    refused = ssh(healed, left, "true", check=False)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    healed.heal("left")
    ssh(healed, left, "true")


def test_kill_worker_and_kill_engine_hit_containers_alone(healed, container):
    left = healed.sparks[0]
    with pytest.raises(LabError, match="no container runs"):
        healed.fault("left", "kill-worker")
    script = "(exec sleep 1000) & echo api; wait"
    left.run(["docker", "run", "-d", "--name", "rank", "--network", "host", container, "sh", "-c", script])
    with pytest.raises(LabError, match="no engine core"):
        healed.fault("left", "kill-engine")
    healed.fault("left", "kill-worker")
    state = ["docker", "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", "rank"]
    assert eventually(lambda: out(left, *state) == "exited 137\n")
    left.run(["docker", "rm", "rank"])


def test_after_a_reboot_files_are_there_and_containers_are_not_running(healed, container):
    left = healed.sparks[0]
    limit = ("--ulimit", "memlock=-1")
    left.run(["docker", "run", "-d", "--name", "rank", "--network", "host", *limit, container, "sleep", "1000"])
    left.run(["docker", "exec", "rank", "sh", "-c", ":"])
    left.run(["sh", "-c", "echo stays > /root/stays; echo goes > /run/goes"])
    before = left.pid
    healed.fault("left", "reboot")
    assert left.pid != before
    assert ssh(healed, left, "cat", "/root/stays").stdout == "stays\n"
    assert left.run(["cat", "/run/goes"], check=False).returncode == 1
    assert out(left, "docker", "inspect", "-f", "{{.State.Running}}", "rank") == "false\n"
    assert out(left, "ibdev2netdev").count("(Up)") == 2
    left.run(["docker", "rm", "rank"])


@pytest.mark.parametrize(
    ("node", "kind", "args", "message"),
    [
        ("middle", "reboot", (), "no Spark"),
        ("left", "meteor", (), "unknown fault meteor"),
        ("left", "mtu", (), "takes N"),
        ("left", "mtu", ("1e9",), "an MTU is a number"),
        ("left", "reboot", ("now",), "takes no argument"),
        ("left", "cable-out", ("p1",), "no cable in p1"),
        ("left", "driver", ("; reboot",), "not a driver version"),
    ],
)
def test_an_invalid_fault_is_a_usage_error(lab, node, kind, args, message):
    with pytest.raises(UsageError, match=message):
        lab.fault(node, kind, *args)


def test_up_twice_changes_nothing_and_another_shape_is_refused(lab):
    before = [spark.pid for spark in lab.sparks]
    again = Lab.up(engine="none", spec=lab.state.spec, name="unlike")
    assert [spark.pid for spark in again.sparks] == before
    with pytest.raises(UsageError, match="already up with other Sparks"):
        Lab.up(3, engine="none", name="unlike")


def test_two_labs_do_not_touch_each_other(lab, base):
    with Lab.up(2, engine="none", name="second") as second:
        assert second.state.index != lab.state.index
        assert out(second.sparks[0], "ping", "-c1", "-W2", "192.168.177.12")
        index = second.state.index
    assert [line for line in left_of(base, index) if str(lab.directory) not in line] == []
    assert ssh(lab, lab.sparks[0], "hostname").stdout == "left\n"


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
    "state.json": "state.json",
    "a cable": "nodes",
    "a boot": "nodes/spark-0002/pid",
    "an answer": "nodes/spark-0001/hardware/ready.json",
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


def test_a_disk_that_a_killed_lab_was_making_does_not_go_on(alone, tmp_path, monkeypatch):
    """In place of mkfs, which takes a moment only, a process of its name and arguments that stays."""
    tools = tmp_path / "tools"
    tools.mkdir()
    stays = f"import os, time; open(f'{tmp_path}/began-{{os.getpid()}}', 'w').close(); time.sleep(60)"
    (tools / "mkfs.ext4").write_text(
        f"#!{sys.executable}\nimport os, sys\nos.execv(sys.executable, ['mkfs.ext4', '-c', {stays!r}, *sys.argv[1:]])\n"
    )
    (tools / "mkfs.ext4").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with coming_up() as process:
        assert wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 2, limit_s=30.0)
        os.kill(process.pid, signal.SIGKILL)
    index = json.loads((alone / "short" / "state.json").read_text())["index"]
    assert down("short") is True
    assert left_of(alone, index) == []


def coming_up():
    command = ["lab", "up", "--sparks", "2", "--engine", "none", "--name", "short"]
    return subprocess.Popen(
        [sys.executable, "-m", "sparkcluster", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_up_after_a_crash_clears_and_comes_up(alone):
    first = Lab.up(1, engine="none", name="short")
    first.state.stage = "creating"
    first.state.write()
    with Lab.up(1, engine="none", name="short") as second:
        assert second.state.id != first.state.id
        assert second.sparks[0].ssh_answers()
    assert left_of(alone, second.state.index) == []


def test_a_dead_spark_is_booted_by_heal(alone):
    with Lab.up(1, engine="none", name="short") as lab:
        spark = lab.sparks[0]
        spark.kill()
        with pytest.raises(LabError, match="is down"):
            spark.run(["true"])
        assert lab.heal() == ["spark-0001 booted"]
        assert spark.ssh_answers()


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


def test_sparks_come_with_the_image_and_the_weights_that_the_spec_says(alone):
    """And keep the image over a reboot, without holding a copy of it."""
    spec = alone / "spec.yaml"
    spec.write_text("sparks: [{}, {image: absent, model: absent}, {image: without-ray}]")
    with Lab.up(engine="stub", spec=load(spec), name="short") as lab:
        full, bare, rayless = lab.sparks
        images = ["docker", "images", "-q"]
        weights = ["ls", "/root/models/tiny"]
        assert out(bare, *images) == ""
        assert bare.run(weights, check=False).returncode != 0
        assert "model.safetensors" in out(full, *weights)
        first = out(full, *images)
        assert first
        assert out(rayless, *images) not in ("", first)
        lab.fault(full.name, "reboot")
        assert out(full, *images) == first
        reference = out(full, "docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split()[0]
        assert f"image: {reference}" in lab.playbook.read_text()
        version = ["docker", "run", "--rm", "--entrypoint", "vllm", reference, "--version"]
        assert full.run(version).stdout.strip()
        assert (full.directory / "disk.ext4").stat().st_blocks * 512 < 100_000_000
