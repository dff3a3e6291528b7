"""Faults of the stub: STUB_FAULT and the file named by STUB_CONTROL.

A fault is ``kind`` or ``kind=value``, either with ``@host`` for a single host. STUB_FAULT is a comma-separated
list. The control file is read at every query. Its lines add up; ``clear`` drops all faults before it, including
those of STUB_FAULT. Removing a line heals the fault.
"""

import contextlib
import os
import socket
import threading
import time

from stubengine import log

# Log lines of failing engines, verbatim from reports of owners.
GID = (
    "WARN Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f1:1, curr state INIT, "
    "next state RTR, local GID index 3, local GID ::, remote GID ::"
)
NCCL_ERROR = "RuntimeError: NCCL error: unhandled system error"
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "119.68 GiB of which 1.12 GiB is free."
)
WORKER = "multiproc_executor.py:953"

# Log lines of a fault, by kind or kind=value: {} is the value.
LINES = {
    # NCCL finds no RDMA device (NVIDIA/nccl#952)
    "tcp-fallback": (
        (log.nccl, "INFO NET/IB : No device found."),
        (log.nccl, "INFO NET/Socket : Using [0]" + socket.gethostname()),
        (log.nccl, "INFO Using network Socket"),
    ),
    # a partially calibrated checkpoint (vllm-project/vllm#45320)
    "nan-scales": (
        (
            log.warning,
            "modelopt.py:1527",
            "NVFP4 MoE checkpoint has incomplete ModelOpt calibration or load for layer "
            "'model.layers.0.moe.experts': 'w13_input_scale' has zero or non-finite values for expert ids [40, 42].",
        ),
    ),
    # the kernel for the experts (vllm-project/vllm#31085)
    "moe-backend": (
        (
            log.info,
            "nvfp4.py:222",
            "Using '{}' NvFp4 MoE backend out of potential backends: ['FLASHINFER_TRTLLM', 'FLASHINFER_CUTEDSL', "
            "'FLASHINFER_CUTLASS', 'VLLM_CUTLASS', 'MARLIN', 'EMULATION'].",
        ),
    ),
    # no CUDA graphs (vLLM 0.32)
    "eager": (
        (
            log.warning,
            "vllm.py:1703",
            "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. This is equivalent to "
            "setting -cc.mode=none -cc.cudagraph_mode=none and --kernel_config.enable_jit_warmup=False",
        ),
    ),
    "die-serve=gid": ((log.nccl, GID), (log.error, WORKER, NCCL_ERROR)),
    "die-serve=oom": ((log.error, WORKER, OUT_OF_MEMORY),),
}
KINDS = frozenset(
    "hang-load hang-serve die-load die-serve exit0 garbage lie-health slow slow-start leak take oom tcp-fallback nan-scales "
    "moe-backend eager ray-dead".split()
)

TAKE_BYTES = 16 << 20
"""``take`` adds this ten times per second; at lab scale 16 that is what a Spark lost in three seconds (gb10-services)."""

_logged = set()
_taken = []


def active():
    """{kind: value} of the faults that affect this host; ValueError on an unknown fault."""
    text = os.environ.get("STUB_FAULT", "")
    path = os.environ.get("STUB_CONTROL")
    if path:
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as f:  # not written yet: no fault
            text += "\n" + f.read()
    found = {}
    for entry in text.replace("\n", ",").split(","):
        entry = entry.strip()
        if entry == "clear":
            found = {}
        elif entry and not entry.startswith("#"):
            fault, _, host = entry.partition("@")
            kind, _, value = fault.partition("=")
            if kind not in KINDS:
                raise ValueError("unknown fault %r; faults: %s" % (kind, ", ".join(sorted(KINDS))))
            if host in ("", socket.gethostname()):
                found[kind] = value or "1"
    return found


def wait_while(kind):
    """Blocks while the fault is active; the engine continues when the fault is healed."""
    while kind in active():
        time.sleep(0.05)


def hold():
    """Allocates shared memory (fault ``leak=MB``); returns a function that releases it in 8 s, as a GPU does."""
    size = active().get("leak")
    if size is None:
        return lambda: None
    path = "/dev/shm/psm_stub%d" % os.getpid()
    with open(path, "wb") as f:
        f.write(bytes(int(float(size) * 2**20)))

    def release():
        time.sleep(8)
        os.unlink(path)

    return release


def take(size):
    """Allocates and touches memory, up to ``size`` MB in all; frees it when ``size`` is empty."""
    if not size:
        _taken.clear()
    elif len(_taken) * TAKE_BYTES < float(size) * 2**20:
        _taken.append(b"\1" * TAKE_BYTES)


def log_lines(fault, value=""):
    """Logs the lines of a fault, if any."""
    for logger, *where, text in LINES.get(fault, ()):
        logger(*where, text.replace("{}", value))


def log_active():
    """Logs the lines of every active fault, once per process; returns the faults."""
    found = active()
    for kind, value in found.items():
        if (kind, value) not in _logged:
            _logged.add((kind, value))
            log_lines(kind, value)
    return found


def obey():
    """Makes this process log the lines of its faults, and exit with a cause in its log on ``die-serve``."""

    def loop():
        while True:
            found = log_active()
            take(found.get("take"))
            if "die-serve" in found:
                log_lines("die-serve=" + found["die-serve"])
                time.sleep(0.2)  # the log must be forwarded before the process exits
                os._exit(1)
            time.sleep(0.1)

    threading.Thread(target=loop, daemon=True).start()
