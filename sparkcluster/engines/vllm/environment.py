"""Environment variables of vLLM."""

from __future__ import annotations

from sparkcluster.topology.model import Member


def build(member: Member) -> dict[str, str]:
    """Variables of the rank on ``member``."""
    return {
        # The address that its ranks advertise (vllm/utils/network_utils.py, get_ip).
        "VLLM_HOST_IP": member.address,
        # Without it Marlin's reduction races and the output is wrong ("vLLM on DGX Spark: What the SM121
        # Architecture Actually Requires").
        "VLLM_MARLIN_USE_ATOMIC_ADD": "1",
    }
