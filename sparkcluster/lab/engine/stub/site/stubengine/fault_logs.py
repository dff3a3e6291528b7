"""Log lines of failing engines, verbatim as owners have reported them; each rank logs those of a fault once."""

import os
import socket

from stubengine import log

_logged = set()
MOE = "['FLASHINFER_TRTLLM', 'FLASHINFER_CUTEDSL', 'FLASHINFER_CUTLASS', 'VLLM_CUTLASS', 'MARLIN', 'EMULATION']"
EAGER = (
    "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. This is equivalent to setting "
    "-cc.mode=none -cc.cudagraph_mode=none and --kernel_config.enable_jit_warmup=False"
)
MEMLOCK = "WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
GID = (
    "WARN Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f1:1, curr state INIT, "
    "next state RTR, local GID index 3, local GID ::, remote GID ::"
)
STALLED = (
    "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are "
    "hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization)."
)


def nccl(line):
    """A line as NCCL prints it."""
    log.emit("%s:%d:%d [0] NCCL %s" % (socket.gethostname(), os.getpid(), os.getpid(), line))


def tcp(_value):
    """NCCL finds no RDMA device (NVIDIA/nccl#952)."""
    nccl("INFO NET/IB : No device found.")
    nccl("INFO NET/Socket : Using [0]%s" % socket.gethostname())
    nccl("INFO Using network Socket")


def nan_scales(_value):
    """A checkpoint was calibrated in part (vllm-project/vllm#45320)."""
    log.warning(
        "modelopt.py:1527",
        "NVFP4 MoE checkpoint has incomplete ModelOpt calibration or load for layer "
        "'model.layers.0.moe.experts': 'w13_input_scale' has zero or non-finite values for expert ids [40, 42].",
    )


def moe_backend(value):
    """The kernel that the experts run on (vllm-project/vllm#31085)."""
    log.info("nvfp4.py:222", "Using '%s' NvFp4 MoE backend out of potential backends: %s.", value, MOE)


def eager(_value):
    """No CUDA graphs (vLLM 0.32)."""
    log.warning("vllm.py:1703", EAGER)


LOGGERS = {"tcp-fallback": tcp, "nan-scales": nan_scales, "moe-backend": moe_backend, "eager": eager}


def log_active(active):
    """Logs the lines of every active fault, once per process."""
    for kind, value in active.items():
        if kind in LOGGERS and (kind, value) not in _logged:
            _logged.add((kind, value))
            LOGGERS[kind](value)


def log_cause(cause):
    """Logs why a rank is about to die while it serves."""
    if cause == "memlock":
        nccl(MEMLOCK)
        log.error("multiproc_executor.py:953", "RuntimeError: NCCL error: unhandled system error")
    elif cause == "gid":
        nccl(GID)
        log.error("multiproc_executor.py:953", "RuntimeError: NCCL error: unhandled system error")
    elif cause == "oom":
        log.error(
            "multiproc_executor.py:953",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "119.68 GiB of which 1.12 GiB is free.",
        )
    elif cause == "gpu":
        log.error("multiproc_executor.py:953", "RuntimeError: Failed to initialize NVML: Unknown Error")
    elif cause == "collective":
        log.emit(
            "[rank1]:[E ProcessGroupNCCL.cpp:563] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=158046, OpType=ALLREDUCE, NumelIn=2867200, NumelOut=2867200, Timeout(ms)=600000) ran for "
            "600027 milliseconds before timing out."
        )
