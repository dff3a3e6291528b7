"""TensorRT-LLM: ``trtllm-serve``, on one Spark.

Options, routes and log lines: tensorrt_llm/commands/serve.py, serve/openai_server.py and llmapi/llm_args.py of
https://github.com/NVIDIA/TensorRT-LLM, and a log of 1.1.0rc3 on a Spark (docs/internals/sources.md, "gpt-oss 120B on
TensorRT-LLM"). It was not run by the authors of this project, who have no Spark.

- The model is a directory, so the engine does not contact the hub.
- Its options file (``--extra_llm_api_options``) is a mapping in the playbook; the launcher writes it (``node.py``).
- It has no API key (https://github.com/NVIDIA/TensorRT-LLM/issues/9950).
- ``/metrics`` is JSON and is cleared when read; ``/prometheus/metrics`` exists only with ``return_perf_metrics``.
  sparkcluster does not read them.
- After SIGTERM, uvicorn finishes requests in flight without a time limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkcluster.engines.base import Engine, imported

if TYPE_CHECKING:
    from sparkcluster.spec.playbook import Playbook

_ONE = "one Spark in the inventory: sparkcluster runs TensorRT-LLM on one Spark only"
DRAIN_S = 60
"""60 s, as for vLLM: enough for 600 to 3000 tokens."""


class TensorRtLlm(Engine):
    """The interface to TensorRT-LLM's modules, which are imported when they are used."""

    name = "tensorrt-llm"
    title = "TensorRT-LLM"
    alone = "NVIDIA's guide connects two Sparks through sshd in containers, which receive your private keys"
    arguments = {
        "model": "model.id or model.path",
        "revision": "model.revision",
        "served-model-name": "served_name",
        "host": "api.host in the inventory",
        "port": "api.port in the inventory",
        "config": "extra-llm-api-options: its content, as a mapping",
        **dict.fromkeys(
            ("tensor-parallel-size", "pipeline-parallel-size", "context-parallel-size", "moe-expert-parallel-size"),
            _ONE,
        ),
        **dict.fromkeys(("gpus-per-node", "disagg-cluster-uri", "metadata-server-config-file", "server-role"), _ONE),
    }
    short_arguments = {
        "tp-size": _ONE,
        "pp-size": _ONE,
        "cp-size": _ONE,
        "ep-size": _ONE,
        "kv-cache-free-gpu-memory-fraction": "free-gpu-memory-fraction",
    }
    variables = dict.fromkeys(
        ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_RS_CACHE_DIR"), "remove it: the vocabulary of gpt-oss is staged"
    )
    common_arguments = {
        "context": "max-seq-len",
        "requests": "max-batch-size",
        "memory": "free-gpu-memory-fraction",
        "kv_type": "kv-cache-dtype",
        "batch": "max-num-tokens",
    }
    caches = {"flashinfer": "/root/.cache/flashinfer", "triton": "/root/.triton"}
    images = frozenset({"nvcr.io/nvidia/tensorrt-llm/release"})
    api_flags = {"host": "--host", "port": "--port", "model": "--served_model_name"}
    ready = "Application startup complete"
    memory_hint = (
        "lower max-num-tokens, max-batch-size or free-gpu-memory-fraction in the playbook, or write"
        " TRT_LLM_DISABLE_LOAD_WEIGHTS_IN_PARALLEL: 1 under env; or free the page cache on that node:"
        " sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    )
    checks = (f"{__name__}.rules",)

    serve = imported(".command_line", "serve")
    planned = imported(".command_line", "planned")
    vocabularies = imported("sparkcluster.engines.harmony", "vocabularies")
    beside_others = imported(".memory", "beside_others")
    forecast = imported(".memory", "forecast")
    known_arguments = imported(".flags", "known_arguments")
    tuning_arguments = imported(".flags", "tuning_arguments")
    tuning_variables = imported(".flags", "tuning_variables")
    api_features = imported(".api_features", "api_features")
    importer = imported(".importer", "IMPORTER")
    phases = imported(".signatures", "PHASES")
    footprint = imported(".signatures", "FOOTPRINT")
    signatures = imported(".signatures", "SIGNATURES")

    def drain_s(self, playbook: Playbook) -> int:  # noqa: ARG002 - the interface's
        """Implements ``Engine.drain_s``."""
        return DRAIN_S


ENGINE = TensorRtLlm()
