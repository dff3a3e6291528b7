"""Faults of a Spark's host: driver, kernel, GPU, memory, clock, disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.lab.faults.base import (
    Fault,
    Undo,
    changed,
    hardware,
    number,
    put_file,
    restore_file,
    restore_hardware,
)
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
"""Precedes the real python3 on a login's PATH while the clock is off."""

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
"""The kernel has no clock per process, so programs passed by ``-c`` see a shifted one."""

LOGIND = "/etc/systemd/logind.conf"
DGX_RELEASE = "/etc/dgx-release"


def _version(text: str, what: str, example: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.+_-]*", text):
        raise UsageError(f"{text!r} is not a {what}", hint=f"write it as {example}")
    return text


def _driver(spark: Spark, args: Sequence[str]) -> Undo:
    if not re.fullmatch(r"[0-9][0-9.]*|none", args[0]):
        raise UsageError(f"{args[0]!r} is not a driver version", hint="write it as 590.48.01, or none")
    return _refreshed(spark, hardware(spark, lambda values: values.update(driver=args[0])))


def _restore_driver(spark: Spark, undo: Undo) -> None:
    restore_hardware(spark, undo)
    _refreshed(spark, undo)


def _refreshed(spark: Spark, undo: Undo) -> Undo:
    """Regenerate the CDI spec, as the driver's packages do; without a driver that fails and the old spec stays."""
    spark.run(["/usr/local/bin/systemctl", "restart", "nvidia-cdi-refresh"], check=False)
    return undo


def _cdi_stale(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    path = "/run/cdi/nvidia.yaml"
    text = spark.run(["cat", path]).stdout
    return put_file(spark, path, text.replace(spark.spec.driver, "580.82.09"))


def _versioned(key: str, what: str, example: str) -> Callable[[Spark, Sequence[str]], Undo]:
    def put(spark: Spark, args: Sequence[str]) -> Undo:
        version = _version(args[0], what, example)
        return hardware(spark, lambda values: values.update({key: version}))

    return put


_kernel = _versioned("kernel", "kernel release", "6.17.0-1004-nvidia")
_firmware = _versioned("firmware", "firmware version", "28.44.1036")


def _ota(spark: Spark, args: Sequence[str]) -> Undo:
    version = _version(args[0], "OTA version", "7.6.0")
    text = spark.run(["cat", DGX_RELEASE]).stdout
    # As an update does: it appends its lines.
    return put_file(spark, DGX_RELEASE, f'{text}\nDGX_OTA_VERSION="{version}"\nDGX_OTA_DATE="Fri Nov 20 2026"\n')


def _remove_ipc(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    return put_file(spark, LOGIND, "[Login]\nRemoveIPC=yes\n")


def _clock(spark: Spark, args: Sequence[str]) -> Undo:
    if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", args[0]):
        raise UsageError(f"a shift of the clock is a number of seconds, not {args[0]!r}", hint="write it as 300 or -5")
    undo = put_file(spark, CLOCK, CLOCKED.format(shift=float(args[0])))
    spark.run(["chmod", "755", CLOCK])
    return undo


def _memory(change: Callable[[dict[str, int], int], None], what: str) -> Callable[[Spark, Sequence[str]], Undo]:
    def put(spark: Spark, args: Sequence[str]) -> Undo:
        size = number(args[0], 0, 1 << 40, what)

        def set_sizes(values: dict[str, Any]) -> None:
            change(values["memory"], size)

        return hardware(spark, set_sizes)

    return put


def _in_cache(memory: dict[str, int], size_gb: int) -> None:
    """Page cache grows at the cost of free memory; available memory stays the same."""
    memory["free_kb"] = max(1_000_000, memory["free_kb"] - size_gb * 10**9 // 1024)


def _used(memory: dict[str, int], left_kb: int) -> None:
    """Programs use memory: it is neither free nor available."""
    memory["free_kb"] = left_kb
    memory["available_kb"] = left_kb


def _swapped(memory: dict[str, int], size_gb: int) -> None:
    memory["swap_free_kb"] = max(0, memory["swap_free_kb"] - size_gb * 10**9 // 1024)


def _kernel_log(spark: Spark, args: Sequence[str]) -> Undo:
    line = args[0].strip()
    if not line or not line.isprintable():
        raise UsageError(
            "a line of the kernel log must be printable", hint="kernel-log 'NVRM: Xid (PCI:000f:01:00): 119, …'"
        )
    return hardware(spark, lambda values: values["kernel_log"].append(f"[ 3600.000000] {line}"))


def _no_cma(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    return hardware(spark, lambda values: values["memory"].update(cma_kb=0))


def _disk_full(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    spark.run(["python3", "-c", FILL, FILLER])
    return {}


def _restore_disk(spark: Spark, undo: Undo) -> None:
    del undo
    spark.run(["rm", "-f", FILLER])


FAULTS: dict[str, Fault] = {
    "driver": Fault("VERSION", _driver, _restore_driver, simulated=True),
    "module-missing": Fault(None, changed(module=False, driver="none"), restore_hardware, simulated=True),
    "kernel": Fault("RELEASE", _kernel, restore_hardware, simulated=True),
    "ota": Fault("VERSION", _ota, restore_file, simulated=True),
    "firmware": Fault("VERSION", _firmware, restore_hardware, simulated=True),
    "cdi-stale": Fault(None, _cdi_stale, restore_file),
    "remove-ipc": Fault(None, _remove_ipc, restore_file),
    "clock": Fault("SECONDS", _clock, restore_file, simulated=True),
    "page-cache": Fault("GB", _memory(_in_cache, "a size in GB"), restore_hardware, simulated=True),
    "memory-free": Fault("KB", _memory(_used, "a size in kB"), restore_hardware, simulated=True),
    "swap": Fault("GB", _memory(_swapped, "a size in GB"), restore_hardware, simulated=True),
    "no-cma": Fault(None, _no_cma, restore_hardware, simulated=True),
    "gpu-lost": Fault(None, changed(gpu="lost"), restore_hardware, simulated=True),
    "gpu-wedged": Fault(None, changed(gpu_state="wedged"), restore_hardware, simulated=True),
    "gpu-hung": Fault(None, changed(gpu_state="hung"), restore_hardware, simulated=True),
    "kernel-log": Fault("LINE", _kernel_log, restore_hardware, simulated=True),
    "disk-full": Fault(None, _disk_full, _restore_disk),
}
"""Faults of the host, by kind."""
