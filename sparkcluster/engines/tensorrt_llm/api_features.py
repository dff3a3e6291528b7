"""What a client of TensorRT-LLM's API can rely on, according to the playbook."""

from __future__ import annotations

from sparkcluster.engines.base import ApiFeatures
from sparkcluster.engines.harmony import speaks
from sparkcluster.engines.tensorrt_llm.memory import number
from sparkcluster.spec.playbook import Playbook


def api_features(playbook: Playbook) -> ApiFeatures:
    """Implements ``Engine.api_features``; gpt-oss has its own parser for tools and reasoning."""
    args, own = playbook.args, speaks(playbook)
    return ApiFeatures(
        context=number(playbook, "max-seq-len") or None,
        tools=own or "tool-parser" in args,
        reasoning=True if own or "reasoning-parser" in args else None,
        requests=number(playbook, "max-batch-size") or None,
        remedies={
            "tools": "write tool-parser: NAME in args of the playbook (trtllm-serve --help lists them)",
            "reasoning": "write reasoning-parser: NAME in args of the playbook (trtllm-serve --help lists them)",
            "context": "set max-seq-len in args of the playbook",
            "messages": "serve the model with vLLM or llama.cpp, which have /v1/messages",
        },
    )
