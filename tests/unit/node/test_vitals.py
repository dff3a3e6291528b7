"""Samples of a node: what does not answer is null and holds up nothing else."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.engines.vllm import ENGINE
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import Conversation
from sparkcluster.node import engine_api, observe, vitals
from sparkcluster.node.machine import Machine

METRICS = """\
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="a{b}"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.5",model_name="a{b}"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="a{b}"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="a{b}"} 4.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="a{b}"} 7.0
"""
SMI = "96, 24.30, 2405, 51, 0x0000000000000020"
REQUEST: dict[str, Any] = {
    "engine": None,
    "metrics": {**ENGINE.counters, **ENGINE.statistics},
}
FILES = {
    "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 50 kB\n",
    "proc/vmstat": "pswpin 2\npswpout 3\n",
    "sys/class/infiniband/a/ports/1/counters/port_xmit_data": "10\n",
    "sys/class/infiniband/a/ports/1/counters/port_rcv_data": "5\n",
    "sys/class/infiniband/b/ports/1/counters/port_xmit_data": "1\n",
    "sys/class/infiniband/b/ports/1/counters/port_rcv_data": "0\n",
}
SPBM = {"sys/class/hwmon/hwmon3/power1_label": "sys_total\n", "sys/class/hwmon/hwmon3/power1_input": "61500000\n"}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for path, text in FILES.items():
        file = tmp_path / "root" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
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


def test_histograms_are_summed_over_engines_and_old_names_are_known():
    read = engine_api.metrics(METRICS, ENGINE.statistics)
    assert read["ttft"] == {"0.5": 4.0, "+Inf": 4.0}
    assert (read["hits"], read["queries"]) == (7.0, None)
    assert engine_api.metrics("", ENGINE.statistics)["ttft"] is None


def test_rdma_counts_octets_of_both_directions_and_all_hcas(machine: Machine):
    found = vitals.sample(REQUEST, machine, {})
    assert found == {"memory": 51200, "swapped_pages": 5, "rdma_bytes": 64, "system_w": None}
    assert observe.traffic(machine) == {"rdma_bytes": {"a": 40, "b": 4}, "socket_bytes": {}, "swapped_pages": 5}


def test_the_power_of_the_spark_is_that_of_a_driver_which_knows_it(machine: Machine):
    assert vitals.system_w(machine) is None
    for path, text in SPBM.items():
        (Path(machine.root) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(machine.root) / path).write_text(text)
    assert vitals.system_w(machine) == 61.5


def test_a_field_that_is_not_reported_is_null_and_an_error_is_no_sample(smi: Any):
    smi(f"echo '{SMI}'\necho '[N/A], 24.30, 2405, 51, [N/A]'\necho 'Unable to determine the device handle'\n")
    seen: dict[str, Any] = {}
    vitals.follow(seen)
    assert (seen["utilization_percent"], seen["throttle"], seen["temperature_c"]) == (None, None, 51.0)


def test_a_hung_nvidia_smi_is_no_sample(machine: Machine):
    seen = {"power_w": 24.3, "at_s": time.monotonic()}
    assert vitals.sample(REQUEST, machine, seen)["power_w"] == 24.3
    seen["at_s"] -= 4
    found = vitals.sample(REQUEST, machine, seen)
    assert ("power_w" in found, found["memory"]) == (False, 51200)


def test_a_hung_engine_holds_up_nothing(machine: Machine):
    with socket.create_server(("127.0.0.1", 0)) as hung:
        began = time.monotonic()
        url = f"http://127.0.0.1:{hung.getsockname()[1]}/v1"
        found = vitals.sample({**REQUEST, "engine": url}, machine, {})
        assert time.monotonic() - began < engine_api.LIMIT_S
    assert ("engine" in found, found["memory"]) == (False, 51200)


def test_nvidia_smi_ends_with_the_program_and_the_program_with_its_input(smi: Any, tmp_path: Path):
    smi(f"echo $$ > {tmp_path}/pid\nwhile :; do echo '{SMI}'; sleep 100; done\n")
    with Conversation(LocalHost("alpha"), "vitals", REQUEST, silence_s=20) as conversation:
        while "throttle" not in (found := conversation.answer(dict)):
            continue
        assert found["throttle"] == 0x20
        pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 5
    while _runs(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
