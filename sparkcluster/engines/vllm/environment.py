"""Environment variables of vLLM."""

from __future__ import annotations

from sparkcluster.engines.vllm.versions import of_reference
from sparkcluster.spec.playbook import Playbook
from sparkcluster.topology.model import Member

FLASHINFER_FP4 = "VLLM_USE_FLASHINFER_MOE_FP4"
# vLLM's timeouts while it loads, or compiles kernels for its first requests, in seconds, with their defaults
# (vllm/envs.py). Up to 0.26 the first covers only a part of the start (vllm#48031, #50039). The second applies to each
# step, in which a GB10 may compile for minutes (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#65), the third to each
# step of vLLM's older executor, which uses Ray's compiled graphs (vllm#15301).
_LIMITS = {
    "VLLM_ENGINE_READY_TIMEOUT_S": 600,
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": 300,
    "RAY_CGRAPH_get_timeout": 300,
}


def build(member: Member, playbook: Playbook) -> dict[str, str]:
    """Variables of the rank on ``member``; vLLM's timeouts are at least the playbook's ``ready_timeout_s``."""
    image = of_reference(playbook.image or "")
    # Whether the image reads FLASHINFER_FP4: NGC's releases 26.03 and 26.04.
    reads_it = image.family == "ngc" and (0, 17) < (image.versions.exact or (0,)) < (0, 20)
    return {
        **{name: str(max(default, int(playbook.ready_timeout_s))) for name, default in _LIMITS.items()},
        # Without FLASHINFER_FP4, NVFP4 experts may use CUTLASS kernels, whose output is garbage ("vLLM on DGX Spark:
        # What the SM121 Architecture Actually Requires", in docs/internals/sources.md). vLLM's oracle/nvfp4.py reads
        # the variable only if --moe-backend is auto.
        **({FLASHINFER_FP4: "0"} if reads_it else {}),
        # The address that the rank advertises (vllm/utils/network_utils.py, get_ip).
        "VLLM_HOST_IP": member.address,
        # Without VLLM_MARLIN_USE_ATOMIC_ADD, Marlin's reduction races and the output is wrong (the same page).
        "VLLM_MARLIN_USE_ATOMIC_ADD": "1",
    }
