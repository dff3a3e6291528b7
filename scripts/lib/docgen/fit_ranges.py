"""Published KV caches compared with the range that ``fit`` predicts; a table of docs/internals/fit.md."""

from __future__ import annotations

import dataclasses
from typing import Any

from docgen import fit_page, fit_weights
from sparkcluster.fit.config import parse
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.source import GIB, Machine, spark
from sparkcluster.fit.verdict import Fit, fit
from sparkcluster.fit.weights import Weights, of_config

MINIMAX_ISSUE = "https://github.com/eugr/spark-vllm-docker/issues/396"
FLASH_ISSUE = "https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/issues/57"
RTX_5090 = Machine(32 * GIB, int(31.4 * GIB), 0)

# https://github.com/ai-dynamo/aiconfigurator, model_configs/MiniMaxAI--MiniMax-M2.7_config.json; its INT4 by
# https://huggingface.co/et0dev/MiniMax-M2.7-AWQ-4bit, which has the layout of cyankiwi's: all but router and output.
MINIMAX: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 1536,
    "num_local_experts": 256,
    "vocab_size": 200064,
    "max_position_embeddings": 204800,
    "tie_word_embeddings": False,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """A KV cache as vLLM logged it.

    Attributes:
        measured: in ``unit``.
        started: whether the engine started with it.
        found: the prediction of ``fit``.
    """

    what: str
    measured: float
    unit: str
    started: bool
    source: str
    found: Fit

    @property
    def predicted(self) -> tuple[float, float, float]:
        """The lower bound, the likely value and the upper bound, in the same unit."""
        pools = (self.found.least_bytes, self.found.pool_bytes, self.found.most_bytes)
        if self.unit == "GiB":
            least, likely, most = (pool / GIB for pool in pools)
        else:
            least, likely, most = (self.found.layout.tokens(max(0, pool)) for pool in pools)
        return least, likely, most

    @property
    def inside(self) -> bool:
        """Whether it is inside the range, and the verdict does not contradict the logged start."""
        least, _, most = self.predicted
        contradicts = "does not fit" if self.started else "fits"
        return least <= self.measured <= most and self.verdict != contradicts

    @property
    def verdict(self) -> str:
        """The verdict of ``fit``; none for a graphics card with separate memory, where no system memory is reserved."""
        return "not a Spark" if self.found.machine is RTX_5090 else self.found.verdict


def minimax(utilization: float, group: int = 32) -> Fit:
    """MiniMax-M2.7 in four bits on two Sparks, as eugr's recipe starts it."""
    weights = {"num_bits": 4, "type": "int", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    config = parse({**MINIMAX, "quantization_config": quantization}, "MiniMax-M2.7")
    engine = EngineSettings(196608, version=(0, 29, 1), ranks=2, loader="instanttensor")
    return fit(config, engine, of_config(config, ranks=2), spark(), utilization=utilization)


def dense(loaded_gib: float) -> Fit:
    """Qwen3.8-27B on two RTX 5090, with the weights that each of them loaded."""
    config = parse(fit_weights.config("unsloth/Qwen3.6-27B-NVFP4"), "Qwen3.8-27B")
    engine = EngineSettings(262144, version=(0, 26, 1), ranks=2, sequences=256, batched_tokens=2048, kv_dtype="fp8")
    loaded = Weights(int(loaded_gib * GIB), int(loaded_gib * GIB), counted=True)
    return fit(config, engine, loaded, RTX_5090, utilization=0.92)


def flash() -> Fit:
    """DeepSeek-V4-Flash on two Sparks; the batch was not published, so it is vLLM's default."""
    config = parse(fit_weights.config("deepseek-ai/DeepSeek-V4-Flash"), "DeepSeek-V4-Flash")
    engine = EngineSettings(500_000, version=(0, 28), ranks=2, sequences=4, kv_dtype="fp8", drafted=5, mtp_drafts=True)
    return fit(config, engine, of_config(config, ranks=2, drafts=True), spark(), utilization=0.88)


def pools() -> list[Pool]:
    """Every KV cache in the table."""
    guide, recipes = fit_weights.NVFP4_GUIDE, fit_weights.RECIPES
    rows = [
        Pool("MiniMax-M2.7 AWQ, two Sparks, 0.80", 22.5, "GiB", False, MINIMAX_ISSUE, minimax(0.80)),
        Pool("MiniMax-M2.7 AWQ, two Sparks, 0.85", 28.74, "GiB", True, MINIMAX_ISSUE, minimax(0.85)),
        Pool("MiniMax-M2.7 AWQ, two Sparks, 0.85", 240_816, "tokens", True, MINIMAX_ISSUE, minimax(0.85)),
        Pool("DeepSeek-V4-Flash with drafts, two Sparks, 0.88", 24.5, "GiB", True, FLASH_ISSUE, flash()),
        Pool("Qwen3.6-35B-A3B NVFP4, 0.85", 76.49, "GiB", True, fit_weights.GUIDE, fit_page.qwen(0.85)),
        Pool("Nemotron-3-Nano NVFP4, eager, 0.2", 4.2, "GiB", True, guide, fit_page.nemotron(0.2)),
        Pool("Nemotron-3-Nano NVFP4, 0.3", 15.9, "GiB", True, guide, fit_page.nemotron(0.3)),
        Pool("Nemotron-3-Nano NVFP4, 0.9", 89.4, "GiB", True, guide, fit_page.nemotron(0.9)),
    ]
    for name, loaded, tokens in (("FP8", 14.28, 377_456), ("NVFP4", 12.02, 445_875), ("NVFP4 and FP8", 10.64, 920_517)):
        rows.append(Pool(f"Qwen3.8-27B {name}, two RTX 5090", tokens, "tokens", True, recipes, dense(loaded)))
    return rows


def table() -> str:
    """The KV caches as Markdown."""
    lines = [
        "| what | published | vLLM | `fit` | range | verdict | inside? | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in pools():
        least, likely, most = (_number(value, each.unit) for value in each.predicted)
        inside = "yes" if each.inside else "NO"
        started = "started" if each.started else "did not start"
        cells = (
            each.what,
            f"{_number(each.measured, each.unit)} {each.unit}",
            started,
            likely,
            f"{least} to {most}",
            each.verdict,
            inside,
            each.source,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float, unit: str) -> str:
    return f"{value:,.2f}" if unit == "GiB" else f"{value:,.0f}"
