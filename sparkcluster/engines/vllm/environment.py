"""Environment variables of vLLM."""

from __future__ import annotations

from sparkcluster.topology.model import Member

# Limits in seconds that end the engine while it loads, or while it compiles kernels for its first requests, with vLLM's
# defaults (vllm/envs.py). Up to 0.26 the first covers a part of the start only (vllm#48031, #50039). The second is of
# each step, in which a GB10 may compile for minutes (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#65), the third the
# same in vLLM's older executor, which uses Ray's compiled graphs (vllm#15301).
_LIMITS = {
    "VLLM_ENGINE_READY_TIMEOUT_S": 600,
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": 300,
    "RAY_CGRAPH_get_timeout": 300,
}


def build(member: Member, ready_timeout_s: float) -> dict[str, str]:
    """Variables of the rank on ``member``; vLLM's own limits are no shorter than ``ready_timeout_s``."""
    return {
        **{name: str(max(default, int(ready_timeout_s))) for name, default in _LIMITS.items()},
        # The address that its ranks advertise (vllm/utils/network_utils.py, get_ip).
        "VLLM_HOST_IP": member.address,
        # Without it Marlin's reduction races and the output is wrong ("vLLM on DGX Spark: What the SM121
        # Architecture Actually Requires").
        "VLLM_MARLIN_USE_ATOMIC_ADD": "1",
    }
