"""Images that take their command from variables, as flags of ``vllm serve``.

Variables and defaults: https://github.com/AEON-7/vllm-dflash, Configuration
"""

from __future__ import annotations

import json
import re

from sparkcluster.recipes.container import Container
from sparkcluster.recipes.serve import Command
from sparkcluster.recipes.shell import parse, unknown

_IMAGE = re.compile(r"ghcr\.io/aeon-7/vllm-dflash([:@].*)?")
_FLAGS = {
    "SERVED_MODEL_NAME": ("served-model-name", None),
    "MAX_MODEL_LEN": ("max-model-len", "65536"),
    "MAX_NUM_SEQS": ("max-num-seqs", "16"),
    "MAX_NUM_BATCHED_TOKENS": ("max-num-batched-tokens", "32768"),
    "GPU_MEMORY_UTILIZATION": ("gpu-memory-utilization", "0.85"),
    "ATTENTION_BACKEND": ("attention-backend", "flash_attn"),
    "KV_CACHE_DTYPE": ("kv-cache-dtype", None),
}
_DRAFT = ("DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS")


def command(container: Container) -> Command | None:
    """What such an image runs; None for every other, and for one that is given a command."""
    if not _IMAGE.fullmatch(container.image) or container.words or container.entrypoint:
        return None
    env = dict(container.env)
    model = env.pop("MODEL_PATH", None)
    words = [model] if model else []
    for name, (flag, default) in _FLAGS.items():
        value = env.pop(name, None) or default
        if value is not None:
            words += [f"--{flag}", value]
    drafter, tokens = (env.pop(name, None) for name in _DRAFT)
    if drafter:
        draft = {"method": "dflash", "model": drafter, "num_speculative_tokens": _number(tokens or "15")}
        words += ["--speculative-config", json.dumps(draft)]
    extra = env.pop("EXTRA_ARGS", None)
    for more in parse(extra).commands[:1] if extra and not unknown(extra) else []:
        words += more
    said = "the image's variables, written as the flags that its documentation says they become"
    return Command(words, env, left=[said])


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
