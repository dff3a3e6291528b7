"""Samples of a node: values that cannot be read are missing and delay nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.engines.vllm import ENGINE
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import Conversation
from sparkcluster.inspect.vitals import Sample
from sparkcluster.node import engine_api, network, observe, vitals
from sparkcluster.node.machine import Machine

METRICS = """\
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="a{b}"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.5",model_name="a{b}"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="a{b}"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="a{b}"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="a{b}"} 1.25
vllm:time_per_output_token_seconds_bucket{engine="0",le="0.05",model_name="a{b}"} 9.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="a{b}"} 7.0
vllm:gpu_cache_usage_perc{engine="0",model_name="a{b}"} 0.75
vllm:gpu_cache_usage_perc{engine="1",model_name="a{b}"} 0.5
"""
SMI = "96, 24.30, 2405, 51, 0x0000000000000020"
NAMES = {**ENGINE.counters, **ENGINE.statistics}
PORT = "sys/class/infiniband/a/ports/1"
FILES = {
    "proc/meminfo": "MemTotal: 100 kB\nMemFree: 9 kB\nMemAvailable: 50 kB\nCached: 40 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "proc/vmstat": "pswpin 2\npswpout 3\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
    "proc/diskstats": " 259 0 nvme0n1 10 1 8 5 20 2 4 5 0 1500 10\n 259 1 nvme0n1p1 10 1 8 5 20 2 4 5 0 1500 10\n"
    " 7 0 loop0 1 0 2 0 0 0 0 0 0 1 1\n",
    "sys/block/nvme0n1/device/model": "an SSD\n",
    "sys/block/loop0/size": "2\n",
    f"{PORT}/counters/port_xmit_data": "10\n",
    f"{PORT}/counters/port_rcv_data": "5\n",
    f"{PORT}/counters/link_downed": "1\n",
    f"{PORT}/hw_counters/out_of_sequence": "7\n",
    f"{PORT}/hw_counters/lifespan": "10\n",
    "sys/class/infiniband/b/ports/1/counters/port_xmit_data": "1\n",
    "sys/class/infiniband/b/ports/1/counters/port_rcv_data": "0\n",
}
SPBM = {"sys/class/hwmon/hwmon3/power1_label": "sys_total\n", "sys/class/hwmon/hwmon3/power1_input": "61500000\n"}


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    write(tmp_path / "root", FILES)
    return Machine(str(tmp_path / "root"))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An nvidia-smi that is this shell script."""

    def make(script: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n" + script)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return make


def test_counters_are_summed_over_engines_shares_are_maxima_and_old_names_work():
    read = engine_api.metrics(METRICS, NAMES)
    assert (read["ttft"], read["ttft_sum"]) == ({"0.5": 4.0, "+Inf": 4.0}, 1.25)
    assert (read["hits"], read["queries"], read["kv_cache"], read["itl"]) == (7.0, None, 0.75, {"0.05": 9.0})
    assert engine_api.metrics("", ENGINE.statistics)["ttft"] is None


def test_a_sample_has_total_disks_bytes_per_hca_and_seconds_of_pressure(machine: Machine):
    found = vitals.sample(machine, {}, 3.0, network.errors(machine))
    assert found["rdma"] == {
        "a": {"sent_bytes": 40, "received_bytes": 20, "errors": {"link_downed": 1, "out_of_sequence": 7}},
        "b": {"sent_bytes": 4, "received_bytes": 0, "errors": {}},
    }
    assert found["disks"] == {"nvme0n1": {"read_bytes": 4096, "written_bytes": 2048, "busy_s": 1.5}}
    assert found["pressure"] == {"cpu": {}, "memory": {"some": 2.5, "full": 1.0}, "io": {}}
    sample = Sample.model_validate(found)
    assert (sample.swapped_pages, sample.memory.available_bytes, sample.rdma_bytes) == (5, 51200, 64)
    assert observe.traffic(machine) == {"rdma_bytes": {"a": 40, "b": 4}, "socket_bytes": {}, "swapped_pages": 5}


def test_a_node_without_these_devices_still_has_memory(tmp_path: Path):
    write(tmp_path, {name: FILES[name] for name in ("proc/meminfo", "proc/vmstat")})
    sample = Sample.model_validate(vitals.sample(Machine(str(tmp_path)), {}, 3.0, {}))
    assert (sample.pressure, sample.disks, sample.rdma, sample.system_w) == (
        {"cpu": {}, "memory": {}, "io": {}},
        {},
        {},
        None,
    )


def test_the_power_of_the_spark_comes_from_a_driver_that_reports_it(machine: Machine):
    assert vitals.system_w(machine) is None
    write(Path(machine.root), SPBM)
    assert vitals.system_w(machine) == 61.5


def start(function: Any, *args: Any) -> None:
    threading.Thread(target=function, args=args, daemon=True).start()


def until(holds: Callable[[], Any]) -> None:
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_an_unreported_field_is_null_and_after_an_error_nvidia_smi_is_restarted(
    smi: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vitals, "_RETRY_S", 0.01)
    smi(
        f"echo x >> {tmp_path}/starts\necho '{SMI}'\necho '[N/A], 24.30, 2405, 51, [N/A]'\n"
        f"echo 'Unable to determine the device handle'\n[ $(wc -l < {tmp_path}/starts) -lt 3 ] || exec sleep 100\n"
    )
    seen: dict[str, Any] = {}
    start(vitals.follow, seen, 5)
    until(lambda: (tmp_path / "starts").exists() and len((tmp_path / "starts").read_text()) == 6)
    fields = ("utilization_percent", "throttle", "temperature_c")
    until(lambda: [seen.get(field, "unset") for field in fields] == [None, None, 51.0])


def test_a_hung_nvidia_smi_gives_no_sample(machine: Machine):
    seen = {"power_w": 24.3, "at_s": time.monotonic()}
    assert vitals.sample(machine, seen, 3.0, {})["power_w"] == 24.3
    seen["at_s"] -= 4
    assert "power_w" not in vitals.sample(machine, seen, 3.0, {})


def serve(server: socket.socket, answer: bytes, pause_s: float = 0.0) -> None:
    """Send ``answer`` to every client, and then a byte repeatedly, until they disconnect."""
    while True:
        try:
            connection = server.accept()[0]
        except OSError:
            return
        with connection:
            connection.recv(1 << 16)
            try:
                connection.sendall(answer)
                while pause_s:
                    time.sleep(pause_s)
                    connection.sendall(b"#")
            except OSError:
                continue


def test_a_hanging_or_endless_engine_gives_no_sample_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_api, "LIMIT_S", 0.2)
    body = METRICS.encode()
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        start(serve, servers[0], whole)
        start(serve, servers[1], b"HTTP/1.1 200 OK\r\n\r\n" + body, 0.05)
        for key, server in zip(("good", "drips", "hangs"), servers, strict=True):
            url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
            start(vitals.read_engine, key, {"url": url, "metrics": NAMES}, 1, found)
        until(lambda: "good" in found)
        assert (found.pop("good")["counts"]["hits"], found) == (7.0, {})
        until(lambda: "good" in found)  # the others had more than their time
        assert (found["good"]["itl"], found.keys()) == ({"0.05": 9.0}, {"good"})


def test_nvidia_smi_ends_with_the_program_and_the_program_when_its_input_closes(smi: Any, tmp_path: Path):
    smi(f"echo $$ > {tmp_path}/pid\necho \"$@\" > {tmp_path}/argv\nwhile :; do echo '{SMI}'; sleep 100; done\n")
    request = {"engines": {}, "every_s": 5}
    with Conversation(LocalHost("alpha"), "vitals", request, silence_s=20) as conversation:
        while (found := conversation.answer(Sample)).throttle is None:
            continue
        assert found.throttle == 0x20
        pid = int((tmp_path / "pid").read_text())
    assert (tmp_path / "argv").read_text().endswith("-l 5\n")
    until(lambda: not runs(pid))


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
