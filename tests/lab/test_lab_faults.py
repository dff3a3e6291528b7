"""Faults of the lab are what they claim to be, and healing leaves nothing of them: what a Spark shows, before and after."""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
from pathlib import Path

import pytest

from sparkcluster.cli.main import main
from sparkcluster.errors import UsageError
from sparkcluster.lab.faults import FAULTS
from sparkcluster.lab.machine import wait_until

UNLIKE = """
sparks:
- name: left
  ports: p0
- name: right
  interfaces: {enp1s0f1np1: fast0, enP2p1s0f1np1: fast1, wlP9s9: radio}
"""

MEMORY = "grep -E 'MemFree|MemAvailable|SwapFree' /proc/meminfo | tr -s ' ' | cut -d' ' -f2 | tr '\\n' ' '"
SMI = "nvidia-smi --query-gpu={} --format=csv,noheader"
WEIGHTS = "cd /root/models/tiny && stat -c %s model.safetensors; sha256sum < model.safetensors; ls config.json"
IMAGE = (
    "docker image inspect -f '{{.Architecture}} {{len .RootFS.Layers}}' $(docker images -q --filter reference='*/*')"
)
CONNECT = "import socket; socket.create_connection(('{}', {}), 0.5); print('open')"


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(UNLIKE)


def output(spark, script):
    """What a script says on a Spark, errors included."""
    return spark.run(["sh", "-c", f"exec 2>&1; {script}"], check=False).stdout.strip()


SHOWN = {
    "speed 100000": (
        "cat /sys/class/net/fast0/speed; ethtool fast1 | grep -o 'Speed: [0-9]*'",
        "100000\nSpeed: 100000",
    ),
    "twin-down": ("ip -br addr show fast0 | grep -o UP; ip -br addr show fast1 | grep -o DOWN", "UP\nDOWN"),
    "snap-docker": (
        "docker info -f '{{.DockerRootDir}}'; docker images -q | wc -l",
        "/var/snap/docker/common/var-lib-docker\n1",
    ),
    "twin-subnet": ("ip -br addr show fast1 | grep -o '192[0-9./]*'", "192.168.177.253/24"),
    "no-address": ("ip -br addr show fast1 | grep -c 192; show_gids roceP2p1s0f1 | grep -c c0a8", "0\n0"),
    "duplicate-address": ("ip -br addr show fast0 | grep -o '192[0-9./]*'", "192.168.177.11/24"),
    "driver none": ("cat /proc/driver/nvidia/version; nvidia-smi > /dev/null; echo $?", "No such file or directory\n9"),
    "driver 590.48.01": (
        "modinfo -F version nvidia; grep -c libcuda.so.590.48.01 /run/cdi/nvidia.yaml",
        "590.48.01\n2",
    ),
    "module-missing": ("find /lib/modules/*/ -name nvidia.ko | wc -l; nvidia-smi > /dev/null; echo $?", "0\n9"),
    "kernel 6.17.0-1004-nvidia": (
        "uname -r; cat /proc/sys/kernel/osrelease; modinfo -F version nvidia",
        "6.17.0-1004-nvidia\n6.17.0-1004-nvidia\n580.95.05",
    ),
    "ota 7.6.0": ("grep OTA_VERSION /etc/dgx-release | tail -n 1", 'DGX_OTA_VERSION="7.6.0"'),
    "firmware 28.44.1036": (
        "sort -u /sys/class/infiniband/*/fw_ver; ethtool -i fast0 | grep -o 28.*",
        "28.44.1036\n28.44.1036 (NVD0000000087)",
    ),
    "cdi-stale": ("grep -o 'libcuda.*' /run/cdi/nvidia.yaml | sort -u", "libcuda.so.580.82.09"),
    "remove-ipc": ("grep RemoveIPC /etc/systemd/logind.conf", "RemoveIPC=yes"),
    "clock 3600": (
        'echo $(( ($(python3 -I -c "import time; print(int(time.time()))") - $(date +%s)) / 60 ))',
        "60",
    ),
    "page-cache 80": (MEMORY, "39875000 121000000 16777212"),
    "memory-free 4000000": (MEMORY, "4000000 4000000 16777212"),
    "swap 8": (MEMORY, "118000000 121000000 8964712"),
    "no-cma": ("grep Cma /proc/meminfo | tr -s ' '", "CmaTotal: 0 kB\nCmaFree: 0 kB"),
    "gpu-lost": ("nvidia-smi -L; echo $?", "No devices were found\n6"),
    "gpu-wedged": (SMI.format("utilization.gpu,power.draw,clocks.sm"), "95 %, 17.20 W, 799 MHz"),
    "gpu-hung": (SMI.format("utilization.gpu,power.draw,clocks.sm"), "96 %, 24.30 W, 2405 MHz"),
    "missing-weights config.json": (WEIGHTS, "ls: cannot access 'config.json': No such file or directory"),
    "cut-weights": (WEIGHTS, "745020\n"),
    "corrupt-weights": (WEIGHTS, "827800\n"),
    "image-arch": (IMAGE, "s390x 1"),
    "image-other": (IMAGE, " 5"),
    "no-docker-group": ("su spark -c id", "1000(spark)"),
    "no-runtime": ("docker info -f '{{.Runtimes}}' | grep -c nvidia", "0"),
    "no-sudo": ("ls /etc/sudoers.d/spark", "cannot access '/etc/sudoers.d/spark'"),
    "root-cache": (
        "su spark -c 'mkdir -p ~/.cache/huggingface/hub/x && rmdir ~/.cache/huggingface/hub/x && echo written'",
        "Permission denied",
    ),
    "docker-stopped": ("docker ps", "Cannot connect to the Docker daemon"),
    "ssh-stopped": ("ss -ltn | grep -c :22", "0"),
    "name-by-wifi": ("ip -br addr show radio | grep -o '10[0-9./]*'; cat /sys/class/net/radio/carrier", ".112/24\n1"),
}
"""Fault, what is asked on the Spark that has it, and what is in the answer: text that is not in it otherwise."""

