"""A playbook to start from for a model without a known recipe: a guide's baseline, completed from config.json.

https://vlaicu.io/posts/dgx-vllm-playbook/: section 6 (context, sequences, memory, quantization of ModelOpt's
checkpoints, Marlin for experts of four bits) and 8 (parsers by the family of the model).
"""

from __future__ import annotations

import json
from typing import Any

from sparkcluster.engines.vllm import family_flags
from sparkcluster.engines.vllm.arguments import CHOICE, REASONING, TOOLS
from sparkcluster.fit.config import parse
from sparkcluster.fit.source import Source

IMAGE = "vllm/vllm-openai:v0.28.0"
"""The release of most bundled playbooks; the guide's NGC 26.04 (0.19) does not support newer models."""
SHARE = 0.82
"""The guide takes 0.85, which Sparks with 102 of 121 GiB free refuse (SM121-131)."""
CONTEXT = 65536
SEQUENCES = 4
BROUGHT = frozenset({"nano_v3", "super_v3"})
"""Parsers that a checkpoint brings as a file, and that vLLM does not have."""


def baseline(model: Source) -> tuple[dict[str, Any], list[str]]:
    """Implements ``Engine.baseline``."""
    config = parse(model.config, model.name)
    family = family_flags.family(model.name, config.architecture)
    method = config.quantization.method
    kinds = (kind for kind, names in family_flags.NAMES.items() if method in names)
    checkpoint = next(kinds, None) if method else "bf16"
    quantization = json.dumps(model.config.get("quantization_config"))
    four_bits = bool(method) and "fp4" in f"{model.name} {quantization}".lower()
    args: dict[str, Any] = {
        "gpu-memory-utilization": SHARE,
        "max-model-len": min(CONTEXT, config.context),
        "max-num-seqs": SEQUENCES,
        **({"quantization": "modelopt"} if checkpoint == "modelopt" else {}),
        **({"moe-backend": "marlin"} if four_bits and config.experts is not None else {}),
    }
    notes = [] if checkpoint else [f"unknown quantization method: {method}"]
    # Parsers that a checkpoint brings as a file need a plugin.
    thoughts = [each for each in family.thoughts if each not in BROUGHT] if family else []
    if thoughts:
        args[REASONING] = thoughts[0]
    if family and family.tools:
        args |= {CHOICE: True, TOOLS: family.tools[0]}
    else:
        notes.append(
            f"{TOOLS} and {REASONING}: unknown for {config.architecture or 'it'}; see docs.vllm.ai, Tool Calling"
        )
    if "auto_map" in model.config:
        notes.append("trust-remote-code is not set: the model's repository has code, which runs if you set it in args")
    document: dict[str, Any] = {
        "model": {"checkpoint": checkpoint, "architecture": config.architecture or None},
        "image": IMAGE,
        "overlays": ["ngram", *(["mtp-1"] if config.drafts else [])],
        "args": args,
        "verify": {"expect": "204"},
    }
    return document, notes
