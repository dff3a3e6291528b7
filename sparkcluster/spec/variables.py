"""Environment variables that sparkcluster sets.

They define which variables a playbook must not set, which Ray must not copy from the head to its workers, and the list
in the documentation.
"""

from __future__ import annotations

import re

from sparkcluster import engines

PER_NODE = frozenset(
    {
        "GLOO_SOCKET_IFNAME",
        "MN_IF_NAME",
        "NCCL_IB_ADDR_FAMILY",
        "NCCL_IB_ADDR_RANGE",
        "NCCL_IB_DISABLE",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "OMPI_MCA_btl_tcp_if_include",
        "OMPI_MCA_oob_tcp_if_include",
        "SPARKCLUSTER_BIND_ADDRESS",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
    }
)
"""Differ between nodes, so a playbook must not set them. Engines add more: ``Engine.per_node``."""

LAUNCHER = frozenset({"LD_PRELOAD", "SPARKCLUSTER_BIND_ADDRESS", "SPARKCLUSTER_BIND_OPEN"})
"""Set by the launcher in a rank: the path of its library, and the address to bind sockets to."""

RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the variable's name, never its value
HUB_TOKENS = frozenset({"HF_API_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"})
"""Tokens of the user's Hugging Face account; engines do not get them, since weights are staged before."""

ACCOUNTS = re.compile(
    r"(AWS|AZURE|GCP|GOOGLE)_\w+|(GH|GITHUB|GITLAB|NPM|PYPI|SLACK)_\w*TOKEN|"
    r"(ANTHROPIC|COHERE|DEEPSEEK|GEMINI|GROQ|MISTRAL|NGC|NVIDIA|OPENAI|OPENROUTER|WANDB|XAI)_API_KEY|"
    + "|".join(HUB_TOKENS)
)
"""Credentials of the user's other accounts; none may serve as API key, since the engine gets that."""

OWNERS = {
    **dict.fromkeys(("HF_HOME", "HF_HUB_CACHE"), "write hf_home in the inventory"),
    **dict.fromkeys(
        ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "RAY_ADDRESS", "WORLD_SIZE"),
        "remove it: it follows from groups in the inventory",
    ),
    **dict.fromkeys(("RAY_AUTH_MODE", RAY_TOKEN), "remove it: Ray's token is created for each release"),
}
"""Variables that follow from other keys, with the fix. Engines add more: ``Engine.variables``."""


def per_node(engine: str) -> frozenset[str]:
    """Variables that differ between nodes, including ``engine``'s."""
    return PER_NODE | engines.engine(engine).per_node


def refused(name: str, engine: str) -> tuple[str, str] | None:
    """Why a playbook must not set the variable ``name``, and the fix; None if it may."""
    if name in per_node(engine):
        return (
            "differs between nodes, so sparkcluster sets it",
            "remove it, or list interfaces in the inventory",
        )
    if name in HUB_TOKENS:
        return (
            "engines get no Hugging Face token: weights are staged before they start",
            "remove it; for gated models, export HF_TOKEN on the machine where you run sparkcluster",
        )
    owner = OWNERS.get(name) or engines.engine(engine).variables.get(name)
    return ("sparkcluster sets this variable itself", owner) if owner else None