QUICK = ("no-address", "root-cache", "clock 3600", "driver none", "image-other", "no-runtime", "corrupt-weights")


@pytest.mark.parametrize(
    "fault", [fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.full) for fault in SHOWN]
)
def test_a_fault_shows_on_its_spark_alone_and_heal_leaves_nothing_of_it(fault, lab):
    left, right = lab.sparks
    script, shown = SHOWN[fault]
    before = [output(left, script), output(right, script)]
    lab.fault("right", *fault.split())
    during = output(right, script)
    assert shown in during
    assert during != before[1]
    if not fault.startswith("duplicate"):
        assert output(left, script) == before[0]
    lab.heal()
    assert [output(left, script), output(right, script)] == before


def ping(spark, size, address):
    return spark.run(["ping", "-c1", "-W1", "-Mdo", "-s", size, address], check=False).returncode == 0


def test_a_switch_may_drop_what_both_ends_would_take(lab):
    left, right = lab.sparks
    lab.fault("right", "path-mtu", "1500")
    assert output(right, "cat /sys/class/net/fast0/mtu /sys/class/net/fast1/mtu") == "9000\n9000"
    for address in ("192.168.177.12", "192.168.178.12"):
        assert ping(left, "1400", address)
        assert not ping(left, "8972", address)
    lab.heal()
    assert ping(left, "8972", "192.168.177.12")


def connects(spark, address, port):
    return spark.run(["python3", "-c", CONNECT.format(address, port)], check=False).stdout == "open\n"


@pytest.mark.parametrize(
    ("args", "closed"),
    [
        ((), {5000, 5001}),
        pytest.param(("5001",), {5001}, marks=pytest.mark.full),
        pytest.param(("left",), {22, 5000, 5001}, marks=pytest.mark.full),
    ],
)
def test_a_firewall_drops_new_connections_and_ufw_says_that_it_is_on(args, closed, lab):
    left, right = lab.sparks
    for port in ("5000", "5001"):
        lab.fault("right", "port-busy", port)
    lab.fault("right", "firewall", *args)
    assert {port for port in (22, 5000, 5001) if not connects(left, "192.168.177.12", port)} == closed
    assert connects(right, "127.0.0.1", 5001)
    assert output(right, "ufw status") == "Status: active"
    assert ping(left, "100", right.host)
    # What the owner types lets them in again.
    if args != ("left",):
        right.run(["ufw", "allow", "from", "192.168.177.0/24"])
        assert connects(left, "192.168.177.12", 5001)
    lab.heal()
    assert output(right, "ufw status; iptables -S | grep -c ufw") == "Status: inactive\n0"


