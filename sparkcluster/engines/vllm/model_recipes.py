"""Recipes of vllm-project/recipes (``models/ORG/MODEL.yaml``), for DGX Sparks.

Such a recipe is no command but layers of arguments by checkpoint, strategy, hardware and feature. Which of them
apply, and in which order, follows src/lib/command-synthesis.js and scripts/build-recipes-api.mjs of https://github.com/vllm-project/recipes
at 8959cf6. A Spark is its profile ``dgx_spark_gb10``, of generation ``blackwell`` and brand ``nvidia`` (taxonomy.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkcluster.engines.vllm.recipe_choices import BRAND, GENERATION, SPARK, Choice, choose, keyed
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.serve import Command, Importer, name_of, playbook
from sparkcluster.recipes.shell import shown
from sparkcluster.recipes.structured import Fields, Format, Read, named, short

_INFORMATIONAL = frozenset({"meta", "guide", "hardware_notes"})
_KNOWN = frozenset(
    {
        "meta", "model", "dependencies", "features", "opt_in_features", "hardware_opt_in_features", "variants",
        "compatible_strategies", "strategy_min_gpus", "strategy_hardware", "hardware_overrides", "strategy_overrides",
        "default_strategy", "omni", "guide", "hardware_notes", "kv_cache_strategy_hardware", "kv_offload_support",
    }
)  # fmt: skip


def format_of(importer: Importer) -> Format:
    """The format, whose commands ``importer`` reads."""

    def read_(top: Fields, choices: Mapping[str, str]) -> Read:
        return read(top, choices, importer)

    return Format("models/*.yaml of vllm-project/recipes", fits, read_, _INFORMATIONAL)


def fits(data: Mapping[str, Any]) -> bool:
    """Whether a document is such a recipe: it has a mapping ``model`` with ``model_id``, and variants."""
    model = data.get("model")
    return isinstance(model, dict) and "model_id" in model and "variants" in data


def read(top: Fields, choices: Mapping[str, str], importer: Importer) -> Read:
    """The playbook for as many Sparks as the checkpoint needs, or as ``choices`` say.

    Raises:
        SpecError: it is not for Sparks, or leaves open what ``choices`` do not say.
    """
    choice = choose(top, choices)
    model = top.mapping("model")
    variant = top.mapping("variants").mapping(choice.variant)
    words = [variant.optional_text("model_id") or model.text("model_id")]
    env: dict[str, str | None] = {}
    for layer in _layers(top, choice):
        for key in ("extra_args", "vllm_args"):
            words += layer.texts(key)
        for key in ("extra_env", "env"):
            variables = layer.mapping(key)
            env |= {name: variables.written(name) for name in variables.data}
    notes = list(choice.notes)
    for name in choice.features:
        words += _feature(top.mapping("features").mapping(name), choice, choices.get(name), notes)
    image = _image(model, variant, notes)
    document, more = playbook(Container(image=image, env=env), Command(words, env), {}, importer)
    if choice.nodes > 1:
        document["executor"] = "native"
    meta = top.mapping("meta")
    slug = name_of(meta.optional_text("slug") or words[0])
    full = slug if choice.variant == "default" else f"{slug}-{choice.variant}"
    named(document, name=name_of(full), description=meta.data.get("description"))
    unknown = top.unknown(_KNOWN, "not imported: the import does not know this key of the format")
    return document, [*notes, *more, *_dependencies(top), *unknown]


def _layers(top: Fields, choice: Choice) -> Iterator[Fields]:
    """Mappings with arguments and variables, those that win last."""
    model = top.mapping("model")
    yield Fields(top.document, {"extra_args": model.items("base_args")}, ("model", "base_args"))
    yield Fields(top.document, {"extra_env": model.mapping("base_env").data}, ("model", "base_env"))
    variant = top.mapping("variants").mapping(choice.variant)
    yield variant
    yield variant.mapping("hardware_overrides").mapping(SPARK)
    yield Fields(top.document, {"extra_args": choice.parallel}, ("compatible_strategies",))
    strategy = top.mapping("strategy_overrides").mapping(choice.strategy)
    yield strategy
    own = strategy.mapping("hardware_overrides")
    if _of_generation(own) is not None:
        yield from filter(None, [_of_generation(own)])
    else:
        yield from filter(None, [_of_generation(top.mapping("hardware_overrides"))])
        yield from filter(None, [_of_generation(variant.mapping("hardware_overrides"))])
    yield own.mapping(SPARK)


def _of_generation(overrides: Fields) -> Fields | None:
    """The overrides for Blackwell, else those for NVIDIA."""
    return next((overrides.mapping(key) for key in (GENERATION, BRAND) if overrides.data.get(key) is not None), None)


def _feature(feature: Fields, choice: Choice, wished: str | None, notes: list[str]) -> list[str]:
    """Arguments of a feature: of the mode that applies, where it has modes."""
    name = str(feature.path[-1])
    modes = feature.mapping("modes")
    if not modes.data:
        override = _of_generation(feature.mapping("hardware_overrides"))
        return override.texts("args") if override is not None and "args" in override.data else feature.texts("args")
    allowed = [key for key in modes.data if _mode_allowed(modes.mapping(key), choice.variant)]
    if wished is not None and wished not in allowed:
        raise modes.fault(
            wished, f"--define {name}={shown(wished)}: not a mode that fits", f"choose from: {', '.join(allowed)}"
        )
    preferred = (wished, choice.modes.get(name), feature.data.get("default_mode"))
    mode = next((each for each in preferred if each in allowed), allowed[0] if allowed else None)
    if mode is None:
        notes.append(f"feature {name}: left out, since no mode of it fits the variant {choice.variant} on a Spark")
        return []
    notes.append(f"feature {name}: mode {mode} of {', '.join(allowed)} (--define {name}=MODE)")
    found = modes.mapping(mode)
    overrides = found.mapping("hardware_overrides")
    tuned = [overrides.mapping(key) for key in keyed(overrides)]
    return next((each.texts("args") for each in tuned if "args" in each.data), found.texts("args"))


def _mode_allowed(mode: Fields, variant: str) -> bool:
    variants, hardware = mode.texts("variants"), mode.mapping("hardware").data
    unsupported = "unsupported" in (hardware.get(SPARK), hardware.get(GENERATION))
    return not unsupported and (not variants or variant in variants)


def _image(model: Fields, variant: Fields, notes: list[str]) -> str:
    """The image: of the variant on a Spark, of the variant, of the model, else the latest release."""
    exact = variant.mapping("hardware_overrides").mapping(SPARK).data.get("docker_image")
    places = (exact, _for_nvidia(variant), _for_nvidia(model))
    image = next((each for each in places if isinstance(each, str) and each), None)
    nightly = model.flag("nightly_required") or variant.flag("nightly_required")
    version = variant.data.get("min_vllm_version") or model.data.get("min_vllm_version")
    needs = f"; the recipe needs vLLM {short(str(version))} or newer" if version else ""
    if image is None:
        image = "vllm/vllm-openai:nightly" if nightly else "vllm/vllm-openai:latest"
        notes.append(f"image {image}: the recipe pins none{needs}; write a fixed tag")
    return image


def _for_nvidia(at: Fields) -> str | None:
    """The image under ``docker_image``: text, or by brand, or by version of CUDA, of which 13.0 is the default."""
    value = at.data.get("docker_image")
    if isinstance(value, dict) and {"nvidia", "amd", "tpu", "intel"} & value.keys():
        value = value.get("nvidia")
    if isinstance(value, dict):
        value = value.get("cu130") or value.get("cu129")
    return value if isinstance(value, str) else None


def _dependencies(top: Fields) -> list[str]:
    """Notes on what has to be installed beside the image, which has what ``pip`` would install."""
    notes = []
    for index, entry in enumerate(top.items("dependencies")):
        if not isinstance(entry, dict):
            raise top.fault(
                "dependencies", f"dependencies[{index}] must be a mapping with command", "write - command: …"
            )
        brands = str(entry.get("brand") or "NVIDIA")
        modes = str(entry.get("install_modes") or "pip")
        if "NVIDIA" in brands and "docker" in modes:
            notes.append(f"dependencies: {short(str(entry.get('command')))}: run it on every node before the start")
        elif "NVIDIA" in brands:
            optional = "optional, " if entry.get("optional") else ""
            what = short(str(entry.get("command")))
            notes.append(
                f"dependencies: {what}: {optional}for installations by pip; write it under setup if the image lacks it"
            )
    return notes
