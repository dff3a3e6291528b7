"""Samples this node while it serves: memory, pressure, disks, GPU, power, RDMA, and the engines' counters.

Prints a line each second for ``sparkcluster.inspect.vitals``; changes nothing. A source that does not answer is missing
in the line, and delays nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from http.client import HTTPException
from typing import Any, BinaryIO

from sparkcluster.node import common, engine_api, gpu, network, programs, storage, system
from sparkcluster.node.machine import Machine

_HWMON = "/sys/class/hwmon"
_LATE = 3  # missed reports of nvidia-smi until its values are dropped
_RETRY_S, _HALF_S = 30.0, 0.5
_FIRST_S = 0.2
"""Wait before the first line, so that it includes engines that answer immediately."""


def follow(seen: dict[str, Any], every_s: int) -> None:
    """Run one nvidia-smi that reports every ``every_s``, and store its last report in ``seen``, with the time ``at_s``.

    Starting it for each sample would cost more than everything else here. It is restarted if it exits, for example when
    the driver is reloaded.
    """
    while True:
        with (
            contextlib.suppress(programs.Failed),
            programs.started(gpu.query(gpu.VITALS, "-l", str(every_s))) as process,
        ):
            for line in process.stdout or ():
                with contextlib.suppress(ValueError):  # an error message before its exit
                    seen.update(gpu.row(gpu.VITALS, line.decode()), at_s=time.monotonic())
        time.sleep(_RETRY_S)


def system_w(machine: Machine) -> float | None:
    """Power of the whole Spark; only the driver spbm reports it (github.com/antheas/spark_hwmon), not DGX OS."""
    for chip in machine.names(_HWMON):
        channel = "%s/%s/power1_" % (_HWMON, chip)
        if machine.line(channel + "label") == "sys_total":
            microwatts = machine.line(channel + "input") or ""
            return int(microwatts) / 1e6 if microwatts.isdigit() else None
    return None


def read_engine(key: str, engine: dict[str, Any], every_s: int, found: dict[str, Any]) -> None:
    """Read an engine every ``every_s``; ``found`` gets its counts since its start under ``key``.

    It is read half a second before the line that includes it, and at most every half second.
    """
    while True:
        clock_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        with contextlib.suppress(OSError, HTTPException):
            text = engine_api.get(engine["url"].removesuffix("/v1") + "/metrics", engine_api.keyed(engine))[1]
            counts = engine_api.metrics(text, engine["metrics"])
            buckets = {name: of for name in ("ttft", "itl") if isinstance(of := counts.pop(name, None), dict)}
            counts = {name: of for name, of in counts.items() if isinstance(of, float) and of >= 0}
            found[key] = {"clock_s": clock_s, "counts": counts, **buckets}
        time.sleep(_HALF_S + every_s - (time.monotonic() + 2 * _HALF_S) % every_s)


def sample(machine: Machine, seen: dict[str, Any], late_s: float, errors: dict[str, Any]) -> dict[str, Any]:
    """A sample without the engines.

    Args:
        machine: the node.
        seen: stored by ``follow``.
        late_s: age in seconds above which ``seen`` is ignored.
        errors: from ``network.errors``.
    """
    return {
        "clock_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "memory": system.meminfo(machine.text("/proc/meminfo")),
        "swapped_pages": system.swapped_pages(machine),
        "pressure": system.pressure(machine),
        "disks": storage.traffic(machine),
        "rdma": network.traffic(machine, errors),
        "system_w": system_w(machine),
        **(seen if seen and time.monotonic() < seen["at_s"] + late_s else {}),
    }


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Sample each second until the input closes.

    Args:
        request: ``engines`` on this node by key, each with the ``url`` of its API, ``key_file`` and ``key_name`` of its
            API key, and the names of its ``metrics`` by key; ``every_s``, the interval in whole seconds for engines,
            nvidia-smi, and the error counters of HCAs, which the driver requests from the firmware.
        lines: the input.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    common.end_with(lines, lambda _: os.killpg(0, signal.SIGTERM))  # nvidia-smi is in this process group
    machine, every_s = Machine(), request["every_s"]
    seen, errors, found = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    threading.Thread(target=follow, args=(seen, every_s), daemon=True).start()
    for key, engine in request["engines"].items():
        threading.Thread(target=read_engine, args=(key, engine, every_s, found), daemon=True).start()
    time.sleep(_FIRST_S if request["engines"] else 0)
    for second in itertools.count():
        errors = network.errors(machine) if second % every_s == 0 else errors
        engines = {key: found.pop(key) for key in list(found)}
        common.emit({**sample(machine, seen, _LATE * every_s, errors), "engines": engines})
        time.sleep(1 - time.monotonic() % 1)