SERVE = """
import os, socket, sys
listener = socket.create_server(("192.168.177.12", 0))
print(listener.getsockname()[1], flush=True)
if os.fork():
    os._exit(0)
os.setsid()
os.closerange(0, 3)
while True:
    with listener.accept()[0] as client:
        client.recv(1)
        client.sendall(bytes(1_000_000))
"""
FETCH = """
import socket, sys
with socket.create_connection(("192.168.177.12", int(sys.argv[1])), 5) as server:
    server.sendall(b"x")
    found = b"".join(iter(lambda: server.recv(1 << 20), b""))
print(len(found), [at for at, byte in enumerate(found) if byte])
"""


@pytest.mark.parametrize(
    ("which", "changed"), [("700000", [[700000], []]), ("every-400000", [[399999, 799999], [399999, 799999]])]
)
def test_a_byte_is_flipped_on_its_way(lab, which, changed):
    left, right = lab.sparks
    port = right.run(["python3", "-c", SERVE, "serve-zeros"]).stdout.strip()

    def fetched():
        return left.run(["python3", "-c", FETCH, port]).stdout.strip()

    try:
        assert fetched() == "1000000 []"
        lab.fault("right", "flip-byte", which)
        assert [fetched() for _ in changed] == [f"1000000 {places}" for places in changed]
        assert connects(left, "192.168.177.12", 22)
        lab.heal()
        assert fetched() == "1000000 []"
        assert output(right, "iptables -t nat -S | grep -c REDIRECT; pgrep -fc flip-byt[e]") == "0\n0"
    finally:
        right.run(["pkill", "-KILL", "-f", "serve-zeros"])


def session(lab, spark):
    """An SSH session that returns each line that it is sent."""
    options = [f"-oUserKnownHostsFile={lab.directory}/known_hosts", "-oBatchMode=yes", "-Fnone"]
    argv = ["ssh", *options, "-i", str(lab.directory / "id_ed25519"), f"root@{spark.host}", "echo open; cat"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout.readline() == "open\n"
    return process


def says(process, word, within):
    """Whether a session returns a line in time."""
    process.stdin.write(word + "\n")
    ready, _, _ = select.select([process.stdout], [], [], within)
    return bool(ready) and process.stdout.readline() == word + "\n"


@pytest.fixture
def talk(lab):
    """A session with the Spark on the right."""
    with session(lab, lab.sparks[1]) as process:
        yield process
        process.kill()


def test_silence_is_towards_the_operator_alone_and_refuses_nothing(lab, talk):
    left, right = lab.sparks
    lab.fault("right", "silence")
    with pytest.raises(TimeoutError):
        socket.create_connection((right.host, 22), 1)
    assert not says(talk, "first", 1)
    for address in (right.host, "192.168.177.12"):
        assert connects(left, address, 22)
    assert connects(right, left.host, 22)
    lab.heal()
    assert right.ssh_answers()
    # What was lost is sent again, at intervals that have grown meanwhile.
    ready, _, _ = select.select([talk.stdout], [], [], 5)
    assert ready
    assert talk.stdout.readline() == "first\n"


@pytest.mark.parametrize("kind", ["silence", "ssh-hang"])
def test_a_fault_for_some_seconds_ends_by_itself(kind, lab, talk):
    right = lab.sparks[1]
    lab.fault("right", kind, "2")
    assert not right.ssh_answers()
    assert wait_until(right.ssh_answers, limit_s=20, step_s=0.1)
    assert says(talk, "again", 5)
    lab.heal()
    assert says(talk, "healed", 5)


@pytest.mark.parametrize("kind", ["silence", "ssh-hang"])
def test_heal_ends_the_timer_too(kind, lab):
    right = lab.sparks[1]
    lab.fault("right", kind, "600")
    lab.heal()
    assert right.ssh_answers()
    assert output(right, "pgrep -fc 'undo-[0-9a-f]* 600'") == "0"


def test_a_slow_docker_engine_answers_again_after_the_time_or_healing(lab):
    right = lab.sparks[1]

    def answers():
        return right.run(["timeout", "1", "docker", "version"], check=False).returncode == 0

    for heal in (False, True):
        lab.fault("right", "docker-slow", "600" if heal else "3")
        assert not answers()
        if heal:
            lab.heal()
        assert wait_until(answers, limit_s=20, step_s=0.1)


def test_a_restart_of_sshd_ends_no_session(lab, talk):
    right = lab.sparks[1]
    listener = "pgrep -f 'sshd.*[[]listener'"
    before = output(right, listener)
    lab.fault("right", "ssh-restart")
    after = output(right, listener)
    assert before.isdigit()
    assert after.isdigit()
    assert after != before
    assert says(talk, "still", 5)
    assert right.ssh_answers()
    assert lab.heal() == []


def test_services_can_be_stopped_and_started_by_hand(lab):
    right = lab.sparks[1]
    right.run(["systemctl", "stop", "docker", "ssh"])
    assert output(right, "systemctl is-active docker ssh; ls /run/docker.sock") != ""
    assert not right.ssh_answers()
    right.run(["systemctl", "enable", "--now", "docker", "ssh"])
    assert output(right, "systemctl is-active docker") == "active"
    assert right.ssh_answers()
    assert "stub" in output(right, "docker images")
    # Its layers are mounted from the lab's cache, and have to be there again.
    assert "Python 3" in output(right, "docker run --rm --entrypoint python3 $(docker images -q) --version")


def test_netplan_puts_addresses_and_mtu_back(lab):
    right = lab.sparks[1]
    before = output(right, "ip -br addr; cat /sys/class/net/*/mtu")
    lab.fault("right", "no-address")
    lab.fault("right", "mtu", "1500")
    right.run(["netplan", "apply"])
    assert output(right, "ip -br addr; cat /sys/class/net/*/mtu") == before


def test_the_kernel_log_is_the_sparks_own(lab):
    right = lab.sparks[1]
    assert "NVRM" in output(right, "dmesg")
    assert "insufficient power on the PCIe slot (27W)" in output(right, "journalctl -k -b --no-pager")
    assert "No such file" in output(right, "cat /dev/kmsg")
    assert "not permitted" in output(right, "su spark -c dmesg")


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("firewall", ("middle",), "no other Spark is named middle"),
        ("firewall", ("99999",), "a port is a number"),
        ("clock", ("soon",), "number of seconds"),
        ("cut-weights", ("pytorch.bin",), "no pytorch.bin in"),
        ("kernel", ("../../etc",), "not a kernel release"),
        ("page-cache", ("1e9",), "a size in GB is a number"),
        ("flip-byte", ("last",), "the place of a byte is a number"),
    ],
)
def test_an_invalid_argument_changes_nothing(kind, args, message, lab):
    with pytest.raises(UsageError, match=re.escape(message)):
        lab.fault("right", kind, *args)
    assert lab.heal() == []


