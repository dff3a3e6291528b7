"""Output of a virtual Spark's tools follows from the state of its links."""

import json

import pytest

from sparkcluster.lab.shims import gpu, hardware, runtime, sysfs
from sparkcluster.lab.spec import GID_LAYOUTS

LIT = {
    "up": True,
    "enabled": True,
    "mtu": 9000,
    "mac": "4c:bb:47:20:00:01",
    "ipv4": ["192.168.177.11"],
    "ipv6": [],
}
DARK = {**LIT, "up": False, "ipv4": []}


def function(hca="rocep1s0f1", netdev="enp1s0f1np1", gids="standard", **more):
    return {
        "hca": hca,
        "netdev": netdev,
        "port": "p1",
        "pci": "0000:01:00.1",
        "mac": "4c:bb:47:20:00:01",
        "guid": "4cbb:4703:0020:0001",
        "sys_image_guid": "4cbb:4703:0020:0000",
        "gids": GID_LAYOUTS[gids],
        "speed_mbps": 200000,
        **more,
    }


@pytest.fixture
def spark(monkeypatch):
    """A Spark with facts and links set by a test."""
    facts = {
        "hostname": "spark-0001",
        "driver": "580.95.05",
        "kernel": "6.14.0-1015-nvidia",
        "firmware": "28.45.4028",
        "gpu": "present",
        "management": "enP7s7",
        "memory": {"total_kb": 127535084, "free_kb": 118000000, "available_kb": 121000000},
        "functions": [function()],
    }
    links = {"enp1s0f1np1": dict(LIT)}
    monkeypatch.setattr(hardware, "load", lambda: facts)
    monkeypatch.setattr(hardware, "links", lambda: links)
    return facts, links


def test_an_addressed_port_has_its_ipv4_gid_at_2_and_3():
    table = hardware.gid_table(function(link=LIT))
    assert table == {
        0: ("fe80:0000:0000:0000:4ebb:47ff:fe20:0001", 1, ""),
        1: ("fe80:0000:0000:0000:4ebb:47ff:fe20:0001", 2, ""),
        2: ("0000:0000:0000:0000:0000:ffff:c0a8:b10b", 1, "192.168.177.11"),
        3: ("0000:0000:0000:0000:0000:ffff:c0a8:b10b", 2, "192.168.177.11"),
    }


def test_a_shifted_table_has_its_ipv4_gid_at_5_and_6():
    table = hardware.gid_table(function(gids="shifted", link=LIT))
    assert [index for index, (_, _, address) in table.items() if address] == [5, 6]
    assert sorted(table) == [0, 1, 2, 4, 5, 6]


def test_a_port_without_a_link_keeps_only_the_gids_of_its_mac_address():
    assert sorted(hardware.gid_table(function(gids="shifted", link=DARK))) == [0, 1]


def test_nvidia_smi_reports_no_dedicated_memory(spark, capsys):
    query = "--query-gpu=name,driver_version,memory.total,compute_cap"
    assert gpu.nvidia_smi([query, "--format=csv,noheader"]) == 0
    assert capsys.readouterr().out == "NVIDIA GB10, 580.95.05, [N/A], 12.1\n"
    assert gpu.nvidia_smi(["--query-gpu=power.draw", "--format=csv"]) == 0
    assert capsys.readouterr().out == "power.draw [W]\n4.10 W\n"
    assert gpu.nvidia_smi(["--query-gpu=colour", "--format=csv"]) == 2


def test_nvidia_smi_repeats_until_the_gpu_is_lost(spark, capsys, monkeypatch):
    facts, _ = spark
    slept = []
    monkeypatch.setattr(gpu.time, "sleep", lambda s: (slept.append(s), facts.update(gpu="lost")))
    query = "--query-gpu=temperature.gpu,clocks_event_reasons.active"
    assert gpu.nvidia_smi([query, "--format=csv,noheader,nounits", "-l", "1"]) == 6
    assert capsys.readouterr().out == "42, 0x0000000000000000\nNo devices were found\n"
    assert slept == [1.0]


def test_a_bundle_keeps_its_network_if_it_has_one(tmp_path):
    config = {"process": {"rlimits": []}, "linux": {"namespaces": [{"type": "network"}]}, "mounts": []}
    (tmp_path / "config.json").write_text(json.dumps(config))
    runtime.fit_container(["--bundle", str(tmp_path)])
    mounted = json.loads((tmp_path / "config.json").read_text())["mounts"]
    assert [mount["destination"] for mount in mounted] == ["/proc/meminfo"]


def test_memory_of_processes_is_neither_free_nor_available(spark):
    facts, _ = spark
    facts["memory"]["scale"] = 16
    before, after = (dict(line.split(":") for line in sysfs.meminfo(facts, kb).splitlines()) for kb in (0, 1000))
    assert {
        name: (before[name].split()[0], after[name].split()[0]) for name in before if before[name] != after[name]
    } == {
        "MemFree": ("118000000", "117984000"),
        "MemAvailable": ("121000000", "120984000"),
        "AnonPages": ("0", "16000"),
    }
