"""What vLLM downloads from elsewhere than the hub when it has loaded a model."""

from __future__ import annotations

import re

from sparkcluster.engines.base import Vocabulary
from sparkcluster.engines.vllm.arguments import Arguments
from sparkcluster.spec.playbook import Playbook

# openai_harmony loads it after the weights, whatever HF_HUB_OFFLINE says (vllm-project/vllm#22525, openai/harmony#95);
# size and hash: tiktoken_ext/openai_public.py of openai/tiktoken.
HARMONY = Vocabulary(
    name="o200k_base.tiktoken",
    url="https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
    sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    size_bytes=3_613_922,
    variable="TIKTOKEN_ENCODINGS_BASE",
    others=("TIKTOKEN_RS_CACHE_DIR",),
)


def vocabularies(playbook: Playbook) -> tuple[Vocabulary, ...]:
    """Harmony's, for gpt-oss: by architecture, name or parser."""
    args = Arguments(playbook)
    model = re.search(r"gpt-?oss", f"{playbook.model.architecture} {playbook.model.label}", re.IGNORECASE)
    parsers = [args.text(name) or "" for name in ("reasoning-parser", "tool-call-parser")]
    return (HARMONY,) if model or any(parser.startswith("openai") for parser in parsers) else ()
