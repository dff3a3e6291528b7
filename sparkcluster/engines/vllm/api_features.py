"""What a client of vLLM's API can rely on, according to the playbook."""

from __future__ import annotations

from sparkcluster.engines.base import ApiFeatures
from sparkcluster.engines.vllm import family_flags
from sparkcluster.engines.vllm.arguments import AUTO, CHOICE, REASONING, TOOLS, Arguments
from sparkcluster.engines.vllm.versions import UNKNOWN, of_reference
from sparkcluster.spec.playbook import Playbook

# Release notes of v0.11.1, and https://github.com/vllm-project/vllm/pull/22627, which brought /v1/messages.
MESSAGES = (0, 11, 1)
_DOCS = "docs.vllm.ai"


def api_features(playbook: Playbook) -> ApiFeatures:
    """Implements ``Engine.api_features``."""
    args = Arguments(playbook)
    family = family_flags.family(playbook.model.label, playbook.model.architecture)
    written = args.values.get("max-model-len")
    context = args.count("max-model-len", 0) if written != AUTO else 0
    if written is None and family is not None:
        context = family.context or 0
    tool_parser, reasoning_parser = args.text(TOOLS), args.text(REASONING)
    tools = bool(args.on(CHOICE)) and tool_parser is not None
    usual_tools = family.tools[0] if family and family.tools else None
    usual_reasoning = family.thoughts[0] if family and family.thoughts else None
    versions = of_reference(playbook.image).versions if playbook.image else UNKNOWN
    return ApiFeatures(
        context=context or None,
        tools=tools,
        reasoning=True if reasoning_parser else False if family and family.reasoning in {"always", "asked"} else None,
        messages=versions.since(*MESSAGES),
        requests=args.count("max-num-seqs", 0) or None,
        remedies={
            "tools": _tool_remedy(tool_parser, usual_tools, complete=tools),
            "reasoning": _reasoning_remedy(reasoning_parser, usual_reasoning),
            "context": "set max-model-len in args of the playbook",
            "messages": f"use an image with vLLM {'.'.join(map(str, MESSAGES))} or newer",
        },
    )


def _tool_remedy(parser: str | None, usual: str | None, *, complete: bool) -> str:
    if complete:
        instead = f", usually {usual} for this model" if usual and usual != parser else ""
        return f"{TOOLS} is {parser}: it has to fit the model{instead} ({_DOCS}, Tool Calling)"
    chosen = parser or usual or f"NAME ({_DOCS}, Tool Calling)"
    return f"write in args of the playbook: {CHOICE}: true and {TOOLS}: {chosen}"


def _reasoning_remedy(parser: str | None, usual: str | None) -> str:
    if parser:  # with reasoning off, deepseek_r1 takes Qwen3's complete answer for reasoning (vllm-project/vllm#17327)
        instead = f", usually {usual} for this model" if usual and usual != parser else ""
        return f"{REASONING} is {parser}: it has to fit the model{instead} ({_DOCS}, Reasoning Outputs)"
    return f"write in args of the playbook: {REASONING}: {usual or f'NAME ({_DOCS}, Reasoning Outputs)'}"
