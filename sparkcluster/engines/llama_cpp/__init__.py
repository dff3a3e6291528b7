"""llama.cpp: ``llama-server`` with one GGUF, on one Spark.

Names of flags, metrics and log lines: tools/server/README.md and the server's log of
https://github.com/ggml-org/llama.cpp at b11549, which the lab runs by way of xllamacpp.

- The model is one file (``model.file``) with configuration, tokenizer and chat template.
- The engine downloads nothing (``--offline``): the file is staged like any other weights.
- SIGTERM stops it immediately; requests in flight are aborted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkcluster.engines.base import Engine, imported

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sparkcluster.engines.base import ModelKind
    from sparkcluster.spec.playbook import Playbook

_STAGED = "model.id or model.path, and model.file: weights are staged, and the engine downloads nothing"


class LlamaCpp(Engine):
    """The interface to llama.cpp's modules, which are imported when they are used."""

    name = "llama.cpp"
    title = "llama.cpp"
    api_key = "LLAMA_API_KEY"
    key_separator = ","
    alone = "its rpc-server has no authentication (tools/rpc/README.md of llama.cpp)"
    arguments = {
        "model": "model.file",
        **dict.fromkeys(("model-url", "hf-repo", "hf-file", "docker-repo", "hf-repo-draft", "mmproj-url"), _STAGED),
        "hf-token": "HF_TOKEN in the environment of sparkcluster, which stages gated models with it",
        "alias": "served_name and aliases",
        "host": "api.host in the inventory",
        "port": "api.port in the inventory",
        "api-key": "api.key in the inventory, which keeps it out of every command line",
        "api-key-file": "api.key in the inventory",
        "rpc": "one Spark in the inventory: llama.cpp's rpc-server has no authentication",
    }
    common_arguments = {
        "context": "ctx-size", "requests": "parallel", "batch": "batch-size",
        "kv_type": "cache-type-k",
    }  # fmt: skip
    variables = {
        "LLAMA_API_KEY": "write api.key in the inventory",
        **dict.fromkeys(("LLAMA_ARG_HF_REPO", "LLAMA_ARG_MODEL_URL", "LLAMA_ARG_DOCKER_REPO"), f"write {_STAGED}"),
        "LLAMA_ARG_API_KEY_FILE": "write api.key in the inventory",
        "LLAMA_ARG_RPC": "list one Spark in the inventory: llama.cpp's rpc-server has no authentication",
    }
    images = frozenset({"ghcr.io/ggml-org/llama.cpp", "nvidia/cuda"})
    api_flags = {"host": "--host", "port": "--port", "model": "--alias"}
    # During a prefill only the last counter changes, with each batch.
    counters = {
        "generated": ("llamacpp:tokens_predicted_total",),
        "prompted": ("llamacpp:prompt_tokens_total",),
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_cache": ("llamacpp:kv_cache_usage_ratio",),  # until 2025
        "batches": ("llamacpp:n_decode_total",),
    }
    statistics = {
        "drafts": ("llamacpp:spec_decode_num_drafts_total",),
        "drafted": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    }
    tokenize_field = "content"
    ready = "listening on http"
    memory_hint = (
        "lower ctx-size or parallel in the playbook, set cache-type-k and cache-type-v to q8_0, or serve a smaller file"
        " of the repository; or free the page cache on that node: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    )
    checks = (f"{__name__}.fit_checks",)

    serve = imported(".command_line", "serve")
    forecast = imported(".memory", "forecast")
    short_arguments = imported(".flags", "SHORT")
    known_arguments = imported(".flags", "known_arguments")
    tuning_arguments = imported(".flags", "tuning_arguments")
    gone_argument = imported(".flags", "GONE.get")
    importer = imported(".importer", "IMPORTER")
    api_features = imported(".api_features", "api_features")
    phases = imported(".signatures", "PHASES")
    signatures = imported(".signatures", "SIGNATURES")

    def kind(self, args: Mapping[str, Any]) -> ModelKind:
        """Implements ``Engine.kind``."""
        if args.get("reranking") or args.get("rerank"):
            return "rerank"
        return "embeddings" if args.get("embeddings") or args.get("embedding") else "chat"

    def weights_format(self, playbook: Playbook) -> str | None:  # noqa: ARG002 - the interface's
        """Implements ``Engine.weights_format``: one file."""
        return "gguf"

    def tuning_variables(self) -> frozenset[str]:
        """Implements ``Engine.tuning_variables``."""
        return frozenset({"GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_CUDA_NO_PINNED", "LLAMA_ATTN_ROT_DISABLE"})


ENGINE = LlamaCpp()
