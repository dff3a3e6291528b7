"""vLLM, its images, and what it needs on a DGX Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.engines.base import Engine, Rank

if TYPE_CHECKING:
    from sparkcluster.engines.phase import Pattern
    from sparkcluster.engines.signature import Signature
    from sparkcluster.facts.model import Facts
    from sparkcluster.models.source import Machine, Source
    from sparkcluster.recipes.serve import Importer
    from sparkcluster.spec import Spec
    from sparkcluster.spec.playbook import Playbook
    from sparkcluster.topology.model import Member, Topology

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
        "hf-token": "secrets: [HF_TOKEN], which keeps it out of every command line",
        **dict.fromkeys(("nnodes", "node-rank", "master-addr", "master-port", "headless"), _GROUPS),
        "config": "the arguments themselves here",
    }
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
    counters = {
        "generated": ("vllm:generation_tokens_total",),
        "prompted": ("vllm:prompt_tokens_total",),
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the latter before 0.11
    }
    ready = "Application startup complete"
    stalled = r"No available shared memory broadcast block found in \d+ seconds"
    memory_hint = (
        "lower gpu-memory-utilization or max-model-len in the playbook, or free the page cache on that node:"
        " sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    )
    dead = r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)|died unexpectedly"

    def serve(self, rank: Rank) -> list[str]:
        """``vllm serve`` and its arguments."""
        from sparkcluster.engines.vllm import command_line

        return command_line.serve(rank)

    def environment(self, member: Member) -> dict[str, str]:
        """The node's address, and what a GB10 needs."""
        from sparkcluster.engines.vllm import environment

        return environment.build(member)

    def planned(self, spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:
        """``spec`` with a number for ``gpu-memory-utilization: auto``."""
        from sparkcluster.engines.vllm import utilization

        return utilization.planned(spec, facts, topology)

    def memory_share(self, playbook: Playbook, facts: Facts) -> float:
        """``gpu-memory-utilization``, or its default."""
        from sparkcluster.engines.vllm import arguments

        return arguments.claimed(playbook, (facts,))

    def forecast(
        self,
        playbook: Playbook,
        model: Source,
        machine: Machine,
        *,
        nodes: int = 1,
        context: int | None = None,
        wanted: int = 1,
    ) -> dict[str, Any]:
        """By its bookkeeping of the KV cache."""
        from sparkcluster.engines.vllm import memory

        planned = memory.of_playbook(playbook, model, machine, nodes=nodes, context=context, wanted=wanted)
        return memory.document(planned)

    def gone_argument(self, name: str) -> str | None:
        """Its replacement."""
        from sparkcluster.engines.vllm import flags

        return flags.GONE.get(name)

    @property
    def checks(self) -> Sequence[str]:
        """Its rules."""
        return (f"{__name__}.rules", f"{__name__}.fit_checks", f"{__name__}.symptoms")

    @property
    def importer(self) -> Importer:
        """``vllm serve`` lines, and the recipes of its community."""
        from sparkcluster.engines.vllm.importer import VllmImporter

        return VllmImporter()

    @property
    def reports(self) -> Mapping[str, str]:
        """Threads of vLLM and of its images for the Spark."""
        from sparkcluster.engines.vllm import reports

        return reports.REPORTS

    @property
    def phases(self) -> Sequence[Pattern]:
        """Its message templates."""
        from sparkcluster.engines.vllm import phases

        return phases.PATTERNS

    @property
    def signatures(self) -> Sequence[Signature]:
        """Those of its log, and of Ray, NCCL and CUDA."""
        from sparkcluster.engines.vllm import signatures

        return signatures.SIGNATURES

    def garbage_remedy(self, playbook: Playbook, lines: Sequence[str]) -> str | None:
        """Another kernel for the experts of four-bit weights."""
        from sparkcluster.engines.vllm import symptoms

        return symptoms.garbage_remedy(playbook, lines)

    @property
    def culprits(self) -> Sequence[re.Pattern[str]]:
        """Its executors name the worker that died."""
        from sparkcluster.engines.vllm import phases

        return phases.CULPRITS


ENGINE = Vllm()
