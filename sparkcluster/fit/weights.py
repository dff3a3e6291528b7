"""Bytes of weights per rank, from a checkpoint's tensors or, if they are unknown, from its config.

Sharding and replication follow ``model_executor/layers/linear.py``, ``vocab_parallel_embedding.py`` (vocabulary
padded to a multiple of 64) and the models' use of ReplicatedLinear.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from sparkcluster.errors import UsageError
from sparkcluster.fit.config import DTYPE_BYTES, ModelConfig
from sparkcluster.fit.modules import modules
from sparkcluster.fit.quantization import PLAIN
from sparkcluster.fit.safetensors import Tensor

VOCABULARY_UNIT = 64

_WHOLE = re.compile(
    r"norm|(^|\.)(router|gate)\.(weight|bias|e_score_correction_bias)$|e_score_correction_bias|shared_expert_gate"
    r"|kv_a_proj_with_mqa|q_a_proj|fused_qkv_a_proj|input_scale|weight_scale_2|weight_global_scale|input_global_scale"
    r"|rotary_emb|pos_embed|patch_embed|position_embedding|(^|\.)(indexer|compressor)\.|index_k_proj|\.(wq_a|wkv)\."
)
_VOCABULARY = re.compile(r"(embed_tokens|embed_in|wte|embeddings?|lm_head|output_layer)\.weight$")
_KEYS_VALUES = re.compile(r"\.(k_proj|v_proj|key|value)\.")
_DRAFT = re.compile(r"(^|\.)(mtp|nextn_predict_layers)\.|(^|\.)mtp_")
_LAYER = re.compile(r"(^|\.)layers\.(\d+)\.")


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one rank.

    Attributes:
        rank_bytes: bytes on the rank with the most.
        total_bytes: size of the checkpoint, known or estimated.
        counted: whether they are counted from tensors, rather than estimated from the config.
    """

    rank_bytes: int
    total_bytes: int
    counted: bool


def of_tensors(
    tensors: Iterable[Tensor], config: ModelConfig, *, ranks: int = 1, stages: int = 1, drafts: bool = False
) -> Weights:
    """Weights of one rank from a checkpoint's tensors; with ``drafts``, including multi-token-prediction layers.

    Pipeline stages have equal shares of the layers; the first and last have half of the other tensors each.
    """
    total, layers, beside = 0, 0.0, 0.0
    for tensor in tensors:
        total += tensor.size_bytes
        if not drafts and _is_draft(tensor.name, config):
            continue
        if config.tied and tensor.name.endswith("lm_head.weight"):
            continue
        share = tensor.size_bytes * _share(tensor, config, ranks)
        if _LAYER.search(tensor.name) and "vis" not in tensor.name:
            layers += share
        else:
            beside += share
    rank = layers / stages + (beside if stages == 1 else beside / 2)
    return Weights(round(rank), total, counted=True)


def of_size(total_bytes: int, *, ranks: int = 1, stages: int = 1) -> Weights:
    """Weights of one rank of a checkpoint of which only the size is known."""
    return Weights(-(-total_bytes // (ranks * stages)), total_bytes, counted=True)


def of_config(config: ModelConfig, *, ranks: int = 1, stages: int = 1, drafts: bool = False) -> Weights:
    """Weights of one rank, estimated from the config; docs/fit.md has the deviations.

    Raises:
        UsageError: the format of some weights is unknown.
    """
    rules = config.quantization.rules()
    plain = 8 * DTYPE_BYTES[config.dtype]
    tensors = []
    for module in modules(config):
        bits = rules.bits(module.name)
        if bits is None:
            method = config.quantization.method or "of its quantization_config"
            raise UsageError(
                f"the size of the weights of {config.name} is unknown: "
                f"config.json does not specify how {method} stores {module.name}",
                hint="pass the model's directory to --config, to count its tensors",
            )
        numbers = module.rows * module.columns * module.count
        size = round(numbers * (plain if bits == PLAIN else bits) / 8)
        tensors.append(Tensor(f"{module.name}.weight", "", (module.rows, module.columns), size))
    return dataclasses.replace(of_tensors(tensors, config, ranks=ranks, stages=stages, drafts=drafts), counted=False)


def _is_draft(name: str, config: ModelConfig) -> bool:
    if _DRAFT.search(name):
        return True
    layer = _LAYER.search(name)
    return layer is not None and "vis" not in name and int(layer[2][:6]) >= config.shape.layers


def _share(tensor: Tensor, config: ModelConfig, ranks: int) -> float:
    """The share of a tensor on one rank."""
    if ranks == 1:
        return 1.0
    if _VOCABULARY.search(tensor.name) and tensor.shape and tensor.shape[0] >= VOCABULARY_UNIT:
        padded = -(-tensor.shape[0] // VOCABULARY_UNIT) * VOCABULARY_UNIT
        return padded / tensor.shape[0] / ranks
    if len(tensor.shape) == 0 or tensor.shape == (1,) or _WHOLE.search(tensor.name):
        return 1.0
    heads = config.kv_heads
    if heads is not None and _KEYS_VALUES.search(tensor.name):
        return max(1, heads // ranks) / heads
    return 1 / ranks
