"""What a client of llama.cpp's API can rely on, according to the playbook."""

from __future__ import annotations

from sparkcluster.engines.base import ApiFeatures
from sparkcluster.engines.llama_cpp.memory import slot_tokens, trained_tokens
from sparkcluster.engines.words import number
from sparkcluster.fit import shipped
from sparkcluster.spec.playbook import Playbook


def api_features(playbook: Playbook) -> ApiFeatures:
    """Implements ``Engine.api_features``.

    Chat templates, which tools need, are on by default, and /v1/messages is always served.
    """
    args, known = playbook.args, shipped.recorded(playbook.model.label, playbook.model.revision)
    context, trained = slot_tokens(args, number(args, "ctx-size", 0)), trained_tokens(known) if known else 0
    return ApiFeatures(
        context=min(context, trained or context) or None,
        tools=args.get("jinja", True) is not False,
        reasoning=False if args.get("reasoning-format") == "none" else None,
        messages=True,
        requests=number(args, "parallel", 0) or None,
        remedies={
            "tools": "write jinja: true in args of the playbook",
            "reasoning": "write reasoning-format: auto in args of the playbook",
            "context": "set ctx-size in args of the playbook; concurrent requests share it",
            "messages": "use a newer build of llama.cpp",
        },
    )
