"""Samples of this node while it serves: memory, GPU, power, RDMA, and what its engine counts; nothing is changed.

One line for each second, which ``sparkcluster.inspect.vitals`` reads. What does not answer is null in that line, and
holds up nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, engine_api, gpu, network, programs, system
from sparkcluster.node.machine import Machine, Readings

_HWMON = "/sys/class/hwmon"
_LATE_S = 3.0  # three reports of nvidia-smi were missed


def follow(seen: dict[str, Any]) -> None:
    """Run one nvidia-smi that reports each second, and keep its last report in ``seen``, with the time ``at_s``.

    Starting one for each sample would cost more than everything else here.
    """
    with contextlib.suppress(programs.Failed), programs.started(gpu.query(gpu.VITALS, "-l", "1")) as process:
        for line in process.stdout or ():
            with contextlib.suppress(ValueError):  # an error message: it ends
                seen.update(gpu.row(gpu.VITALS, line.decode()), at_s=time.monotonic())


def system_w(machine: Machine) -> float | None:
    """Power of the whole Spark, which only the driver spbm reports (github.com/antheas/spark_hwmon), not DGX OS."""
    for chip in machine.names(_HWMON):
        channel = "%s/%s/power1_" % (_HWMON, chip)
        if machine.line(channel + "label") == "sys_total":
            microwatts = machine.line(channel + "input") or ""
            return int(microwatts) / 1e6 if microwatts.isdigit() else None
    return None


def engine(url: str, names: dict[str, list[str]]) -> dict[str, Any]:
    """What the engine counted since it started; None for what it lacks."""
    counted = engine_api.metrics(engine_api.get(url.removesuffix("/v1") + "/metrics")[1], names)
    return {"ttft": counted.pop("ttft", None), "engine": counted}


def sample(request: dict[str, Any], machine: Machine, seen: dict[str, Any]) -> dict[str, Any]:
    """One sample; ``seen`` is what ``follow`` keeps. An engine has half a second to answer."""
    readings = Readings(0.5)
    if request["engine"]:
        readings.start("engine", lambda: engine(request["engine"], request["metrics"]))
    rdma = network.rdma_bytes(machine, "port_xmit_data", "port_rcv_data")
    return {
        "memory": system.meminfo(machine.text("/proc/meminfo"))["available_bytes"],
        "swapped_pages": system.swapped_pages(machine),
        "rdma_bytes": sum(rdma.values()) if rdma else None,
        "system_w": system_w(machine),
        **(seen if seen and time.monotonic() < seen["at_s"] + _LATE_S else {}),
        **(readings.value("engine") or {}),
    }


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Sample each second until the input closes.

    The request has the URL of the ``engine`` on this node or null, and its ``metrics`` by name.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    common.end_with(lines, lambda _: os.killpg(0, signal.SIGTERM))  # nvidia-smi is in this group
    machine, seen = Machine(), dict[str, Any]()
    threading.Thread(target=follow, args=(seen,), daemon=True).start()
    while True:
        common.emit(sample(request, machine, seen))
        time.sleep(1 - time.monotonic() % 1)
