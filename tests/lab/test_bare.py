"""Bare Sparks are in factory state, and accept the changes of setup and undo."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.lab.snapshot import snapshot

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
    """The first Spark, with snapshots before and after."""
    spark = lab.sparks[0]
    before = snapshot(spark)
    yield spark
    spark.run(["sh", "-c", f"rm -rf {FILE} /run/netplan; netplan apply"])
    assert snapshot(spark) == before


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
        links = snapshot(spark)["links"]
        for name in TWINS:
            assert links[name]["mtu"] == 1500
            assert [address[:6] for address in links[name]["addresses"]] == ["fe80::"]
            assert spark.run(["cat", f"/sys/class/net/{name}/carrier"]).stdout == "1\n"
        assert ipv4(links["enP7s7"]) == [f"{spark.host}/24"]


def test_only_the_user_logs_in_with_the_operators_key(lab):
    left, _, right = lab.sparks
    assert ssh(lab, left, "id", "-un").stdout == "spark\n"
    assert "Permission denied (publickey)" in ssh(lab, left, "true", user="root").stderr
    assert "Permission denied (publickey,password)" in ssh(lab, right, "true").stderr
    assert "permission denied" in ssh(lab, left, "docker", "ps").stderr


def test_netplan_configures_the_ports_and_is_reverted(left):
    bare = snapshot(left)
    write(left, FILE, ADDRESSES)
    assert left.run(["netplan", "generate"]).returncode == 0
    assert snapshot(left)["links"] == bare["links"]
    left.run(["netplan", "apply"])
    first, second = (snapshot(left)["links"][name] for name in TWINS)
    assert first == {"addresses": ["192.168.177.11/24"], "mtu": 9000}
    assert second["mtu"] == 1500
    assert re.fullmatch(r"169\.254\.\d+\.\d+/16", *second["addresses"])
    left.run(["rm", FILE])
    left.run(["netplan", "apply"])
    assert snapshot(left) == bare
