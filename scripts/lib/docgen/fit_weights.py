"""Published sizes of checkpoints, and the estimates from config.json alone; a table of docs/internals/fit.md."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from sparkcluster.fit.config import parse
from sparkcluster.fit.shipped import DIRECTORY, recorded
from sparkcluster.fit.source import GIB
from sparkcluster.fit.weights import of_config

WITHIN = 0.05

RECIPES = "https://github.com/vllm-project/recipes/pull/810"
FORUM = "https://forums.developer.nvidia.com/t/qwen3-5-122b-a10b-nvfp4-quantized-for-dgx-spark-234gb-75gb-runs-on-128gb/361819/29"
KUBIS = "https://kubis.ai/blog/dgx_series/benchmarks/nemotron3-super-120b-topology-benchmark"
VLLM_CPP = "https://github.com/mudler/vllm.cpp (notes on the tensors of snapshot 890bdef7)"
GUIDE = "https://vlaicu.io/posts/dgx-vllm-playbook/"
NVFP4_GUIDE = "github.com/Sggin1/DGX-SPARK, nvfp4-guide"
MUNINN = "https://www.ai-muninn.com/en/blog/dgx-spark-gemma4-31b-dense-7-toks"
NVFP4_27B = "https://thakicloud.github.io/en/llmops/qwen3-6-27b-nvfp4-vllm-blackwell/"
BF16_122B = "https://huggingface.co/nota-ai/Qwen3.5-122B-A10B-NotaCompression-INT4"
GPT_OSS = "https://arxiv.org/abs/2508.10925, table 1"
STITCH = "https://github.com/modal-projects/stitch/pull/81"
GLM_5 = "https://glennklockwood.com/garden/GLM-5 (744B parameters, by the report of its makers)"
KIMI = "https://simonwillison.net/2025/Nov/6/kimi-k2-thinking/"
V4_FLASH = "https://www.localainews.co/news/llm/deepseek-v4-flash-debuts-with-one-million-token-capacity/"


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """The published size of a checkpoint.

    Attributes:
        size: in ``unit``.
        config: the keys of config.json that ``fit`` reads.
        ranks: number of ranks that share the size.
        drafts: whether its multi-token-prediction layers are in the size.
    """

    model: str
    size: float
    unit: str
    source: str
    config: dict[str, Any]
    ranks: int = 1
    drafts: bool = False

    @property
    def estimated(self) -> float:
        """The estimate of ``fit``, in the same unit."""
        weights = of_config(parse(self.config, self.model), ranks=self.ranks, drafts=self.drafts)
        return weights.rank_bytes / (GIB if self.unit == "GiB" else 1e9)

    @property
    def error(self) -> float:
        """Relative error of the estimate."""
        return (self.estimated - self.size) / self.size


def config(repository: str) -> dict[str, Any]:
    """The recorded keys of config.json of ``repository`` that ``fit`` reads; the file names its source."""
    found = recorded(repository)
    if found is None or found.config is None:
        raise LookupError(repository)
    return dict(found.config)


def _quantized(repository: str, quantization: dict[str, Any] | None) -> dict[str, Any]:
    found = {key: value for key, value in config(repository).items() if key != "quantization_config"}
    return found if quantization is None else {**found, "quantization_config": quantization}


def _autoround() -> dict[str, Any]:
    """Intel's INT4 of Qwen3.5-122B: groups of 128; shared layers and small projections are not quantized."""
    plain = (
        "mlp.shared_expert.*",
        "mlp.gate",
        "mlp.shared_expert_gate",
        "linear_attn.in_proj_a",
        "linear_attn.in_proj_b",
    )
    return {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "packing_format": "auto_round:auto_gptq",
        "block_name_to_quantize": "model.language_model.layers",
        "extra_config": {f"*.{name}": {"bits": 16, "data_type": "fp"} for name in plain},
    }


def _modelopt_27b() -> dict[str, Any]:
    """nvidia/Qwen3.6-27B-NVFP4: feed-forward and output layers of four bits, attention of eight."""
    layers = {"lm_head": "W4A16_NVFP4", "*.mlp.*": "W4A16_NVFP4", "*.self_attn.*_proj": "FP8"}
    layers |= {f"*.linear_attn.{name}": "FP8" for name in ("in_proj_qkv", "in_proj_z", "out_proj")}
    quantized = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": quantized,
        "ignore": ["mtp*"],
    }


