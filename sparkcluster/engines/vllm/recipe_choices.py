"""What a recipe of vllm-project/recipes leaves open for a Spark: checkpoint, nodes, strategy and features."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.recipes.shell import shown
from sparkcluster.recipes.structured import Fields, chosen

SPARK, GENERATION, BRAND = "dgx_spark_gb10", "blackwell", "nvidia"
_MEMORY_GB = 128
# Strategies that a playbook can have; those of data parallelism and of split prefill and decode it cannot.
_SINGLE = ("single_node_tp", "single_node_tep")
_MULTI = ("multi_node_tp", "multi_node_tep", "multi_node_tp_pp")


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What is imported of a recipe.

    Attributes:
        variant: key of the checkpoint.
        strategy: how it is spread over the nodes.
        nodes: how many Sparks.
        parallel: arguments that follow from strategy and nodes.
        features: keys of the features that are on, in the order of the recipe.
        modes: the variant's own mode of a feature, by the feature's key.
        notes: what was chosen, and by which ``--define`` it is chosen otherwise.
    """

    variant: str
    strategy: str
    nodes: int
    parallel: Sequence[str]
    features: Sequence[str]
    modes: Mapping[str, Any]
    notes: Sequence[str]


def choose(top: Fields, choices: Mapping[str, str]) -> Choice:
    """What the recipe says for a Spark, or ``choices`` by the names variant, nodes, strategy and features.

    Raises:
        SpecError: it is not for Sparks, or does not say; then with what there is to choose from.
    """
    notes: list[str] = []
    hardware = top.mapping("meta").mapping("hardware")
    if hardware.data.get(SPARK) == "unsupported":
        raise hardware.fault(SPARK, f"the recipe is marked as unsupported on {SPARK}", "write a playbook by hand")
    tasks = top.mapping("meta").texts("tasks")
    if "omni" in tasks or "omni" in top.data:
        raise top.fault(
            "omni", "the recipe is for vllm-omni, which generates images, sound or video", "vLLM alone is imported"
        )
    if SPARK not in hardware.data:
        notes.append(f"meta.hardware does not list {SPARK}: the recipe was not tested on a Spark")
    variant = _variant(top, choices)
    at = top.mapping("variants").mapping(variant)
    nodes = _nodes(at, choices)
    strategy = _strategy(top, choices, nodes)
    _floor(top, strategy, nodes)
    if strategy == "multi_node_tp_pp":
        parallel = ["--tensor-parallel-size", "1", "--pipeline-parallel-size", str(nodes)]
    else:
        parallel = ["--enable-expert-parallel"] if strategy.endswith("_tep") else []
        parallel += ["--tensor-parallel-size", str(nodes)]
    modes = at.mapping("default_modes").data
    on = _features(top, choices, strategy, modes)
    notes.append(f"variant {variant} of {', '.join(top.mapping('variants').data)} (--define variant=NAME)")
    notes.append(f"strategy {strategy} on {nodes} node{'' if nodes == 1 else 's'} (--define strategy=NAME, nodes=N)")
    off = [name for name in top.mapping("features").data if name not in on]
    if on or off:
        left = f", not {', '.join(off)}" if off else ""
        notes.append(f"features: {', '.join(on) or 'none'}{left} (--define features=NAME,NAME)")
    return Choice(variant, strategy, nodes, parallel, on, modes, [shown(note) for note in notes])


def keyed(at: Fields) -> list[str]:
    """The key of a map by hardware that holds for a Spark: its own, its generation's, its brand's, or ``default``."""
    return [key for key in (SPARK, GENERATION, BRAND, "default") if at.data.get(key) is not None][:1]


def _variant(top: Fields, choices: Mapping[str, str]) -> str:
    """The checkpoint: the only one that runs, the only one with settings for a Spark, or what the page opens on."""
    variants = top.mapping("variants")
    usable = [name for name in variants.data if _runs(variants.mapping(name))]
    if not usable:
        raise top.fault("variants", "no variant of the recipe runs on a Spark", "their supported_hardware names others")
    picked = chosen(top, "variant", usable, choices, "variants")
    if picked is not None:
        return picked
    tuned = [name for name in usable if SPARK in variants.mapping(name).mapping("hardware_overrides").data]
    if len(usable) == 1 or len(tuned) == 1:
        return (usable if len(usable) == 1 else tuned)[0]
    if "default" in usable and top.mapping("meta").data.get("default_hardware") == SPARK:
        return "default"
    listed = ", ".join(f"{name} ({_described(top, variants.mapping(name))})" for name in usable)
    message = f"the recipe has several variants for a Spark: {listed}"
    raise top.fault("variants", message, f"add --define variant={usable[0]}, or another of them")


