"""Files that vLLM downloads from outside the hub when it has loaded a model."""

from __future__ import annotations

from sparkcluster.engines import harmony
from sparkcluster.engines.base import Vocabulary
from sparkcluster.engines.vllm.arguments import Arguments
from sparkcluster.spec.playbook import Playbook


def vocabularies(playbook: Playbook) -> tuple[Vocabulary, ...]:
    """Harmony's vocabulary, for gpt-oss: by architecture, name or parser."""
    args = Arguments(playbook)
    return harmony.vocabularies(playbook, [args.text(name) or "" for name in ("reasoning-parser", "tool-call-parser")])
