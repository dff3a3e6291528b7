"""Differences of a bare Spark: its files and accounts, and the programs that set it up."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparkcluster.lab import bare, node_files
from sparkcluster.lab.shims import netplan
from sparkcluster.lab.spec import LabSpec, SparkSpec
from sparkcluster.lab.state import State


def state(tmp_path, *sparks: SparkSpec, bare: bool = True) -> State:
    return State("5ca1ab1e" * 4, "lab", tmp_path, 7, "none", LabSpec(sparks, bare=bare))


def rows(found, path):
    return {line.split(":")[0]: line.split(":") for line in found[path][1].splitlines()}


def test_login_and_sudo_determine_keys_groups_and_sudoers(tmp_path):
    free, asked, refused = state(
        tmp_path,
        SparkSpec(name="a"),
        SparkSpec(name="b", sudo="password"),
        SparkSpec(name="c", login="password", sudo="refused"),
    ).nodes
    found = [node_files.files(node, "host key", "client key") for node in (free, asked, refused)]
    assert ["/home/spark/.ssh/authorized_keys" in files for files in found] == [True, True, False]
    assert not any("/root/.ssh/authorized_keys" in files for files in found)
    assert [bare.SUDOERS in files for files in found] == [True, False, False]
    assert [rows(files, "/etc/group")["sudo"][3] for files in found] == ["spark", "spark", ""]
    assert [rows(files, "/etc/group")["docker"][3] for files in found] == ["", "", ""]
    assert rows(found[0], "/etc/gshadow").keys() == rows(found[0], "/etc/group").keys()
    logins = ["PasswordAuthentication yes" in files["/etc/ssh/sshd_config"][1] for files in found]
    assert logins == [False, False, True]
    assert netplan.FILE not in found[0]


def test_the_labs_password_matches_the_hash_in_shadow(tmp_path):
    lab = state(tmp_path, SparkSpec(name="a"))
    found = rows(node_files.files(lab.nodes[0], "host key", "client key"), "/etc/shadow")["spark"][1]
    crypt = ctypes.CDLL("libcrypt.so.1").crypt
    crypt.restype = ctypes.c_char_p
    assert crypt(lab.password.encode(), found.encode()).decode() == found
    assert crypt(b"another", found.encode()).decode() != found


def test_sparks_prepared_concurrently_get_the_same_hash():
    """crypt(3) writes every result into one static buffer."""
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(bare.password_hash, ["spark-5ca1ab1e"] * 32))) == 1


def link(*addresses, mtu=1500, flags=("UP", "LOWER_UP")):
    found = [
        {
            "local": address,
            "prefixlen": 64 if ":" in address else 24,
            "family": "inet6" if ":" in address else "inet",
            "scope": "link" if address.startswith(("fe80", "169.254")) else "global",
        }
        for address in addresses
    ]
    return {"ifname": "x", "address": "4c:bb:47:20:30:05", "mtu": mtu, "flags": list(flags), "addr_info": found}


@pytest.mark.parametrize(
    ("before", "entry", "lines"),
    [
        (link("fe80::1", "10.0.0.1", mtu=9000), {}, ["addr del 10.0.0.1/24 dev x", "link set x mtu 1500"]),
        (
            link("fe80::1"),
            {"addresses": ["10.0.0.2/24"], "mtu": 9000, "link-local": []},
            ["addr add 10.0.0.2/24 brd + dev x", "link set x mtu 9000", "addr del fe80::1/64 dev x"],
        ),
        (
            link("10.0.0.1", "10.0.0.2"),
            {"addresses": ["10.0.0.2/24"]},
            ["addr del 10.0.0.2/24 dev x", "addr del 10.0.0.1/24 dev x", "addr add 10.0.0.2/24 brd + dev x"],
        ),
        (link(flags=()), {"link-local": ["ipv4"]}, ["addr add 169.254.49.5/16 brd + dev x", "link set x up"]),
    ],
)
def test_netplan_changes_only_differences(before, entry, lines):
    assert netplan.change(before, entry, None, "10.77.7.1") == lines
