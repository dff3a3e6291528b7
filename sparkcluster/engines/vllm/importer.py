"""How commands and recipes that start vLLM are read: what ``sparkcluster import`` needs of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from sparkcluster.engines.vllm import eugr, import_arguments, launch_cluster, model_recipes, run_cluster
from sparkcluster.engines.vllm.versions import of_reference
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.serve import Command
from sparkcluster.recipes.shell import parse, unknown
from sparkcluster.recipes.structured import Format

# An image that takes its command from variables: https://github.com/AEON-7/vllm-dflash, Configuration
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


class VllmImporter:
    """An ``Importer``."""

    ENGINE = "vllm"
    COMMAND = "vllm serve"
    # sparkrun, runtimes/_vllm_common.py, VLLM_FLAG_MAP and VLLM_BOOL_FLAGS
    sparkrun_flags: Mapping[str, str] = {
        "tensor_parallel": "-tp", "port": "--port", "host": "--host",
        "gpu_memory_utilization": "--gpu-memory-utilization", "max_model_len": "--max-model-len",
        "max_num_batched_tokens": "--max-num-batched-tokens", "max_num_seqs": "--max-num-seqs",
        "served_model_name": "--served-model-name", "dtype": "--dtype", "quantization": "--quantization",
        "enforce_eager": "--enforce-eager?", "enable_prefix_caching": "--enable-prefix-caching?",
        "trust_remote_code": "--trust-remote-code?",
        "distributed_executor_backend": "--distributed-executor-backend", "pipeline_parallel": "-pp",
        "data_parallel": "--data-parallel-size", "kv_cache_dtype": "--kv-cache-dtype",
        "otlp_traces_endpoint": "--otlp-traces-endpoint", "api_key": "--api-key",
    }  # fmt: skip

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after ``vllm serve``, once or more often, or after the older way to call the same."""
        remaining, found = list(words), False
        while remaining:
            if remaining[0] in {"exec", "nohup"}:
                remaining = remaining[1:]
            elif len(remaining) > 1 and remaining[0].rpartition("/")[2] == "vllm" and remaining[1] == "serve":
                remaining, found = remaining[2:], True
            elif (module := _module(remaining)) is not None:
                if module[0] == "vllm.entrypoints.openai.api_server":
                    return module[1:]
                if module[:2] != ["vllm.entrypoints.cli.main", "serve"]:
                    break
                remaining, found = module[2:], True
            else:
                break
        return remaining if found else None

    def is_twice(self, words: Sequence[str]) -> bool:
        """Whether the words begin with ``vllm serve vllm serve``."""
        return list(words[:4]) == ["vllm", "serve", "vllm", "serve"]

    def is_entrypoint(self, image: str) -> bool:
        """Whether ``vllm serve`` is the entrypoint of ``image``."""
        return of_reference(image).family == "upstream"

    def by_variables(self, container: Container) -> Command | None:
        """What an image runs that takes its arguments from variables; None for every other, or with a command."""
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
        note = "the image's variables, written as the flags that its documentation says they become"
        return Command(words, env, notes=[note])

    read = staticmethod(import_arguments.read)

    def is_worker(self, words: Sequence[str]) -> bool:
        """Whether the words after the command start another rank than the first."""
        split = [part for word in words for part in (word.split("=", 1) if word.startswith("--node-rank=") else [word])]
        ranks = [value for name, value in pairwise(split) if name == "--node-rank"]
        return "--headless" in words or ranks[-1:] not in ([], ["0"])

    def launched(self, words: list[str], env: Mapping[str, str | None]) -> Container | None:
        """The container that a runner's command starts in ``env``; None where it is no such command."""
        return launch_cluster.launched(words, env) or run_cluster.launched(words)

    @property
    def formats(self) -> Sequence[Format]:
        """Formats of recipes that start vLLM alone."""
        return [model_recipes.format_of(self), eugr.format_of(self)]


IMPORTER = VllmImporter()


def _module(words: Sequence[str]) -> list[str] | None:
    """The module that Python runs, and its arguments; None for another program."""
    at = 1
    while at < len(words) and re.fullmatch(r"-[A-Zbdiqsuv]+", words[at]):
        at += 2 if words[at] in {"-X", "-W"} else 1
    is_python = words and re.fullmatch(r"(.*/)?python[0-9.]*", words[0])
    return list(words[at + 1 :]) or None if is_python and words[at : at + 1] == ["-m"] else None


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text
