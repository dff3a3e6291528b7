"""What a virtual Spark's tools say follows from the state of its links."""

import io
import json
import re
import subprocess
import sys

import pytest

from sparkcluster.lab.node_files import docker_settings
from sparkcluster.lab.shims import gpu, hardware, init, net, rdma, runtime, services, sysfs
from sparkcluster.lab.spec import GID_LAYOUTS, SparkSpec

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
    """A Spark whose facts and links a test sets."""
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


def test_a_shifted_table_has_it_at_5_and_6():
    table = hardware.gid_table(function(gids="shifted", link=LIT))
    assert [index for index, (_, _, address) in table.items() if address] == [5, 6]
    assert sorted(table) == [0, 1, 2, 4, 5, 6]


def test_a_dark_port_keeps_the_gids_of_its_hardware_address_alone():
    assert sorted(hardware.gid_table(function(gids="shifted", link=DARK))) == [0, 1]


def test_a_lit_port_without_address_has_no_ipv4_gid():
    assert sorted(hardware.gid_table(function(link={**LIT, "ipv4": []}))) == [0, 1]


def test_a_second_address_takes_the_next_indices():
    table = hardware.gid_table(function(link={**LIT, "ipv4": ["192.168.177.11", "10.0.0.1"]}))
    assert table[4] == ("0000:0000:0000:0000:0000:ffff:0a00:0001", 1, "10.0.0.1")
    assert table[5][1:] == (2, "10.0.0.1")


def test_ibdev2netdev_and_rdma_follow_the_light(spark, capsys):
    _, links = spark
    rdma.ibdev2netdev([])
    assert capsys.readouterr().out == "rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)\n"
    links["enp1s0f1np1"] = DARK
    rdma.ibdev2netdev([])
    rdma.rdma(["link"])
    assert capsys.readouterr().out == (
        "rocep1s0f1 port 1 ==> enp1s0f1np1 (Down)\n"
        "link rocep1s0f1/1 state DOWN physical_state DISABLED netdev enp1s0f1np1 \n"
    )
    rdma.rdma(["-j", "link", "show"])
    assert json.loads(capsys.readouterr().out)[0]["state"] == "DOWN"


def test_show_gids_leaves_the_address_of_link_local_rows_blank(spark, capsys):
    rdma.show_gids([])
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].split() == [
        "rocep1s0f1",
        "1",
        "0",
        "fe80:0000:0000:0000:4ebb:47ff:fe20:0001",
        "v1",
        "enp1s0f1np1",
    ]
    assert rows[5].split("\t")[4].strip() == "192.168.177.11"
    assert rows[-1] == "n_gids_found=4"


@pytest.mark.parametrize(("mtu", "shown"), [(1500, "1024 (3)"), (9000, "4096 (5)")])
def test_ibv_devinfo_shows_the_rdma_mtu_that_fits(spark, capsys, mtu, shown):
    spark[1]["enp1s0f1np1"]["mtu"] = mtu
    assert rdma.ibv_devinfo(["-d", "rocep1s0f1"]) == 0
    out = capsys.readouterr().out
    assert f"active_mtu:\t\t{shown}" in out
    assert "\tfw_ver:\t\t\t\t28.45.4028" in out
    assert rdma.ibv_devinfo(["-d", "mlx5_9"]) == 1


def test_nvidia_smi_knows_no_memory_of_its_own(spark, capsys):
    query = "--query-gpu=name,driver_version,memory.total,compute_cap"
    assert gpu.nvidia_smi([query, "--format=csv,noheader"]) == 0
    assert capsys.readouterr().out == "NVIDIA GB10, 580.95.05, [N/A], 12.1\n"
    assert gpu.nvidia_smi(["--query-gpu=power.draw", "--format=csv"]) == 0
    assert capsys.readouterr().out == "power.draw [W]\n4.10 W\n"
    assert gpu.nvidia_smi(["--query-gpu=colour", "--format=csv"]) == 2


def test_nvidia_smi_answers_the_fields_of_monitoring_scripts(spark, capsys):
    fields = "index,count,gpu_name,power.limit,clocks.max.sm,utilization.memory"
    assert gpu.nvidia_smi([f"--query-gpu={fields}", "--format=csv,noheader"]) == 0
    assert capsys.readouterr().out == "0, 1, NVIDIA GB10, [N/A], 3003 MHz, 0 %\n"
    assert gpu.nvidia_smi(["--query-gpu=timestamp", "--format=csv,noheader"]) == 0
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.000\n", capsys.readouterr().out)