def _described(top: Fields, variant: Fields) -> str:
    repository = variant.optional_text("model_id") or top.mapping("model").text("model_id")
    return shown(f"{repository}, {variant.data.get('precision')}, {variant.data.get('vram_minimum_gb')} GB")


def _runs(variant: Fields) -> bool:
    supported, needs = variant.texts("supported_hardware"), variant.mapping("precision_hardware").data
    fits = needs.get("brand", "NVIDIA") == "NVIDIA" and needs.get("generation", GENERATION) == GENERATION
    return fits and (not supported or SPARK in supported)


def _nodes(variant: Fields, choices: Mapping[str, str]) -> int:
    """How many Sparks: one where the checkpoint fits, else two, as the recipe's page has it; more is asked for."""
    written = choices.get("nodes")
    if written is not None:
        if not re.fullmatch(r"[0-9]{1,9}", written) or not 1 <= int(written) <= 64:
            raise variant.fault(
                "vram_minimum_gb", f"--define nodes={shown(written)}: must be a number from 1 to 64", None
            )
        return int(written)
    needed = variant.data.get("vram_minimum_gb") or 0
    if isinstance(needed, bool) or not isinstance(needed, int | float):
        raise variant.fault("vram_minimum_gb", "vram_minimum_gb must be a number", "write it in GB")
    if needed > 2 * _MEMORY_GB:
        message = f"the variant needs {needed} GB, and a Spark has {_MEMORY_GB}: how many Sparks is not said"
        raise variant.fault(
            "vram_minimum_gb", message, f"add --define nodes={2 ** (-(-int(needed) // _MEMORY_GB) - 1).bit_length()}"
        )
    return 1 if needed <= _MEMORY_GB else 2


def _strategy(top: Fields, choices: Mapping[str, str], nodes: int) -> str:
    gates, listed = top.mapping("strategy_hardware"), top.texts("compatible_strategies")

    def supported(name: str) -> bool:
        gate = gates.mapping(name)
        key = keyed(gate)
        return gate.data[key[0]] != "unsupported" if key else name in listed

    usable = [name for name in (_SINGLE if nodes == 1 else _MULTI) if supported(name)]
    if not usable:
        sparks = f"{nodes} Spark{'' if nodes == 1 else 's'}"
        message = f"the recipe has no strategy for {sparks}: it has {', '.join(listed) or 'none'}"
        hint = f"imported are {', '.join(_SINGLE)} on one Spark and {', '.join(_MULTI)} on several (--define nodes=N)"
        raise top.fault("compatible_strategies", message, hint)
    picked = chosen(top, "strategy", usable, choices, "compatible_strategies")
    if picked is not None:
        return picked
    preferred = top.optional_text("default_strategy") or ""
    if nodes > 1:
        preferred = preferred.replace("single_node_", "multi_node_")
    return preferred if preferred in usable else usable[0]


def _floor(top: Fields, strategy: str, nodes: int) -> None:
    """Refuse fewer GPUs than ``strategy_min_gpus`` says: one number, by strategy, or by hardware and then so."""

    def number(value: Any) -> int:
        value = value.get(strategy, 0) if isinstance(value, dict) else value
        return value if isinstance(value, int) else 0

    value = top.data.get("strategy_min_gpus")
    needed = max(number(value), number(value.get(SPARK)) if isinstance(value, dict) else 0)
    if needed > nodes:
        message = (
            f"the recipe needs {needed} GPUs for {strategy}, and {nodes} Spark{'' if nodes == 1 else 's'} have {nodes}"
        )
        raise top.fault("strategy_min_gpus", message, f"add --define nodes={needed}")


def _features(top: Fields, choices: Mapping[str, str], strategy: str, modes: Mapping[str, Any]) -> list[str]:
    """The features that are on: all but those to opt into, or as ``choices`` say."""
    features = top.mapping("features")
    optional = {*top.texts("opt_in_features"), *top.mapping("hardware_opt_in_features").texts(SPARK)} - set(modes)
    on = [name for name in features.data if name not in optional]
    if "features" in choices:
        named = [name.strip() for name in choices["features"].split(",")]
        on = [name for name in named if name not in {"", "none"}]
        for name in on:
            chosen(top, "features", list(features.data), {"features": name}, "features")
        on = [name for name in features.data if name in on]
    on += [name for name in features.data if name in choices and name not in on and "features" not in choices]
    return [name for name in features.data if name in on and _allowed(features.mapping(name), strategy)]


def _allowed(feature: Fields, strategy: str) -> bool:
    strategies, hardware = feature.texts("strategies"), feature.mapping("hardware").data
    unsupported = "unsupported" in (hardware.get(SPARK), hardware.get(GENERATION))
    return not unsupported and (not strategies or strategy in strategies)
