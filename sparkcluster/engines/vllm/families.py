"""Families of models, and how publishers store weights, as far as it decides about flags.

Nothing here was measured by sparkcluster; where a node has the model, its config.json counts and not this.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from sparkcluster.engines.vllm.versions import Version

Reasoning = Literal["always", "asked", "never"]
"""Whether a model thinks before it answers: unless told not to, only when told to, or not at all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A family of models, as far as it decides about flags.

    Attributes:
        name: as people call it.
        ids: regular expression for the end of its repositories, in lower case.
        architectures: classes that config.json names.
        moe: whether it is a mixture of experts; None where its members differ, and the name has the active share.
        hybrid: whether attention is mixed with linear or Mamba layers.
        mamba: whether some are Mamba layers.
        reasoning: None where its members differ or it is not known.
        tools: parsers for its tool calls, the usual one first; empty where it is not known.
        thoughts: parsers for its reasoning, likewise.
        context: tokens that it was trained for.
        tensor_one: whether it cannot be divided among ranks.
        needs: vLLM that knows it, or None.
    """

    name: str
    ids: str
    architectures: tuple[str, ...] = ()
    moe: bool | None = None
    hybrid: bool = False
    mamba: bool = False
    reasoning: Reasoning | None = None
    tools: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    context: int | None = None
    tensor_one: bool = False
    needs: Version | None = None


# Parsers: the guide, each model's card, and vLLM's own lists (docs.vllm.ai, "Tool Calling" and "Reasoning Outputs").
# The first that fits counts, so the special stand before the general.
MODELS: tuple[Model, ...] = (
    Model(
        "Nemotron 3 Nano Omni", r"nemotron-?3-nano-omni", ("NemotronH_Nano_Omni_Reasoning_V3",), True, True, True,
        "always", ("qwen3_coder",), ("nemotron_v3",), 262144, needs=(0, 20),
    ),
    Model(
        "Nemotron 3 Nano", r"nemotron-?3-nano", (), True, True, True,
        "always", ("qwen3_coder",), ("nano_v3", "nemotron_v3"), 262144,
    ),
    Model(
        "Nemotron 3", r"nemotron-?3(\.\d)?-(super|ultra)", ("NemotronHForCausalLM",), True, True, True,
        "always", ("qwen3_coder",), ("nemotron_v3", "super_v3"),
    ),
    Model(
        "Qwen3-Coder-Next", r"qwen3-coder-next", (), True, True, False,
        "never", ("qwen3_coder", "qwen3_xml"), (), 262144,
    ),
    Model("Qwen3-Next", r"qwen3-next", ("Qwen3NextForCausalLM",), True, True, False, None, (), (), 262144),
    Model("Qwen3-Coder", r"qwen3-coder", (), True, False, False, "never", ("qwen3_coder", "qwen3_xml"), (), 262144),
    Model(
        "Qwen3.5", r"qwen-?3\.5", (), None, True, False,
        "always", ("qwen3_coder", "qwen3_xml"), ("qwen3",), 262144,
    ),
    Model(
        "Qwen3.6", r"qwen-?3\.[6-9]", ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"),
        None, True, False, "always", ("qwen3_xml", "qwen3_coder"), ("qwen3",), 262144,
    ),
    Model(
        "Qwen3 Thinking", r"qwen3-.*-thinking-2507", (), None, False, False,
        "always", ("hermes",), ("qwen3", "deepseek_r1"), 262144,
    ),
    Model("Qwen3 Instruct", r"qwen3-.*-instruct-2507", (), None, False, False, "never", ("hermes",), (), 262144),
    Model(
        "Qwen3", r"qwen3-(\d+(\.\d+)?b)(-a\d+b)?(?!.*(instruct|embedding|reranker))",
        ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"), None, False, False,
        None, ("hermes",), ("qwen3", "deepseek_r1"), 40960,
    ),
    Model(
        "Gemma 4 26B-A4B", r"gemma-?4-26b-a4b", (), True, False, False,
        "asked", ("pythonic",), ("gemma4",), 262144, tensor_one=True, needs=(0, 19),
    ),
    Model(
        "Gemma 4 12B Coder", r"gemma-?4-(12b-)?coder", ("Gemma4UnifiedForConditionalGeneration",), False, False, False,
        "asked", ("gemma4",), ("gemma4",), needs=(0, 20),
    ),
    Model(
        "Gemma 4", r"gemma-?4-", ("Gemma4ForConditionalGeneration",), None, False, False,
        "asked", ("gemma4",), ("gemma4",), 262144, needs=(0, 19),
    ),
    Model(
        "gpt-oss", r"gpt-oss", ("GptOssForCausalLM",), True, False, False,
        "always", ("openai",), ("openai_gptoss",), 131072,
    ),
    Model("DeepSeek-R1", r"deepseek-r1", (), None, False, False, "always", ("deepseek_v3",), ("deepseek_r1",)),
    Model("DeepSeek-V3.1", r"deepseek-v3\.1", (), True, False, False, "asked", ("deepseek_v31",), ("deepseek_v3",)),
    Model("DeepSeek-V3.2", r"deepseek-v3\.2", (), True, False, False, "asked", ("deepseek_v32",), ("deepseek_v3",)),
    Model("GLM 4", r"glm-4\.[5-9]", ("Glm4MoeForCausalLM",), True, False, False, "always", ("glm45", "glm47"),
          ("glm45", "glm47")),
    Model("Kimi K2", r"kimi-k2", (), True, False, False, None, ("kimi_k2",), ("kimi_k2",)),
    Model("MiniMax M2", r"minimax-m2", ("MiniMaxM2ForCausalLM",), True, False, False, "always", ("minimax_m2",),
          ("minimax_m2", "minimax_m2_append_think")),
    Model("Laguna", r"laguna-", ("LagunaForCausalLM",), True, False, False, None, ("poolside_v1",), ("poolside_v1",)),
    Model("Llama 4", r"llama-4", ("Llama4ForConditionalGeneration",), True, False, False, "never",
          ("llama4_pythonic", "llama4_json")),
    Model("Llama 3", r"llama-3", (), False, False, False, None, ("llama3_json",)),
    Model("Mistral", r"(mistral|devstral|ministral)-", (), None, False, False, None, ("mistral",)),
)  # fmt: skip

Kind = Literal["modelopt", "compressed-tensors", "mxfp4", "fp8", "gptq", "awq", "bf16"]

# What publishers call their repositories, where config.json was not read: organisation, rest, kind.
KINDS: tuple[tuple[str, str, Kind], ...] = (
    (r"openai", r"gpt-oss-\d+b", "mxfp4"),
    (r"nvidia", r".*(nvfp4|fp8|fp4).*", "modelopt"),
    (r"bg-digitalservices", r"gemma-4-26b-a4b-it-nvfp4", "modelopt"),
    (r"(redhatai|neuralmagic)", r".*(nvfp4|fp8|w4a16|w8a8).*", "compressed-tensors"),
    (r"(unsloth|sakamakismile|llm-compressor)", r".*nvfp4.*", "compressed-tensors"),
    (r"(qwen|deepseek-ai|minimaxai|zai-org)", r".*-fp8(-dynamic)?", "fp8"),
    (r".*", r".*gptq.*", "gptq"),
    (r".*", r".*awq.*", "awq"),
    (r".*", r".*-bf16", "bf16"),
    (
        r"(qwen|google|meta-llama|mistralai|poolside)",
        r"(?!.*(nvfp4|fp8|fp4|int4|int8|gptq|awq|gguf|mxfp4|bnb|nf4|quant|w4a|w8a)).*",
        "bf16",
    ),
)

# The same quantisation under the names that --quantization takes.
NAMES: dict[str, frozenset[str]] = {
    "modelopt": frozenset({"modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"}),
    "compressed-tensors": frozenset({"compressed-tensors"}),
    "mxfp4": frozenset({"mxfp4", "gpt_oss_mxfp4"}),
    "fp8": frozenset({"fp8"}),
    "gptq": frozenset({"gptq", "gptq_marlin"}),
    "awq": frozenset({"awq", "awq_marlin"}),
}


def family(name: str, architecture: str | None) -> Model | None:
    """The family of ``name``, a repository or a directory; else the one that has ``architecture``.

    One class serves models that were trained for contexts of different lengths, so by class alone none is told.
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    named = (one for one in MODELS if re.search(one.ids, last))
    alike = (dataclasses.replace(one, context=None) for one in MODELS if architecture in one.architectures)
    return next(named, None) or next(alike, None)


def kind(name: str) -> Kind | None:
    """How the weights of repository ``name`` are stored, as its publisher names them."""
    organisation, slash, rest = name.lower().partition("/")
    if not slash:
        return None
    return next((one for who, what, one in KINDS if re.fullmatch(who, organisation) and re.fullmatch(what, rest)), None)
