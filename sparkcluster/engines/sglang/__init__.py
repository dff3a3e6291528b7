"""SGLang: ``sglang.launch_server``, on one Spark or with a rank on each of several.

Names of arguments, metrics and log lines: SGLang 0.5.23, compared with 0.5.5, 0.5.9 and 0.5.15, which guides for Sparks
use. The modules name the files below ``sglang/srt``.

- Every rank runs the same command with its number. Ranks connect to the head (``--dist-init-addr``), without Ray. In
  addition to NCCL and Gloo, SGLang has its own queue between ranks, which advertises ``SGLANG_HOST_IP``.
- SGLang reads its key from the command line or from a file, which ``node.py`` writes. It logs its arguments with the
  key; the programs on a node remove the key from log lines that they read.
- After SIGTERM rank 0 finishes its requests, and then ends all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkcluster.engines.base import Engine, imported

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sparkcluster.engines.base import Member, ModelKind
    from sparkcluster.spec.playbook import Playbook

WATCHDOG, WATCHDOG_S, WARMUP_S = "watchdog-timeout", 300, 600
"""Limits during which a Spark may compile kernels for minutes (sgl-project/sglang#13243).

- ``WATCHDOG``: the argument that limits one step; ``WATCHDOG_S``: its default, in seconds.
- ``WARMUP_S``: default of the variable ``SGLANG_WARMUP_TIMEOUT``, which limits the first request, in seconds.
"""
DRAIN_S = 60
"""The same as for vLLM. SGLang itself sets no limit: it finishes all requests in flight (``sigterm_watchdog``)."""


class Sglang(Engine):
    """The interface to SGLang's modules, which are imported when they are used."""

    name = "sglang"
    title = "SGLang"
    api_key = "SGLANG_API_KEY"
    executors = frozenset({"native"})
    per_node = frozenset({"SGLANG_HOST_IP"})
    caches = {"sglang": "/root/.cache/sglang", "triton": "/root/.triton", "flashinfer": "/root/.cache/flashinfer"}
    images = frozenset({"lmsysorg/sglang", "nvcr.io/nvidia/sglang", "scitrera/dgx-spark-sglang"})
    ready = "The server is fired up and ready to roll!"
    dead = (
        r"Received sigquit from a child|SIGQUIT received\.|Scheduler hit an exception"
        r"|[Ww]atchdog timeout \((?!.*soft=True)"
    )
    memory_hint = (
        "lower mem-fraction-static, context-length or max-running-requests in the playbook; or free the page cache on"
        " that node: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    )
    checks = (f"{__name__}.checks",)

    serve = imported(".command_line", "serve")
    planned = imported(".planned", "planned")
    memory_share = imported(".memory", "memory_share")
    takes_share = imported(".memory", "takes_share")
    beside_others = imported(".planned", "beside_others")
    forecast = imported(".memory", "forecast")
    repositories = imported(".flags", "repositories")
    vocabularies = imported("sparkcluster.engines.harmony", "vocabularies")
    weights_format = imported(".flags", "weights_format")
    arguments = imported(".flags", "OWNERS")
    variables = imported(".flags", "VARIABLES")
    short_arguments = imported(".flags", "SHORT")
    known_arguments = imported(".flags", "known_arguments")
    tuning_arguments = imported(".flags", "tuning_arguments")
    tuning_variables = imported(".flags", "tuning_variables")
    common_arguments = imported(".flags", "COMMON")
    gone_argument = imported(".flags", "GONE.get")
    importer = imported(".importer", "IMPORTER")
    api_features = imported(".api_features", "api_features")
    counters = imported(".signatures", "COUNTERS")
    statistics = imported(".signatures", "STATISTICS")
    phases = imported(".signatures", "PHASES")
    footprint = imported(".signatures", "FOOTPRINT")
    signatures = imported(".signatures", "SIGNATURES")

    def kind(self, args: Mapping[str, Any]) -> ModelKind:
        """Implements ``Engine.kind``."""
        return "embeddings" if args.get("is-embedding") else "chat"

    def environment(self, member: Member, playbook: Playbook) -> dict[str, str]:
        """Implements ``Engine.environment``.

        The queue between ranks advertises ``SGLANG_HOST_IP``. Without it, SGLang may choose the address of the Wi-Fi,
        and both ranks wait for each other forever (MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#3).
        """
        warmup_s = str(max(WARMUP_S, int(playbook.ready_timeout_s)))
        return {"SGLANG_HOST_IP": member.address, "SGLANG_WARMUP_TIMEOUT": warmup_s}

    def drain_s(self, playbook: Playbook) -> int:  # noqa: ARG002 - the interface's
        """Implements ``Engine.drain_s``."""
        return DRAIN_S


ENGINE = Sglang()
