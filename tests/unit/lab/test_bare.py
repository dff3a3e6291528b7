"""What a bare Spark differs in: its files and accounts, the programs that set it up, and what a capture says."""

from __future__ import annotations

import argparse
import ctypes
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from docgen import json_schemas

from sparkcluster.cli import lab as command
from sparkcluster.errors import UsageError
from sparkcluster.lab import bare, capture, core, machine, network, node_files
from sparkcluster.lab.shims import hardware, netplan, packages, services, settings
from sparkcluster.lab.spec import LabSpec, SparkSpec, plain
from sparkcluster.lab.state import State


def state(tmp_path, *sparks: SparkSpec, bare: bool = True) -> State:
    return State("5ca1ab1e" * 4, "lab", tmp_path, 7, "none", LabSpec(sparks, bare=bare))


def rows(found, path):
    return {line.split(":")[0]: line.split(":") for line in found[path][1].splitlines()}


def test_login_and_sudo_decide_over_keys_groups_and_sudoers(tmp_path):
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


def test_a_ready_spark_keeps_its_keys_its_group_and_no_password(tmp_path):
    lab = state(tmp_path, SparkSpec(name="a"), bare=False)
    found = node_files.files(lab.nodes[0], "host key", "client key")
    assert {
        "/root/.ssh/authorized_keys",
        "/home/spark/.ssh/authorized_keys",
        bare.SUDOERS,
        netplan.FILE,
    } <= found.keys()
    assert rows(found, "/etc/group")["docker"][3] == "spark"
    assert rows(found, "/etc/shadow")["spark"][1] == "*"
    assert lab.password is None


def test_the_password_of_the_lab_fits_the_hash_in_shadow(tmp_path):
    lab = state(tmp_path, SparkSpec(name="a"))
    found = rows(node_files.files(lab.nodes[0], "host key", "client key"), "/etc/shadow")["spark"][1]
    crypt = ctypes.CDLL("libcrypt.so.1").crypt
    crypt.restype = ctypes.c_char_p
    assert crypt(lab.password.encode(), found.encode()).decode() == found
    assert crypt(b"another", found.encode()).decode() != found


def test_sparks_that_are_prepared_at_once_get_the_same_hash():
    """crypt(3) writes every result into one buffer."""
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(bare.password_hash, ["spark-5ca1ab1e"] * 32))) == 1


def test_the_address_of_a_half_configured_spark_is_in_its_netplan_file(tmp_path):
    spec = SparkSpec(name="a", addresses={"enp1s0f1np1": "10.0.0.1/24"}, mtu=1500)
    text = node_files.files(state(tmp_path, spec).nodes[0], "host key", "client key")[netplan.FILE][1]
    assert "10.0.0.1/24" in text
    assert text.count("mtu") == 1


def test_a_bare_spark_boots_with_its_management_address_alone(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(network, "ip", lambda netns, more: lines.extend(more))
    network.configure(state(tmp_path, SparkSpec(name="a")).nodes[0])
    assert [line for line in lines if line.startswith("addr add")] == ["addr add 10.77.7.11/24 brd + dev enP7s7"]
    assert "link set enp1s0f1np1 down addrgenmode eui64 mtu 1500" in lines


def test_a_cable_passes_lldp_and_a_switch_keeps_it():
    assert network.forwards("cable3") == " group_fwd_mask 65528"
    assert network.forwards("switch") == network.forwards("mgmt") == ""


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
        (link("fe80::1"), {}, []),
        (link("fe80::1", "10.0.0.1", mtu=9000), {}, ["addr del 10.0.0.1/24 dev x", "link set x mtu 1500"]),
        (
            link("fe80::1"),
            {"addresses": ["10.0.0.2/24"], "mtu": 9000, "link-local": []},
            ["addr add 10.0.0.2/24 brd + dev x", "link set x mtu 9000", "addr del fe80::1/64 dev x"],
        ),
        (link("10.0.0.2", mtu=9000), {"addresses": ["10.0.0.2/24"], "mtu": 9000, "link-local": []}, []),
        (
            link("10.0.0.1", "10.0.0.2"),
            {"addresses": ["10.0.0.2/24"]},
            ["addr del 10.0.0.2/24 dev x", "addr del 10.0.0.1/24 dev x", "addr add 10.0.0.2/24 brd + dev x"],
        ),
        (link(flags=()), {"link-local": ["ipv4"]}, ["addr add 169.254.49.5/16 brd + dev x", "link set x up"]),
        (link(), {"addresses": [{"10.0.0.2/24": {"label": "x:1"}}]}, ["addr add 10.0.0.2/24 brd + dev x"]),
        (link(), {"addresses": ["fd00::2/64"]}, ["addr add fd00::2/64 dev x"]),
    ],
)
def test_netplan_changes_what_differs_and_nothing_else(before, entry, lines):
    assert netplan.change(before, entry, None, "10.77.7.1") == lines


