"""vLLM, its images, and what it needs on a DGX Spark.

- Ray does not overwrite per-node variables. vLLM copies the driver's environment to the workers. Every name that
  differs between nodes, or is set on one alone, goes into ``ray_non_carry_over_env_vars.json`` under
  ``VLLM_CONFIG_ROOT``, on every node, before the engine starts.
- A stop lets requests finish (``DRAIN_S`` in ``planned.py``, at most ``DRAIN_MOST_S`` in ``runtime/ranks.py``). vLLM
  0.19 and newer is started with ``--shutdown-timeout 60`` if the playbook does not set it: after SIGTERM it ends new
  requests immediately (``finish_reason`` ``abort``, which ``ask`` and ``status`` report as not ready) and finishes
  requests in flight. The label ``io.sparkcluster.drain_s`` of the head has these seconds. The head gets them (at most
  600) and 30 s more before SIGKILL; workers are stopped after it. A failed launch gets 30 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkcluster.engines.base import Engine, imported

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sparkcluster.engines.base import ModelKind
    from sparkcluster.spec.playbook import Playbook

_GROUPS = "groups in the inventory"


class Vllm(Engine):
    """The interface to vLLM's modules, which are imported when they are used."""

    name = "vllm"
    title = "vLLM"
    api_key = "VLLM_API_KEY"
    executors = frozenset({"ray", "native"})
    arguments = {
        "model": "model.id or model.path",
        "revision": "model.revision",
        "served-model-name": "served_name",
        "tensor-parallel-size": "tensor_parallel",
        "pipeline-parallel-size": "pipeline_parallel",
        "distributed-executor-backend": "executor",
        "host": "api.host in the inventory",
        "port": "api.port in the inventory",
        "uds": "api.host and api.port in the inventory",
        "api-key": "api.key in the inventory, which keeps it out of every command line",
        "hf-token": "HF_TOKEN in the environment of sparkcluster, which stages gated models with it",
        **dict.fromkeys(("nnodes", "node-rank", "master-addr", "master-port", "headless"), _GROUPS),
        "config": "the arguments of that file under args",
    }
    common_arguments = {
        "context": "max-model-len",
        "requests": "max-num-seqs",
        "memory": "gpu-memory-utilization",
        "kv_type": "kv-cache-dtype",
        "batch": "max-num-batched-tokens",
        "kv_bytes": "kv-cache-memory-bytes",
        "no_graphs": "enforce-eager",
    }
    judges_arguments = True
    short_arguments = {
        "tp": "tensor_parallel",
        "pp": "pipeline_parallel",
        "n": _GROUPS,
        "r": _GROUPS,
        "dp": "data-parallel-size",
        "q": "quantization",
        "O": "optimization-level",
        "cc": "compilation-config",
        "ac": "attention-config",
        "sc": "speculative-config",
    }
    variables = {"VLLM_API_KEY": "write api.key in the inventory"}
    per_node = frozenset({"VLLM_HOST_IP"})
    caches = {"vllm": "/root/.cache/vllm", "triton": "/root/.triton", "flashinfer": "/root/.cache/flashinfer"}
    images = frozenset(
        {
            "vllm/vllm-openai",
            "nvcr.io/nvidia/vllm",
            "ghcr.io/z-lab/vllm-openai",
            "ghcr.io/aeon-7/aeon-vllm-ultimate",
            "ghcr.io/aeon-7/vllm-dflash",
            "sparkarena/spark-vllm-docker",
            "vllm-node",
        }
    )
    counters = {
        "generated": ("vllm:generation_tokens_total",),
        "prompted": ("vllm:prompt_tokens_total",),
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    }
    # gpu_cache_usage_perc and gpu_prefix_cache_* until 0.11 (vllm-project/vllm#29330), time_per_output_token_seconds
    # until inter_token_latency_seconds came with 0.10.2 (#24110, #32661); spec_decode_* only where it drafts.
    statistics = {
        "hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "drafts": ("vllm:spec_decode_num_drafts_total",),
        "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
        "preemptions": ("vllm:num_preemptions_total",),
        "ttft": ("vllm:time_to_first_token_seconds_bucket",),
        "ttft_sum": ("vllm:time_to_first_token_seconds_sum",),
        "itl": ("vllm:inter_token_latency_seconds_bucket", "vllm:time_per_output_token_seconds_bucket"),
        "itl_sum": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    }
    ready = "Application startup complete"
    stalled = r"No available shared memory broadcast block found in \d+ seconds"
    memory_hint = (
        "lower gpu-memory-utilization or max-model-len in the playbook; or free the page cache on that node:"
        " sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    )
    dead = r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)|died unexpectedly"

    checks = (f"{__name__}.rules", f"{__name__}.fit_checks", f"{__name__}.symptoms")

    serve = imported(".command_line", "serve")
    environment = imported(".environment", "build")
    planned = imported(".planned", "planned")
    drain_s = imported(".planned", "drain_s")
    vocabularies = imported(".vocabulary", "vocabularies")
    memory_share = imported(".arguments", "claimed")
    takes_share = imported(".arguments", "takes_share")
    beside_others = imported(".arguments", "beside_others")
    forecast = imported(".memory", "forecast")
    baseline = imported(".baseline", "baseline")
    tuning_arguments = imported(".flags", "tuning_arguments")
    tuning_variables = imported(".flags", "tuning_variables")
    api_features = imported(".api_features", "api_features")
    known_arguments = imported(".flags", "known")
    gone_argument = imported(".flags", "GONE.get")
    garbage_remedy = imported(".symptoms", "garbage_remedy")
    importer = imported(".importer", "IMPORTER")
    reports = imported(".rules.table", "REPORTS")
    phases = imported(".signatures", "PHASES")
    footprint = imported(".signatures", "FOOTPRINT")
    culprits = imported(".signatures", "CULPRITS")
    signatures = imported(".signatures", "SIGNATURES")

    # Called by every probe: modules are imported only if an argument may matter.

    def kind(self, args: Mapping[str, Any]) -> ModelKind:
        """Implements ``Engine.kind``, by ``runner``, and ``task`` of older versions."""
        overrides = args.get("hf-overrides")
        classes = overrides.get("architectures") if isinstance(overrides, dict) else None
        scores = args.get("task") == "score" or args.get("convert") == "classify"
        if scores or str(classes).endswith("ForSequenceClassification']"):
            return "rerank"
        embeds = args.get("runner") == "pooling" or args.get("task") in {"embed", "embedding"}
        return "embeddings" if embeds or args.get("convert") == "embed" else "chat"

    def repositories(self, playbook: Playbook) -> Mapping[str, str]:
        """Implements ``Engine.repositories``."""
        if not _mentions(playbook, "spec", "tokenizer", "lora", "hf", "-sc"):
            return {}
        from sparkcluster.engines.vllm import arguments

        return arguments.repositories(playbook)

    def weights_format(self, playbook: Playbook) -> str | None:
        """Implements ``Engine.weights_format``."""
        if not _mentions(playbook, "load", "format"):
            return None
        from sparkcluster.engines.vllm import arguments

        return arguments.weights_format(playbook)


def _mentions(playbook: Playbook, *parts: str) -> bool:
    words = (*playbook.args, *(playbook.command or ()))
    return any(part in word.lower() for word in words for part in parts)


ENGINE = Vllm()