@pytest.mark.parametrize("option", ["-q", "--query-compute-apps=pid", "dmon"])
def test_nvidia_smi_refuses_what_it_cannot_answer(spark, capsys, option):
    assert gpu.nvidia_smi([option, "--format=csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert option.partition("=")[0] in captured.err


def test_rdma_refuses_what_would_show_the_devices_of_the_machine(spark, capsys, monkeypatch):
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("ran the real program"))
    assert rdma.rdma(["dev"]) == 1
    assert 'no object "dev"' in capsys.readouterr().err


def test_nvidia_smi_without_driver_or_gpu(spark, capsys):
    spark[0]["driver"] = "none"
    assert gpu.nvidia_smi([]) == 9
    spark[0].update(driver="580.95.05", gpu="lost")
    assert gpu.nvidia_smi([]) == 6
    assert "No devices were found" in capsys.readouterr().out


def test_ethtool_shows_no_speed_in_the_dark(spark, capsys):
    net.ethtool(["enp1s0f1np1"])
    assert "\tSpeed: 200000Mb/s\n" in capsys.readouterr().out
    spark[1]["enp1s0f1np1"] = DARK
    net.ethtool(["enp1s0f1np1"])
    out = capsys.readouterr().out
    assert "\tSpeed: Unknown!\n" in out
    assert "\tLink detected: no\n" in out


def test_a_slot_that_another_sync_is_writing_is_left_to_it(tmp_path):
    types = tmp_path / "gid_attrs" / "types"
    types.mkdir(parents=True)
    (types / "3").write_text("RoCE v2\n")
    (types / "4").symlink_to(tmp_path)
    (types / "5.4711").write_text("RoCE v2\n")
    assert sysfs._occupied(str(tmp_path)) == {3}


def test_meminfo_is_what_the_spec_says(spark):
    rows = dict(line.split(":") for line in sysfs.meminfo(spark[0]).splitlines())
    assert rows["MemTotal"].split() == ["127535084", "kB"]
    assert int(rows["Cached"].split()[0]) + int(rows["Buffers"].split()[0]) == 3_000_000


def test_a_bundle_keeps_its_own_network_when_it_has_one(tmp_path):
    config = {"process": {"rlimits": []}, "linux": {"namespaces": [{"type": "network"}]}, "mounts": []}
    (tmp_path / "config.json").write_text(json.dumps(config))
    runtime.fit_container(["--bundle", str(tmp_path)])
    assert json.loads((tmp_path / "config.json").read_text()) == config


def test_a_bundle_on_the_hosts_network_sees_the_false_sysfs(tmp_path):
    config = {"process": {}, "linux": {"namespaces": [{"type": "pid"}]}, "mounts": []}
    (tmp_path / "config.json").write_text(json.dumps(config))
    runtime.fit_container(["--bundle", str(tmp_path)])
    mounts = json.loads((tmp_path / "config.json").read_text())["mounts"]
    assert [mount["destination"] for mount in mounts] == ["/sys/class", "/sys/devices/virtual/net"]


def test_limits_are_lowered_only_where_they_may_not_be_raised(tmp_path, monkeypatch):
    process = {"rlimits": [{"type": "RLIMIT_CORE", "hard": 1 << 60, "soft": 1 << 59}]}
    file = tmp_path / "process.json"
    file.write_text(json.dumps(process))
    monkeypatch.setattr(runtime, "may_raise_limits", lambda: True)
    runtime.fit_container(["--process", str(file)])
    assert json.loads(file.read_text()) == process
    monkeypatch.setattr(runtime, "may_raise_limits", lambda: False)
    monkeypatch.setattr(runtime.resource, "getrlimit", lambda kind: (0, 1000))
    runtime.fit_container(["--process", str(file)])
    assert json.loads(file.read_text())["rlimits"] == [{"type": "RLIMIT_CORE", "hard": 1000, "soft": 1000}]


@pytest.mark.parametrize(("store", "named"), [("overlay2", True), ("containerd", False), ("containerd-28", False)])
def test_dockers_image_store_is_that_of_daemon_json(tmp_path, monkeypatch, store, named):
    """With containerd's store, a driver on the command line would be the name of a snapshotter that it lacks."""
    file = tmp_path / "daemon.json"
    monkeypatch.setattr(services, "DAEMON_JSON", str(file))
    facts = {"registry": "10.77.7.2:5000"}
    assert {"--storage-driver=overlay2", "--insecure-registry=10.77.7.2:5000"} <= set(init.dockerd_command(facts))
    file.write_text(json.dumps(docker_settings(SparkSpec(docker=store))))
    assert ("--storage-driver=overlay2" in init.dockerd_command(facts)) is named


def test_a_container_with_a_gpu_gets_nvidia_smi(tmp_path):
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    config = {"process": {"env": env}, "linux": {"namespaces": [{"type": "network"}]}, "mounts": []}
    (tmp_path / "config.json").write_text(json.dumps(config))
    runtime.fit_container(["--bundle", str(tmp_path)])
    (mount,) = json.loads((tmp_path / "config.json").read_text())["mounts"]
    assert mount["destination"] == "/usr/bin/nvidia-smi"
    done = subprocess.run([mount["source"], "-L"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("GPU 0: NVIDIA GB10 (UUID: GPU-")


@pytest.mark.parametrize(("wanted", "exit_code"), [("cuda>=13.0", 0), ("cuda>=13.1", 1), ("brand=tesla", 0), ("", 0)])
def test_the_toolkit_refuses_an_image_that_asks_for_a_newer_driver(tmp_path, monkeypatch, capsys, wanted, exit_code):
    (tmp_path / "config.json").write_text(json.dumps({"process": {"env": [f"NVIDIA_REQUIRE_CUDA={wanted}"]}}))
    monkeypatch.setattr(gpu.hardware, "load", lambda: {"driver": "580.95.05", "gpu": "present"})
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"bundle": str(tmp_path)})))
    assert gpu.nvidia_container_runtime_hook([]) == exit_code
    assert ("unsatisfied condition: cuda>=13.1" in capsys.readouterr().err) is bool(exit_code)