def test_the_management_interface_keeps_the_address_of_its_lease():
    lines = netplan.change(link("10.99.0.5"), {}, "10.77.7.11/24", "10.77.7.1")
    assert lines == [
        "addr del 10.99.0.5/24 dev x",
        "addr add 10.77.7.11/24 brd + dev x",
        "route replace default via 10.77.7.1 dev x",
    ]


def test_the_lab_reads_its_own_netplan_file_without_netplan(tmp_path, monkeypatch):
    lab = state(tmp_path, *plain(1).sparks, bare=False)
    (tmp_path / "40-cx7.yaml").write_text(node_files.files(lab.nodes[0], "", "")[netplan.FILE][1])
    monkeypatch.setattr(netplan, "FILE", str(tmp_path / "40-cx7.yaml"))
    twins = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
    assert netplan.written() == {
        name: {"addresses": [address], "mtu": 9000, "link-local": []} for name, address in twins.items()
    }


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The vm.* sysctls as files; ``write(name, value)`` sets one, as sysctl does, and the first process sees it."""
    monkeypatch.setattr(settings, "FILES", str(tmp_path))
    for name, value in settings.VIRTUAL_MEMORY.items():
        (tmp_path / name).write_text(value + "\n")
    watching = settings.VirtualMemory()

    def write(**values):
        for name, value in values.items():
            (tmp_path / name).write_text(f"{value}\n")
        watching.update()
        return {name: (tmp_path / name).read_text().strip() for name in settings.VIRTUAL_MEMORY}

    return write


def test_bytes_and_ratio_of_dirty_memory_exclude_each_other_as_in_the_kernel(memory):
    assert memory(dirty_bytes=1000) == {**settings.VIRTUAL_MEMORY, "dirty_bytes": "1000", "dirty_ratio": "0"}
    assert memory(dirty_ratio=20) == settings.VIRTUAL_MEMORY
    assert memory(dirty_background_bytes=7)["dirty_background_ratio"] == "0"
    assert memory(swappiness=1)["swappiness"] == "1"


@pytest.fixture
def spark(tmp_path, monkeypatch):
    """A Spark without perftest, holds or a default target, where this process is root."""
    for module, name in ((packages, "PERFTEST"), (packages, "HOLDS"), (settings, "NTP")):
        monkeypatch.setattr(module, name, str(tmp_path / name))
    (tmp_path / "NTP").write_text("yes\n")
    (tmp_path / "multi-user.target").touch()
    (tmp_path / "default.target").symlink_to("graphical.target")
    monkeypatch.setattr(services, "TARGETS", str(tmp_path))
    monkeypatch.setattr(services, "DEFAULT_TARGET", str(tmp_path / "link"))
    monkeypatch.setattr(hardware, "is_root", lambda: True)
    return tmp_path


def test_perftest_can_be_installed_held_and_removed(spark, capsys):
    asked = ["-W", "-f=${Package} ${Status} ${Version}\\n", "perftest"]
    assert packages.dpkg_query(asked) == 1
    assert packages.apt_get(["install", "-y", "--no-install-recommends", "perftest"]) == 0
    assert (spark / "PERFTEST").is_symlink()
    capsys.readouterr()
    assert packages.dpkg_query(asked) == 0
    assert capsys.readouterr().out == "perftest install ok installed 24.01.0-1build2\n"
    assert packages.apt_mark(["hold", "perftest"]) == 0
    assert packages.apt_mark(["showhold"]) == 0
    assert capsys.readouterr().out == "perftest set on hold.\nperftest\n"
    packages.dpkg_query(asked)
    assert "hold ok installed" in capsys.readouterr().out
    assert packages.apt_mark(["unhold", "perftest"]) == 0
    assert packages.apt_get(["purge", "-y", "perftest"]) == 0
    assert sorted(path.name for path in spark.iterdir()) == ["NTP", "default.target", "multi-user.target"]


@pytest.mark.parametrize(
    ("tool", "args", "message"),
    [
        (packages.apt_get, ["install", "-y", "no-such-package"], "E: Unable to locate package no-such-package"),
        (packages.apt_get, ["dist-upgrade"], "E: Invalid operation dist-upgrade"),
        (packages.apt_mark, ["hold", "no-such-package"], "E: No packages found"),
    ],
)
def test_apt_refuses_what_the_lab_does_not_have(spark, capsys, tool, args, message):
    assert tool(args) == 100
    assert message in capsys.readouterr().err


def test_only_root_may_change_packages_the_clock_and_the_target(spark, capsys, monkeypatch):
    monkeypatch.setattr(hardware, "is_root", lambda: False)
    assert packages.apt_get(["install", "perftest"]) == 100
    assert packages.apt_mark(["hold", "perftest"]) == 100
    assert settings.timedatectl(["set-ntp", "false"]) == 1
    assert services.systemctl(["set-default", "multi-user.target"]) == 1
    assert (spark / "NTP").read_text() == "yes\n"
    assert not (spark / "link").is_symlink()
    assert capsys.readouterr().err.count("Interactive authentication required") == 2


def test_timedatectl_shows_what_was_set(spark, capsys):
    settings.timedatectl(["show", "-p", "NTP", "-p", "NTPSynchronized"])
    settings.timedatectl(["set-ntp", "false"])
    settings.timedatectl(["show", "--property=NTP", "--value"])
    assert capsys.readouterr().out == "NTP=yes\nNTPSynchronized=yes\nno\n"


def test_the_default_target_is_the_distributions_until_it_is_set(spark, capsys):
    services.systemctl(["get-default"])
    assert services.systemctl(["set-default", "no-such.target"]) == 1
    assert services.systemctl(["set-default", "multi-user.target"]) == 0
    services.systemctl(["get-default"])
    assert capsys.readouterr().out == "graphical.target\nmulti-user.target\n"


@pytest.mark.parametrize(
    ("line", "packet"),
    [
        (
            "00:41:36.538723 uplink P   IP 10.77.0.1.40000 > 10.77.0.11.22: tcp 0",
            ("uplink", "IP", "10.77.0.1", "10.77.0.11", 22),
        ),
        (
            "00:41:36.538723 s0mgmt In  IP 10.77.0.11 > 10.77.0.1: ICMP echo reply, id 1, seq 1, length 64",
            ("s0mgmt", "IP", "10.77.0.11", "10.77.0.1", None),
        ),
        (
            "00:41:36.538723 s0p1s0f1 M   IP6 fe80::4ebb:47ff:fe20:1.5353 > ff02::fb.5353: UDP, length 90",
            ("s0p1s0f1", "IP6", "fe80::4ebb:47ff:fe20:1", "ff02::fb", 5353),
        ),
        (
            "00:41:36.538723 uplink B   ARP, Request who-has 10.77.0.99 tell 10.77.0.1, length 28",
            ("uplink", "ARP", "10.77.0.1", "10.77.0.99", None),
        ),
        ("00:41:36.538723 uplink P   ARP, Reply 10.77.0.11 is-at 4c:bb:47:20:00:01, length 28", None),
        ("4 packets captured", None),
    ],
)
def test_a_line_of_tcpdump_is_a_packet(line, packet):
    assert capture.parse(line) == packet


def test_lab_up_passes_its_flags_on_and_prints_what_opens_bare_sparks(tmp_path, monkeypatch, capsys):
    asked = {}
    made = core.Lab(state(tmp_path, SparkSpec(name="a")))
    monkeypatch.setattr(core.Lab, "up", lambda *args, **options: asked.update(options) or made)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(["up", "--bare", "--login", "password", "--sudo", "refused", "--json"]))
    assert {key: asked[key] for key in ("bare", "login", "sudo")} == {
        "bare": True,
        "login": "password",
        "sudo": "refused",
    }
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("lab", document)
    assert document == {
        "lab": "lab",
        "inventory": None,
        "directory": str(tmp_path),
        "playbook": f"{tmp_path}/playbook.yaml",
        "identity": f"{tmp_path}/id_ed25519",
        "password": "spark-5ca1ab1e",
        "sparks": [{"name": "a", "host": "10.77.7.11"}],
    }
    command.run(parser.parse_args(["up", "--bare"]))
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_a_bare_lab_asks_for_its_packages_and_a_ready_one_does_not(monkeypatch):
    asked = []

    def require(programs):
        asked.append(set(programs))
        raise UsageError("enough")

    monkeypatch.setattr(machine, "require", require)
    for is_bare in (False, True):
        with pytest.raises(UsageError, match="enough"):
            core.Lab.up(1, engine="none", bare=is_bare)
    assert asked[1] - asked[0] == {"sudo", "usermod", "avahi-daemon", "netplan"}
