"""What a client of SGLang's API can rely on, according to the playbook."""

from __future__ import annotations

from sparkcluster.engines.base import ApiFeatures
from sparkcluster.engines.sglang.flags import arguments
from sparkcluster.engines.words import number
from sparkcluster.spec.playbook import Playbook

_PARSERS = "docs.sglang.io, Tool Parser and Reasoning Parser"


def api_features(playbook: Playbook) -> ApiFeatures:
    """Implements ``Engine.api_features``.

    ``messages`` is unknown: /v1/messages was added between 0.5.5 and 0.5.9 (entrypoints/http_server.py), and the tag of
    an image does not reveal the version.
    """
    args = arguments(playbook)
    remedies = {"context": "set context-length in args of the playbook", "messages": "use SGLang 0.5.9 or newer"}
    for what, name in (("tools", "tool-call-parser"), ("reasoning", "reasoning-parser")):
        fits = f"{name} is {args.get(name)}: it has to fit the model ({_PARSERS})"
        remedies[what] = fits if args.get(name) else f"write in args of the playbook: {name}: NAME ({_PARSERS})"
    return ApiFeatures(
        context=number(args, "context-length", 0) or None,
        tools=bool(args.get("tool-call-parser")),
        reasoning=True if args.get("reasoning-parser") else None,
        requests=number(args, "max-running-requests", 0) or None,
        remedies=remedies,
    )
