"""What a client of llama.cpp's API can rely on, by the playbook alone."""

from __future__ import annotations

from sparkcluster.engines.base import ApiFeatures
from sparkcluster.engines.llama_cpp.memory import number, slot_tokens
from sparkcluster.spec.playbook import Playbook


def api_features(playbook: Playbook) -> ApiFeatures:
    """As ``Engine.api_features`` says.

    Chat templates, which tools need, are on by default, and /v1/messages is always served.
    """
    args = playbook.args
    return ApiFeatures(
        context=slot_tokens(args, number(args, "ctx-size", 0)) or None,
        tools=args.get("jinja", True) is not False,
        reasoning=False if args.get("reasoning-format") == "none" else None,
        messages=True,
        requests=number(args, "parallel", 0) or None,
        remedies={
            "tools": "write jinja: true in args of the playbook",
            "reasoning": "write reasoning-format: auto in args of the playbook",
            "context": "set ctx-size in args of the playbook, which all requests at once share",
            "messages": "take a newer build of llama.cpp",
        },
    )
