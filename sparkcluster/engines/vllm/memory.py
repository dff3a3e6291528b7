"""Whether a playbook fits a node: the same computation for ``fit``, checks and the plan.

If the version of vLLM is unknown, every possible version is computed. The version that needs the most memory is the
result; the range is reported with it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from sparkcluster.engines.vllm import arguments, family_flags, flags
from sparkcluster.engines.vllm.reported import of_engine
from sparkcluster.engines.vllm.versions import Versions, dotted
from sparkcluster.errors import UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import Weights as FoundWeights
from sparkcluster.fit import defaults, weights
from sparkcluster.fit.config import ModelConfig, parse
from sparkcluster.fit.defaults import Version
from sparkcluster.fit.safetensors import of_checkpoint
from sparkcluster.fit.source import Machine, Source
from sparkcluster.fit.verdict import VERDICTS, Fit, fit
from sparkcluster.fit.weights import Weights
from sparkcluster.spec.playbook import Playbook


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A playbook's memory on one node.

    Attributes:
        playbook: the playbook's name.
        versions: the versions that its engine may have.
        fit: result for the version that needs the most memory.
        best: result for the version that needs the least.
        auto: whether sparkcluster chose the utilization.
        left_out: what is not counted or unknown.
    """

    playbook: str
    config: ModelConfig
    versions: Versions
    fit: Fit
    best: Fit
    auto: bool
    left_out: tuple[str, ...] = ()


def of_playbook(
    written: Playbook,
    model: Source,
    machine: Machine,
    *,
    nodes: int = 1,
    facts: Iterable[Facts] = (),
    context: int | None = None,
    requests: int | None = 1,
    beside: Mapping[str, Source] | None = None,
) -> Planned:
    """The memory that a playbook needs on each of ``nodes``; for the arguments see ``Engine.forecast``.

    ``facts`` of its nodes may report the version of vLLM.

    Raises:
        UsageError: the model is unknown, or cannot be started like this.
    """
    config = parse(model.config, model.name)
    stages = written.pipeline_parallel
    if nodes % stages:
        raise UsageError(
            f"pipeline_parallel {stages} does not divide {nodes} nodes", hint="set --nodes to a multiple of it"
        )
    versions = of_engine(written.image, facts)
    ranks = nodes // stages
    args = arguments.Arguments(written)
    _, drafts = arguments.drafting(args)
    share: Weights
    if model.tensors is not None:
        share = weights.of_tensors(model.tensors, config, ranks=ranks, stages=stages, drafts=drafts)
    elif model.size_bytes:
        share = weights.of_size(model.size_bytes, ranks=ranks, stages=stages)
    else:
        share = weights.of_config(config, ranks=ranks, stages=stages, drafts=drafts)
    draft = arguments.drafter(written)
    size = _size(beside, draft)
    if size:
        share = _with_drafter(share, size, args, ranks)
    adapters = {name: _size(beside, name) for name in arguments.adapters(written)}
    share = dataclasses.replace(share, rank_bytes=share.rank_bytes + sum(adapters.values()))
    auto = arguments.wants_auto(written)
    requests = requests or (arguments.concurrent(written) if auto else 1)
    pool = arguments.pool_bytes(written)
    rope = config.text.values.get("rope_parameters") or config.text.values.get("rope_scaling")
    trained = arguments.trained_context(config.context, rope) if config.text.has("max_position_embeddings") else None
    longest, longer = _longest(args, config, trained, context)

    def fit_of(version: Version) -> Fit:
        engine = arguments.engine(written, config, version=version, ranks=ranks, stages=stages, context=context)
        taken = None if auto else arguments.utilization(written, version)
        fit_with = functools.partial(fit, config, utilization=taken, requests=requests, pool_bytes=pool)
        made = fit_with(engine, share, machine)
        if longest is None or engine.context <= longest:
            return made
        within = fit_with(dataclasses.replace(engine, context=longest), share, machine).advice
        shorter = any("max-model-len" in each for each in within)
        problem = f"{engine.context:,} tokens are more than the model's {longest:,}"
        advice = (*(() if shorter else (f"set max-model-len to {longest}",)), *within)
        return dataclasses.replace(made, problems=(*made.problems, problem), advice=advice)

    found = sorted(
        map(fit_of, versions.candidates),
        key=lambda fit_: (VERDICTS.index(fit_.verdict), -fit_.smallest, fit_.tokens),
    )
    left_out = []
    if not share.counted:
        left_out.append("weights are estimated from config.json; --config with a directory counts the tensors")
    if draft:
        what, verb = ("the cache", "is") if size else ("weights and cache", "are")
        left_out.append(f"{what} of the draft model {draft} {verb} not counted")
    left_out += [f"weights of the adapter {name} are not counted" for name, known in adapters.items() if not known]
    if any(adapters.values()):
        left_out.append("adapters are counted by their files, without what max-loras and max-lora-rank reserve")
    left_out += _uncertain(versions, found[0], found[-1])
    worst = dataclasses.replace(found[0], advice=(*found[0].advice, *longer, *_kernels(found[0], versions)))
    return Planned(written.name, config, versions, worst, found[-1], auto, tuple(left_out))


def _longest(
    args: arguments.Arguments, config: ModelConfig, trained: int | None, context: int | None
) -> tuple[int | None, list[str]]:
    """The longest context with which the engine starts, or None; and what to write for the maker's longer context.

    A ``context`` up to the maker's limit is computed even if the playbook lacks the variable for it.
    """
    limit = arguments.longest_context(args, trained)
    length = context or args.count("max-model-len", 0)
    family = family_flags.family(args.playbook.model.label, config.architecture)
    if limit is None or family is None or not limit < length <= (family.longest or 0):
        return limit, []
    return None if context else limit, [f"for {length:,} tokens write {arguments.LONG_MODELS} under env"]


