"""Profiles of sparkring (https://github.com/FujitsuPolycom/sparkring) in JSON, at 4aa030a.

``sparkring-runtime-profile/v1`` is what scripts/sparkring_runtime.py starts, together with a site file; what that sets
is chosen by name. ``sparkring-recipe/v1`` states what is served, and names image and environment in other files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.recipes.container import Container
from sparkcluster.recipes.container import read as read_container
from sparkcluster.recipes.serve import Command, Importer, name_of, playbook
from sparkcluster.recipes.shell import shown
from sparkcluster.recipes.structured import Fields, Format, Read, short
from sparkcluster.spec.secret_patterns import names_secret

_PROFILE, _RECIPE = "sparkring-runtime-profile/v1", "sparkring-recipe/v1"
# What the site file's serving section sets (sparkring_runtime.py, start_actions), as flags.
_SITE = {
    "tensor_parallel_size": "--tensor-parallel-size", "decode_context_parallel_size": "--decode-context-parallel-size",
    "max_model_len": "--max-model-len", "kv_cache_bytes_per_rank": "--kv-cache-memory-bytes",
    "max_num_seqs": "--max-num-seqs",
}  # fmt: skip
_PROFILE_KEYS = frozenset(
    {
        "schema", "profile_id", "model_family", "engine", "container_name", "image", "image_id", "model_host_path",
        "model_container_path", "shm_size", "startup_timeout_seconds", "environment", "extra_vllm_args",
        "extra_volumes", "extra_labels", "privileged", "entrypoint", "confirmation", "identity",
        "attestation_hook", "health_check",
    }
)  # fmt: skip
# Keys of a recipe's serving section that are flags of vLLM, and how docs/DEEPSEEK_V4_FLASH_QUICKSTART.md starts them.
_FLAGS = {
    "served_model_name": "--served-model-name", "tensor_parallel_size": "--tensor-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
    "distributed_executor_backend": "--distributed-executor-backend", "dtype": "--dtype",
    "max_model_len": "--max-model-len", "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens", "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_memory_bytes_per_rank": "--kv-cache-memory-bytes", "kv_cache_bytes_per_rank": "--kv-cache-memory-bytes",
    "kv_cache_dtype": "--kv-cache-dtype", "tokenizer_mode": "--tokenizer-mode", "block_size": "--block-size",
    "load_format": "--load-format", "tool_call_parser": "--tool-call-parser",
}  # fmt: skip
_STATED = frozenset({"node_count", "sizing_note", "external_kv_cache", "lmcache", "reported_kv_tokens"})
_PLACE = re.compile(r"\{([a-z0-9_]+)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def format_of(importers: Sequence[Importer]) -> Format:
    """The format, which starts vLLM."""

    def read_(top: Fields, choices: Mapping[str, str]) -> Read:
        return read(top, choices, importers)

    return Format("profiles of sparkring", fits, read_, frozenset({"evidence", "publication"}))


def fits(data: Mapping[str, Any]) -> bool:
    """Whether a document is of sparkring, by its ``schema``."""
    return str(data.get("schema")).startswith("sparkring-")


def read(top: Fields, choices: Mapping[str, str], importers: Sequence[Importer]) -> Read:
    """The playbook of a profile or recipe, and what was left out.

    Raises:
        SpecError: a key is missing or of another kind, or it needs what another file has.
    """
    schema = top.text("schema")
    importer = next(each for each in importers if each.ENGINE == "vllm")
    if schema == _PROFILE:
        return _profile(top, choices, importer)
    if schema == _RECIPE:
        return _recipe(top, choices, importer)
    if "base_recipe" in top.data:
        raise top.fault(
            "base_recipe", f"{schema} only changes another recipe", f"import {short(top.text('base_recipe'))}"
        )
    raise top.fault("schema", f"{shown(schema)} is not supported", f"supported are {_PROFILE} and {_RECIPE}")


def _profile(top: Fields, choices: Mapping[str, str], importer: Importer) -> Read:
    unknown = [key for key in top.data if key not in _PROFILE_KEYS]
    if unknown:
        raise top.fault(unknown[0], f"unknown key of {_PROFILE}", "remove it, or write the playbook by hand")
    if top.optional_text("entrypoint"):
        raise top.fault("entrypoint", "the entrypoint decides what is served", "write the playbook by hand")
    missing = [key for key in _SITE if key not in choices]
    if missing:
        hint = " ".join(f"--define {key}=N" for key in missing)
        raise top.fault(
            "schema", f"the profile needs what serving in its site file says: {', '.join(missing)}", f"add {hint}"
        )
    target = top.text("model_container_path")
    words = [f"--shm-size={top.text('shm_size')}", "--cap-add=IPC_LOCK", "--volume"]
    words += [f"{top.text('model_host_path')}:{target}:ro", *(["--privileged"] if top.flag("privileged") else [])]
    for index, volume in enumerate(top.items("extra_volumes")):
        if not isinstance(volume, dict) or set(volume) != {"host", "container", "mode"}:
            raise top.fault(
                "extra_volumes", f"extra_volumes[{index}] must have host, container and mode", "write all three"
            )
        words += ["--volume", f"{volume['host']}:{volume['container']}:{volume['mode']}"]
    container = read_container([*words, "--", top.text("image")])
    container.name = top.text("container_name")
    notes: list[str] = []
    _variables(top.mapping("environment"), container, notes)
    arguments = top.texts("extra_vllm_args")
    for index, word in enumerate(arguments):
        if _open(word):
            raise top.fault(
                "extra_vllm_args", f"extra_vllm_args[{index}] {short(word)} differs between sites", "write its value"
            )
    site = [word for key, flag in _SITE.items() for word in (flag, choices[key])]
    command = Command([target, *site, *map(_filled, arguments)], dict(container.env))
    document, more = playbook(container, command, {}, importer)
    if document["tensor_parallel"] != 1:
        document["executor"] = "native"
    document["ready_timeout_s"] = top.count("startup_timeout_seconds") or 1800
    document["name"] = name_of(top.text("profile_id"))
    notes.append(
        f"image_id {short(top.text('image_id'))}: compare the image with it; a playbook names images by tag or digest"
    )
    hooks = {
        "attestation_hook": "write it under setup, if it fits",
        "health_check": "sparkcluster asks the model itself",
        "confirmation": "sparkcluster asks before it starts",
        "identity": "sparkring passes it to its own entrypoint",
    }
    notes += [f"{key}: {short(json.dumps(top.data[key]))}: {why}" for key, why in hooks.items() if top.data.get(key)]
    notes.append("the image's own entrypoint, which sparkring gives `serve …`, is left out: ranks run vllm serve")
    return document, [*notes, *more]


def _variables(env: Fields, container: Container, notes: list[str]) -> None:
    for name, value in env.data.items():
        if not _VARIABLE.fullmatch(name):
            raise env.fault(name, "is no name of a variable", "use letters, digits and underscores")
        if value is None:
            notes.append(f"environment: {name}: sparkring takes it out of the image's, which a playbook cannot")
        elif not isinstance(value, str):
            raise env.fault(name, "must be text or null", "quote it")
        elif _open(value) and not names_secret(name):
            notes.append(
                f"environment: {shown(f'{name}={value}')}: it differs between nodes; sparkcluster does not set it"
            )
        else:
            container.env[name] = _filled(value)


def _filled(text: str) -> str:
    """``text`` with the draft model's directory, which is the same everywhere (sparkring_runtime.py, site_context)."""
    return text.replace("{draft_path}", "/mtp-draft")


