"""Environment variables that sparkcluster sets, in one table.

From it come what a playbook may not set, what each node keeps for itself when Ray carries the head's environment to its
workers, and the list in the documentation.
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
"""Differ between nodes, so a playbook may not set them. An engine has more: ``Engine.per_node``."""

LAUNCHER = frozenset({"LD_PRELOAD", "SPARKCLUSTER_BIND_ADDRESS", "SPARKCLUSTER_BIND_OPEN"})
"""Set by the launcher inside a rank: the path of its library, and the address that sockets are bound to."""

RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the variable's name, never its value
HUB_TOKENS = frozenset({"HF_API_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"})
"""Open the user's account on the Hugging Face hub: no engine gets them, since weights are staged before it starts."""

ACCOUNTS = re.compile(
    r"(AWS|AZURE|GCP|GOOGLE)_\w+|(GH|GITHUB|GITLAB|NPM|PYPI|SLACK)_\w*TOKEN|"
    r"(ANTHROPIC|COHERE|DEEPSEEK|GEMINI|GROQ|MISTRAL|NGC|NVIDIA|OPENAI|OPENROUTER|WANDB|XAI)_API_KEY|"
    + "|".join(HUB_TOKENS)
)
"""Open the user's accounts elsewhere, so that none is an API key, which the engine gets."""

OWNERS = {
    **dict.fromkeys(("HF_HOME", "HF_HUB_CACHE"), "write hf_home in the inventory"),
    **dict.fromkeys(
        ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "RAY_ADDRESS", "WORLD_SIZE"),
        "leave it out: it follows from groups in the inventory",
    ),
    **dict.fromkeys(("RAY_AUTH_MODE", RAY_TOKEN), "leave it out: Ray's token is made for each release"),
}
"""Follow from other keys, with what to do instead. An engine has more: ``Engine.variables``."""


def per_node(engine: str) -> frozenset[str]:
    """Variables that differ between nodes, those of ``engine`` included."""
    return PER_NODE | engines.engine(engine).per_node


def refused(name: str, engine: str) -> tuple[str, str] | None:
    """Why a playbook may not set the variable ``name``, and what to do instead; None where it may."""
    if name in per_node(engine):
        return (
            "differs from node to node, so sparkcluster sets it for each",
            "leave it out, or name interfaces in the inventory",
        )
    if name in HUB_TOKENS:
        return (
            "engines get no Hugging Face token: weights are staged before the start",
            "remove it; for gated models, export HF_TOKEN on the machine where you run sparkcluster",
        )
    owner = OWNERS.get(name) or engines.engine(engine).variables.get(name)
    return ("sparkcluster sets this variable itself", owner) if owner else None
