"""The vocabulary of gpt-oss, which the engine's parser downloads when it starts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkcluster.engines.base import Playbook, Vocabulary

# openai_harmony loads it after the weights, whatever HF_HUB_OFFLINE says (vllm-project/vllm#22525, openai/harmony#95,
# NVIDIA/dgx-spark-playbooks#17); size and hash: tiktoken_ext/openai_public.py of openai/tiktoken.
HARMONY = Vocabulary(
    name="o200k_base.tiktoken",
    url="https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
    sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    size_bytes=3_613_922,
    variable="TIKTOKEN_ENCODINGS_BASE",
    others=("TIKTOKEN_RS_CACHE_DIR",),
)


def speaks(playbook: Playbook) -> bool:
    """Whether the model is gpt-oss, by architecture or name."""
    model = playbook.model
    return re.search(r"gpt-?oss", f"{model.architecture} {model.label}", re.IGNORECASE) is not None


def vocabularies(playbook: Playbook, parsers: Iterable[str] = ()) -> tuple[Vocabulary, ...]:
    """Harmony's vocabulary for gpt-oss, or if one of ``parsers`` is OpenAI's."""
    return (HARMONY,) if speaks(playbook) or any(each.startswith("openai") for each in parsers) else ()