def _kernels(fit_: Fit, versions: Versions) -> list[str]:
    """Advice for kernels that fall back, if the image may have the argument."""
    backend = flags.find("moe-backend")
    if not fit_.engine.falls_back or backend is None or flags.has(backend, versions) is False:
        return []
    return ["set moe-backend to marlin: FlashInfer's FP4 kernels fail on this GPU and take 7 GB more"]


def _size(beside: Mapping[str, Source] | None, name: str | None) -> int:
    """Bytes of the weights of the repository ``name``; 0 if unknown."""
    found = (beside or {}).get(str(name))
    return found.weights_bytes if found else 0


def _with_drafter(share: Weights, size: int, args: arguments.Arguments, ranks: int) -> Weights:
    """The weights of a rank with its share of the drafter, split like the model unless the playbook sets it."""
    written = args.draft.get("draft_tensor_parallel_size")
    parts = written if type(written) is int and 0 < written <= ranks else ranks
    return dataclasses.replace(share, rank_bytes=share.rank_bytes - (-size // parts))


def _uncertain(versions: Versions, worst: Fit, best: Fit) -> list[str]:
    """Notes on a version that is unknown or inexact."""
    if versions.exact is not None:
        newer = versions.exact[:2] > defaults.NEWEST[:2]
        return [f"{versions} is newer than {dotted(defaults.NEWEST)}, and is computed like it"] if newer else []
    computed = f"the image has {versions}: computed for {dotted(worst.engine.version)}, which needs the most memory"
    if best.verdict == "fits" != worst.verdict:
        return [f"{computed}; with {dotted(best.engine.version)} it fits, with {best.tokens:,} tokens of KV cache"]
    same = best.tokens == worst.tokens
    return [computed if same else f"{computed}; up to {best.tokens:,} tokens of KV cache with other versions"]


def forecast(playbook: Playbook, model: Source, machine: Machine, **options: Any) -> dict[str, Any]:
    """Implements ``Engine.forecast``; all sizes are bytes on one node."""
    planned = of_playbook(playbook, model, machine, **options)
    fit, config = planned.fit, planned.config
    return {
        "playbook": planned.playbook,
        "model": config.name,
        "architecture": config.architecture,
        "quantization": config.quantization.kind,
        "fits": {"fits": True, "does not fit": False}.get(fit.verdict),
        "verdict": fit.verdict,
        "problems": list(fit.problems),
        "doubts": list(fit.doubts),
        "advice": list(fit.advice),
        "not_counted": list(planned.left_out),
        "nodes": fit.engine.ranks * fit.engine.stages,
        "tensor_parallel": fit.engine.ranks,
        "pipeline_parallel": fit.engine.stages,
        "vllm_version": dotted(fit.engine.version[:2]),
        "vllm_version_is_known": planned.versions.exact is not None,
        "context": fit.engine.context,
        "concurrency_wanted": fit.requests,
        "gpu_memory_utilization": None if fit.fixed else fit.utilization,
        "gpu_memory_utilization_is_auto": planned.auto,
        "smallest_gpu_memory_utilization": None if fit.fixed else fit.smallest,
        "safe_gpu_memory_utilization": None if fit.fixed else fit.safe,
        "kv_cache": {
            "set_by": fit.size_key if fit.fixed else "gpu-memory-utilization",
            "bytes_wanted": fit.layout.bytes_for(fit.requests),
            "tokens": fit.tokens,
            "tokens_most": planned.best.layout.tokens(max(0, planned.best.most_bytes)),
            "concurrency": round(fit.concurrency, 2),
            "bytes": max(0, fit.pool_bytes),
            "bytes_least": max(0, fit.least_bytes),
            "bytes_most": max(0, planned.best.most_bytes),
            "tokens_least": fit.layout.tokens(max(0, fit.least_bytes)),
            "bytes_per_request": fit.layout.request_bytes,
            "bytes_per_token": round(fit.layout.token_bytes, 1),
            "block_bytes": fit.layout.block_bytes,
            "groups": [
                {"kind": page.kind, "layers": count, "block_tokens": page.block, "page_bytes": page.size_bytes}
                for page, count in fit.layout.groups
            ],
        },
        "memory": {
            "installed_bytes": fit.machine.installed_bytes,
            "visible_bytes": fit.machine.visible_bytes,
            "budget_bytes": fit.budget_bytes,
            "weights_bytes": fit.weights.rank_bytes,
            "weights_counted": fit.weights.counted,
            "checkpoint_bytes": fit.weights.total_bytes,
            "runtime_bytes": fit.runtime_bytes,
            "engine_host_bytes": fit.host_bytes,
            "left_for_system_bytes": fit.left_bytes,
            "system_needs_bytes": fit.machine.system_bytes,
        },
    }


def source(name: str, weights: FoundWeights) -> Source:
    """The model on a node, with the size of its tensors only."""
    sizes = {file.name: file.size_bytes for file in weights.files}
    files = of_checkpoint(sizes) or [file for file in sizes if file.endswith((".bin", ".pt")) and "/" not in file]
    return Source(name, weights.config, size_bytes=sum(sizes[file] for file in files))


def beside(node: Facts) -> dict[str, Source]:
    """The companion repositories that are complete on ``node``, by name."""
    found = read(node.companions) or {}
    return {name: source(name, weights) for name, weights in found.items() if weights.complete}