def published() -> list[Published]:
    """Every size in the table."""
    dense, large = "unsloth/Qwen3.6-27B-NVFP4", "RedHatAI/Qwen3.5-122B-A10B-NVFP4"
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    super_, small = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvidia/Qwen3.6-35B-A3B-NVFP4"
    nano = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"
    return [
        Published("Nemotron-3-Super-120B-A12B NVFP4", 69.5, "GiB", KUBIS, config(super_)),
        Published("Qwen3.5-122B-A10B INT4 (auto-round)", 62.65, "GiB", FORUM, _quantized(large, _autoround())),
        Published("Qwen3.5-122B-A10B BF16", 250.17, "GB", BF16_122B, _quantized(large, None), drafts=True),
        Published("Qwen3.6-27B NVFP4 by Unsloth", 24.57, "GiB", VLLM_CPP, config(dense), drafts=True),
        Published("Qwen3.6-27B NVFP4 by NVIDIA", 22, "GB", NVFP4_27B, _quantized(dense, _modelopt_27b()), drafts=True),
        Published(
            "Qwen3.8-27B FP8, each of two ranks", 14.28, "GiB", RECIPES, _quantized(dense, fp8), ranks=2, drafts=True
        ),
        Published("gpt-oss-20b MXFP4", 12.8, "GiB", GPT_OSS, config("openai/gpt-oss-20b")),
        Published("gpt-oss-120b MXFP4", 60.8, "GiB", GPT_OSS, config("openai/gpt-oss-120b")),
        Published("Qwen3.6-35B-A3B NVFP4 by NVIDIA", 21.94, "GiB", GUIDE, config(small), drafts=True),
        Published("Gemma-4-31B-IT NVFP4 by NVIDIA", 31, "GB", MUNINN, config("nvidia/Gemma-4-31B-IT-NVFP4")),
        Published("Nemotron-3-Nano-30B-A3B NVFP4", 19, "GB", NVFP4_GUIDE, config(nano)),
        Published("GLM-5.2 NVFP4 by NVIDIA", 464.8, "GB", STITCH, config("nvidia/GLM-5.2-NVFP4"), drafts=True),
        Published("GLM-5 BF16", 1488, "GB", GLM_5, config("zai-org/GLM-5")),
        Published("Kimi K2 FP8", 1030, "GB", KIMI, config("moonshotai/Kimi-K2-Instruct")),
        Published("Kimi K2 Thinking INT4", 594, "GB", KIMI, config("moonshotai/Kimi-K2.5")["text_config"]),
        Published("DeepSeek-V4-Flash", 160, "GB", V4_FLASH, config("deepseek-ai/DeepSeek-V4-Flash"), drafts=True),
    ]


def table() -> str:
    """The sizes as Markdown."""
    lines = ["| model | published | `fit` | off by | inside 5 %? | source |", "|---|---|---|---|---|---|"]
    for each in published():
        inside = "yes" if abs(each.error) <= WITHIN else "NO"
        lines.append(
            f"| {each.model} | {each.size:g} {each.unit} | {each.estimated:.2f} {each.unit} "
            f"| {each.error:+.1%} | {inside} | {each.source} |"
        )
    return "\n".join(lines)


def recorded_table() -> str:
    """The table of recorded models, as Markdown."""
    lines = ["| model | commit | weights | source |", "|---|---|---|---|"]
    for path in sorted(DIRECTORY.iterdir(), key=lambda path: path.name.lower()):
        name = json.loads(path.read_text(encoding="utf-8"))["repository"]
        model = recorded(name)
        if model is None or model.config is None:
            lines.append(f"| {name} | | not recorded | {model.note if model else ''} |")
            continue
        weights = "estimated from the configuration"
        if model.tensors is not None:
            weights = f"{sum(tensor.size_bytes for tensor in model.tensors) / 1e9:.4g} GB, by tensor"
        elif model.size_bytes is not None:
            weights = f"{model.size_bytes / 1e9:.4g} GB, as published"
        commit = (model.revision or "not named")[:12]
        sources = ", ".join(model.recorded)
        lines.append(f"| {name} | {commit} | {weights} | {sources} |")
    return "\n".join(lines)