def test_a_spark_of_a_pair_reaches_its_partner_alone_though_another_has_its_address(make_lab):
    lab = make_lab("topology: pairs\ndefaults: {model: absent}\nsparks: [{}, {}, {}, {}]", engine="none")

    def partners():
        keys = [(spark.directory / "host_key.pub").read_text().split()[1] for spark in lab.sparks]
        found = []
        for spark, last in zip(lab.sparks, (12, 11, 12, 11), strict=True):
            for subnet in (177, 178):
                said = output(spark, f"ssh-keyscan -T 2 -t ed25519 192.168.{subnet}.{last} 2> /dev/null").split()
                found.append(keys.index(said[-1]) if said else None)
        return found

    assert partners() == [1, 1, 0, 0, 3, 3, 2, 2]
    lab.fault("4", "cable-out")
    assert partners() == [1, 1, 0, 0, None, None, None, None]
    lab.heal()
    assert partners() == [1, 1, 0, 0, 3, 3, 2, 2]


def test_a_model_without_weights_cannot_be_cut(make_lab):
    with pytest.raises(UsageError, match="no safetensors file in"):
        make_lab("sparks: [{model: absent}]", engine="none").fault("1", "cut-weights")


def test_the_page_of_the_lab_names_every_fault_and_what_is_only_simulated():
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    rows = [line.split("|") for line in page.replace("\\|", "/").splitlines() if line.startswith("| `")]
    documented = {}
    for row in rows:
        for kind, argument in re.findall(r"`([a-z-]+)(?: ([^`]*))?`", row[1]):
            if kind in FAULTS:
                documented[kind] = (argument.replace("/", "|") or None, "*simulated*" in row[2])
    short = {"VERSION": "V", "RELEASE": "V"}
    kinds = {
        kind: (fault.argument and short.get(fault.argument, fault.argument), fault.simulated)
        for kind, fault in FAULTS.items()
    }
    assert json.dumps(documented, sort_keys=True) == json.dumps(kinds, sort_keys=True)


def test_the_help_of_lab_fault_names_every_kind_unbroken(capsys):
    with pytest.raises(SystemExit):
        main(["lab", "fault", "--help"])
    text = capsys.readouterr().out.partition("kinds: ")[2].partition("\n\n")[0]
    assert [kind.split()[0] for kind in text.replace("\n", " ").split(", ")] == list(FAULTS)
