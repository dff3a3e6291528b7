"""Bare Sparks are as they come out of the box, and take the changes that set one up and undo it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import time

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.lab import Lab
from sparkcluster.lab.machine import wait_until

SPEC = """
bare: true
sparks:
- name: left
- {name: middle, sudo: password}
- {name: right, login: password, sudo: refused}
"""

ADDRESSES = """
network:
  version: 2
  ethernets:
    enp1s0f1np1: {dhcp4: no, dhcp6: no, link-local: [], mtu: 9000, addresses: [192.168.177.11/24]}
    enP2p1s0f1np1: {dhcp4: no, dhcp6: no, link-local: [ipv4]}
"""
FILE = "/etc/netplan/40-cx7.yaml"
TWINS = ("enp1s0f1np1", "enP2p1s0f1np1")


@pytest.fixture(scope="module")
def lab(make_lab):
    """Three bare Sparks on a switch that differ in login and sudo."""
    return make_lab(SPEC, engine="none")


@pytest.fixture
def left(lab):
    """The first, as the lab made it before and after."""
    spark = lab.sparks[0]
    before = spark.snapshot()
    yield spark
    spark.run(["sh", "-c", f"rm -rf {FILE} /run/netplan; netplan apply"])
    assert spark.snapshot() == before


def ssh(lab, spark, *argv, user="spark"):
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    options += ["-o", "LogLevel=ERROR", "-F", "none", "-i", str(lab.identity), f"{user}@{spark.host}"]
    return subprocess.run(["ssh", *options, *argv], capture_output=True, text=True, timeout=20, check=False)


def write(spark, path, text):
    spark.run(["sh", "-c", 'mkdir -p "$(dirname "$1")"; umask 077; cat > "$1"', "sh", path], text_in=text)


def ipv4(link):
    return [address for address in link["addresses"] if ":" not in address]


def test_the_ports_are_up_without_addresses(lab):
    for spark in lab.sparks:
        links = spark.snapshot()["links"]
        for name in TWINS:
            assert links[name]["mtu"] == 1500
            assert [address[:6] for address in links[name]["addresses"]] == ["fe80::"]
            assert spark.run(["cat", f"/sys/class/net/{name}/carrier"]).stdout == "1\n"
        assert ipv4(links["enP7s7"]) == [f"{spark.host}/24"]


def test_the_user_and_the_files_are_those_of_the_first_boot(lab):
    spark = lab.sparks[0]
    state = spark.snapshot()
    assert [name for name, users in state["groups"].items() if users == ["spark"]] == ["adm", "sudo"]
    assert state["groups"]["docker"] == []
    assert state["sysctls"]["vm.swappiness"] == "60"
    assert spark.run(["cat", "/etc/hosts"]).stdout.split()[-2:] == ["127.0.1.1", "left"]
    owners = spark.run(["find", "/home/spark/.cache", "-printf", "%u %P\n"]).stdout.splitlines()
    assert "spark " in owners
    assert {line.split()[0] for line in owners if "huggingface" in line} == {"root"}
    assert not {FILE, "/usr/bin/ib_write_bw", "/home/spark/.ssh/known_hosts"} & set(state["files"])
    renderer = spark.run(["netplan", "get"]).stdout
    assert renderer == "network:\n  version: 2\n  renderer: NetworkManager\n"


def test_only_the_user_logs_in_with_the_operators_key(lab):
    left, _, right = lab.sparks
    assert ssh(lab, left, "id", "-un").stdout == "spark\n"
    assert "Permission denied (publickey)" in ssh(lab, left, "true", user="root").stderr
    assert "Permission denied (publickey,password)" in ssh(lab, right, "true").stderr
    assert "permission denied" in ssh(lab, left, "docker", "ps").stderr


def _read(terminal: int, until: bytes) -> bytes:
    """What comes from a terminal up to a text; fails where nothing comes for 10 s."""
    shown = b""
    while until not in shown:
        assert select.select([terminal], [], [], 10)[0], shown
        shown += os.read(terminal, 4096)
    return shown


def test_a_password_opens_a_terminal(lab):
    right = lab.sparks[2]
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-F", "none"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("ssh", ["ssh", *options, f"spark@{right.host}", "id -un; hostname"])
    shown = _read(terminal, b"password: ")
    os.write(terminal, lab.password.encode() + b"\n")
    shown += _read(terminal, b"right\r\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert b"spark" in shown
    assert lab.password.encode() not in shown


@pytest.mark.parametrize(
    ("index", "password", "expected"),
    [
        (0, None, "root"),
        (1, None, "a password is required"),
        (1, "right", "root"),
        (1, "wrong", "incorrect password attempt"),
        (2, None, "a password is required"),
        (2, "right", "spark is not in the sudoers file"),
    ],
)
def test_sudo_asks_for_what_the_spec_says(lab, index, password, expected):
    words = "-n" if password is None else "-k -S -p ''"
    typed = {"right": lab.password, "wrong": "wrong"}.get(password, "")
    command = ["su", "-", "spark", "-c", f"sudo {words} id -un"]
    done = lab.sparks[index].run(command, text_in=typed + "\n", check=False)
    assert expected in done.stdout + done.stderr
    assert (done.returncode == 0) is (expected == "root")


QUESTION = struct.pack(">6H", 0, 0, 1, 0, 0, 0) + b"\x04_ssh\x04_tcp\x05local\0" + struct.pack(">2H", 12, 1)


def answers(gateway: str) -> bytes:
    """What comes within a second in answer to a question for all SSH servers, as one-shot queries ask it (RFC 6762)."""
    heard = b""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(gateway))
        client.bind((gateway, 0))
        client.sendto(QUESTION, ("224.0.0.251", 5353))
        until = time.monotonic() + 1
        while (left := until - time.monotonic()) > 0:
            client.settimeout(left)
            try:
                heard += client.recv(9000)
            except TimeoutError:
                break
    return heard


def test_the_machine_hears_every_spark_by_mdns(lab):
    def all_heard():
        heard = answers(lab.state.gateway)
        return all(spark.name.encode() in heard for spark in lab.sparks)

    assert wait_until(all_heard, limit_s=10, sleep=lambda _: None, step_s=1)
    lab.sparks[0].run(["systemctl", "stop", "avahi-daemon"])
    try:
        assert b"left" not in answers(lab.state.gateway)
    finally:
        lab.sparks[0].run(["systemctl", "start", "avahi-daemon"])


def test_a_capture_says_who_contacted_whom(lab):
    left, middle, _ = lab.sparks
    absent = middle.host.rpartition(".")[0] + ".99"
    with lab.capture() as packets:
        ssh(lab, left, "true")
        left.run(["ping", "-c1", "-W1", absent], check=False)
        with socket.create_connection((middle.host, 22), 5):
            pass
    contacted = {
        (packet.source, packet.destination, packet.port)
        for packet in packets
        if packet.interface == "uplink" and packet.protocol == "IP"
    }
    assert contacted == {(lab.state.gateway, left.host, 22), (lab.state.gateway, middle.host, 22)}
    questions = {(packet.interface, packet.destination) for packet in packets if packet.protocol == "ARP"}
    assert ("s0mgmt", absent) in questions


def test_netplan_configures_the_ports_and_takes_it_back(left):
    bare = left.snapshot()
    write(left, FILE, ADDRESSES)
    assert left.run(["netplan", "generate"]).returncode == 0
    assert left.snapshot()["links"] == bare["links"]
    left.run(["netplan", "apply"])
    first, second = (left.snapshot()["links"][name] for name in TWINS)
    assert first == {"addresses": ["192.168.177.11/24"], "mtu": 9000}
    assert second["mtu"] == 1500
    assert re.fullmatch(r"169\.254\.\d+\.\d+/16", *second["addresses"])
    left.run(["rm", FILE])
    left.run(["netplan", "apply"])
    assert left.snapshot() == bare


def test_a_file_of_the_same_name_in_run_comes_first_until_a_reboot(left):
    write(left, FILE, ADDRESSES)
    write(left, "/run/netplan/40-cx7.yaml", ADDRESSES.replace("177.11", "190.5"))
    left.run(["netplan", "apply"])
    assert ipv4(left.snapshot()["links"][TWINS[0]]) == ["192.168.190.5/24"]
    left.reboot()
    assert ipv4(left.snapshot()["links"][TWINS[0]]) == ["192.168.177.11/24"]
    assert left.snapshot()["links"][TWINS[0]]["mtu"] == 9000


@pytest.mark.parametrize(
    ("change", "message"),
    [(("addresses", "adresses"), "unknown key"), (("177.11", "300.11"), "malformed address"), (("[]", "["), "YAML")],
)
def test_an_invalid_file_is_refused_as_a_whole(left, change, message):
    write(left, FILE, ADDRESSES.replace(*change))
    before = left.snapshot()
    done = left.run(["netplan", "apply"], check=False)
    assert done.returncode == 78
    assert message in done.stderr
    assert left.snapshot() == before


def test_another_address_on_the_management_interface_cuts_the_spark_off(lab, left):
    write(left, FILE, "network: {ethernets: {enP7s7: {addresses: [10.99.0.5/24]}}}\n")
    left.run(["netplan", "apply"])
    assert not left.ssh_answers()
    assert ipv4(left.snapshot()["links"]["enP7s7"]) == ["10.99.0.5/24"]
    left.run(["rm", FILE])
    left.run(["netplan", "apply"])
    assert left.ssh_answers()
    assert ssh(lab, left, "true").returncode == 0


SET_UP = """
set -e
usermod -aG docker spark
apt-get install -y --no-install-recommends perftest
printf 'vm.swappiness = 10\\nvm.dirty_bytes = 200000000\\n' > /etc/sysctl.d/60-example.conf
sysctl -q -p /etc/sysctl.d/60-example.conf
timedatectl set-ntp false
systemctl set-default multi-user.target
apt-mark hold perftest
chown -R spark:spark /home/spark/.cache/huggingface
"""
UNDO = """
set -e
gpasswd -d spark docker
apt-mark unhold perftest
apt-get remove -y perftest
rm /etc/sysctl.d/60-example.conf
sysctl -q -w vm.swappiness=60 vm.dirty_ratio=20
timedatectl set-ntp true
rm /etc/systemd/system/default.target
chown -R root:root /home/spark/.cache/huggingface
"""


def test_what_sets_a_spark_up_is_seen_survives_a_reboot_and_can_be_undone(left):
    before = left.snapshot()
    left.run(["sh", "-c", SET_UP])
    changed = left.snapshot()
    assert changed["groups"]["docker"] == ["spark"]
    assert left.run(["apt-mark", "showhold"]).stdout == "perftest\n"
    assert left.run(["dpkg-query", "-W", "-f=${db:Status-Status} ", "perftest"]).stdout == "installed "
    assert left.run(["timedatectl", "show", "-p", "NTP", "--value"]).stdout == "no\n"
    assert left.run(["systemctl", "get-default"]).stdout == "multi-user.target\n"
    assert wait_until(lambda: left.snapshot()["sysctls"]["vm.dirty_ratio"] == "0", limit_s=20)
    assert left.snapshot()["sysctls"]["vm.dirty_bytes"] == "200000000"
    different = {path for path in before["files"] | changed["files"] if _differs(path, before, changed)}
    assert {"/etc/group", "/etc/gshadow", "/usr/bin/ib_write_bw", "/etc/sysctl.d/60-example.conf"} <= different
    left.reboot()
    assert left.snapshot()["sysctls"]["vm.swappiness"] == "10"
    assert left.snapshot()["sysctls"]["vm.dirty_ratio"] == "0"
    left.run(["sh", "-c", UNDO])
    assert wait_until(lambda: left.snapshot()["sysctls"] == before["sysctls"], limit_s=20)


def _differs(path, before, after):
    return before["files"].get(path) != after["files"].get(path)


def test_packages_that_the_lab_lacks_are_refused_as_by_apt(lab):
    left = lab.sparks[0]
    refused = left.run(["apt-get", "install", "-y", "no-such-package"], check=False)
    assert (refused.returncode, refused.stderr) == (100, "E: Unable to locate package no-such-package\n")
    assert left.run(["dpkg-query", "-W", "-f=${Status}", "perftest"], check=False).returncode == 1
    assert left.run(["dpkg-query", "-W", "-f=${Status}", "docker.io"]).stdout == "install ok installed"


def test_the_command_prints_the_directory_and_what_opens_the_sparks(lab, tmp_path):
    spec = tmp_path / "bare.yaml"
    spec.write_text(SPEC)
    command = [sys.executable, "-m", "sparkcluster", "lab", "up", "--engine", "none", "--name", lab.name]
    command += ["--spec", str(spec)]
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert plain.stdout == f"{lab.directory}\n"
    document = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert document["inventory"] is None
    assert document["password"] == lab.password
    assert document["identity"] == str(lab.identity)
    assert lab.playbook.is_file()
    assert not lab.inventory.exists()


def test_login_and_sudo_without_bare_are_wrong_usage():
    with pytest.raises(UsageError, match="--sudo is for bare Sparks"):
        Lab.up(1, engine="none", name="no-lab", sudo="refused")