def _open(text: str) -> bool:
    """Whether ``text`` has a placeholder for what differs between sites or nodes."""
    return _PLACE.search(_filled(text)) is not None


def _recipe(top: Fields, choices: Mapping[str, str], importer: Importer) -> Read:
    runtime, serving, model = top.mapping("runtime"), top.mapping("serving"), top.mapping("model")
    image = choices.get("image") or runtime.optional_text("final_image")
    if image is None:
        lock = runtime.optional_text("image_lock") or runtime.optional_text("build_script")
        where = f"it is in {short(lock)}" if lock else "it names none"
        raise runtime.fault("image_lock", f"the recipe does not say the image: {where}", "add --define image=REFERENCE")
    notes: list[str] = []
    words = [model.text("repository"), *_serving(serving, notes)]
    document, more = playbook(Container(image=image), Command(words), {}, importer)
    revision = model.optional_text("revision")
    if revision:
        document["model"]["revision"] = revision
    else:
        notes.append("model.revision: the recipe pins none")
    nodes = serving.count("node_count") or top.mapping("hardware").count("ranks")
    if nodes:
        document["nodes"] = {"min": nodes, "max": nodes}
    document["name"] = name_of(top.text("recipe_id"))
    for key, why in (
        ("environment_template", "write its lines under env, but those that differ between nodes"),
        ("entrypoint", "ranks run vllm serve"),
        ("profile_derivation", "it makes the profile that is started; import that one"),
    ):
        if runtime.optional_text(key):
            notes.append(f"runtime.{key}: {short(runtime.text(key))}: {why}")
    if top.mapping("transport").data:
        notes.append("transport: sparkcluster sets the interconnect of each node itself")
    return document, [*notes, *more]


def _serving(serving: Fields, notes: list[str]) -> list[str]:
    """The flags that a recipe's ``serving`` states."""
    words: list[str] = []
    for key, value in serving.data.items():
        if key in _FLAGS:
            words += [_FLAGS[key], serving.written(key)]
        elif key == "speculation":
            words += ["--speculative-config", json.dumps(serving.mapping(key).data)]
        elif key == "native_prefix_caching":
            words.append("--enable-prefix-caching" if serving.flag(key) else "--no-enable-prefix-caching")
        elif key not in _STATED or value is True:
            what = f"serving.{shown(key)}: {short(json.dumps(value))}"
            notes.append(f"{what}: sparkring sets it otherwise than by a flag of vLLM")
    return [*words, *(["--enable-auto-tool-choice"] if "tool_call_parser" in serving.data else [])]
