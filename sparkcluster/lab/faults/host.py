"""Faults of a Spark's host: driver, kernel, GPU, memory, clock, disk."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.lab.faults.base import Fault, Steps, changed, command, hardware, number, put_file, undone_by
from sparkcluster.lab.node_files import KERNEL_LOG
from sparkcluster.lab.sparks import Spark

FILLER = "/disk-full.lab"

FILL = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600)
size, step = 0, 1 << 40
while step >= 4096:
    try:
        os.posix_fallocate(fd, size, step)
        size += step
    except OSError:
        os.ftruncate(fd, size)
        step //= 2
"""

CLOCK = "/usr/local/bin/python3"
"""Comes before the real python3 in a login's PATH while the clock is wrong."""

CLOCKED = """#!/usr/bin/python3 -S
import os, sys, time
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + {shift}
time.time_ns = lambda: now_ns() + int({shift} * 10**9)
args = sys.argv[1:]
if "-c" not in args:
    os.execv("/usr/bin/python3", ["python3", *args])
at = args.index("-c")
sys.argv = args[at:at + 1] + args[at + 2:]
exec(compile(args[at + 1], "<string>", "exec"), {{"__name__": "__main__"}})
"""
"""The kernel has no clock per process, so programs passed by ``-c`` get a shifted one."""

DGX_RELEASE = "/etc/dgx-release"


# As in the driver's packages; without a driver it fails, and the old spec stays.
REFRESH_CDI = ["sh", "-c", "systemctl restart nvidia-cdi-refresh || true"]

VERSION = r"[0-9A-Za-z][0-9A-Za-z.+_-]*"


def _checked(text: str, pattern: str, kind: str, example: str) -> str:
    if not re.fullmatch(pattern, text):
        raise UsageError(f"{text!r} is not a {kind}", hint=f"write it as {example}")
    return text


def _driver(spark: Spark, version: str) -> Steps:
    _checked(version, r"[0-9][0-9.]*|none", "driver version", "590.48.01, or none")
    steps = hardware(spark, lambda values: values.update(driver=version))
    spark.run(REFRESH_CDI)
    return steps + undone_by(spark, REFRESH_CDI)


def _cdi_stale(spark: Spark) -> Steps:
    path = "/run/cdi/nvidia.yaml"
    text = spark.run(["cat", path]).stdout
    return put_file(spark, path, text.replace(spark.spec.driver, "580.82.09"))


def _versioned(key: str, kind: str, example: str) -> Callable[[Spark, str], Steps]:
    def put(spark: Spark, version: str) -> Steps:
        _checked(version, VERSION, kind, example)
        return hardware(spark, lambda values: values.update({key: version}))

    return put


def _ota(spark: Spark, version: str) -> Steps:
    _checked(version, VERSION, "OTA version", "7.6.0")
    text = spark.run(["cat", DGX_RELEASE]).stdout
    # Like an update, which appends its lines.
    return put_file(spark, DGX_RELEASE, f'{text}\nDGX_OTA_VERSION="{version}"\nDGX_OTA_DATE="Fri Nov 20 2026"\n')


def _clock(spark: Spark, shift_s: str) -> Steps:
    if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", shift_s):
        raise UsageError(f"a clock shift must be a number of seconds, not {shift_s!r}", hint="write it as 300 or -5")
    steps = put_file(spark, CLOCK, CLOCKED.format(shift=float(shift_s)))
    spark.run(["chmod", "755", CLOCK])
    return steps


def _memory(change: Callable[[dict[str, int], int], None], unit: str) -> Callable[[Spark, str], Steps]:
    def put(spark: Spark, size: str) -> Steps:
        amount = number(size, 0, 1 << 40, f"a size in {unit}")
        return hardware(spark, lambda values: change(values["memory"], amount))

    return put


def _in_cache(memory: dict[str, int], size_gb: int) -> None:
    """The page cache grows and free memory shrinks; available memory stays the same."""
    memory["free_kb"] = max(1_000_000, memory["free_kb"] - size_gb * 10**9 // 1024)


def _used(memory: dict[str, int], left_kb: int) -> None:
    """Programs use memory: it is neither free nor available."""
    memory["free_kb"] = left_kb
    memory["available_kb"] = left_kb


def _kernel_line(spark: Spark, line: str, change: Callable[[dict[str, Any], str], None]) -> Steps:
    if not line.strip() or not line.strip().isprintable():
        raise UsageError(
            "a line of the kernel log must be printable", hint="kernel-log 'NVRM: Xid (PCI:000f:01:00): 119, …'"
        )
    # As in dmesg: seconds since boot, of the machine.
    stamped = f"[{time.monotonic():12.6f}] {line.strip()}"
    return hardware(spark, lambda values: change(values, stamped))


def _kernel_log(spark: Spark, line: str) -> Steps:
    return _kernel_line(spark, line, lambda values, stamped: values["kernel_log"].append(stamped))


def _crashed(spark: Spark, line: str) -> Steps:
    """The previous boot ended with ``line`` and without a shutdown."""
    return _kernel_line(spark, line, lambda values, stamped: values.update(boot_before=[*KERNEL_LOG, stamped]))


FAULTS: dict[str, Fault] = {
    "driver": Fault("VERSION", _driver, simulated=True),
    "module-missing": Fault(None, changed(module=False, driver="none"), simulated=True),
    "kernel": Fault("RELEASE", _versioned("kernel", "kernel release", "6.17.0-1004-nvidia"), simulated=True),
    "ota": Fault("VERSION", _ota, simulated=True),
    "firmware": Fault("VERSION", _versioned("firmware", "firmware version", "28.44.1036"), simulated=True),
    "cdi-stale": Fault(None, _cdi_stale),
    "clock": Fault("SECONDS", _clock, simulated=True),
    "page-cache": Fault("GB", _memory(_in_cache, "GB"), simulated=True),
    "memory-free": Fault("KB", _memory(_used, "kB"), simulated=True),
    "no-cma": Fault(
        None, lambda spark: hardware(spark, lambda values: values["memory"].update(cma_kb=0)), simulated=True
    ),
    "gpu-lost": Fault(None, changed(gpu="lost"), simulated=True),
    "gpu-wedged": Fault(None, changed(gpu_state="wedged"), simulated=True),
    "gpu-hung": Fault(None, changed(gpu_state="hung"), simulated=True),
    "kernel-log": Fault("LINE", _kernel_log, simulated=True),
    "crashed": Fault("LINE", _crashed, simulated=True),
    "disk-full": Fault(None, lambda spark: command(spark, ["python3", "-c", FILL, FILLER], ["rm", "-f", FILLER])),
}
"""Faults of the host, by kind."""
