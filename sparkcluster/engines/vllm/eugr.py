"""Recipes of eugr/spark-vllm-docker: YAML with a command whose ``{names}`` stand for defaults.

Format: recipes/README.md and run-recipe.py of https://github.com/eugr/spark-vllm-docker
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from sparkcluster.recipes import mods
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.serve import Importer, name_of
from sparkcluster.recipes.shell import shown
from sparkcluster.recipes.sparkrun import OWN_KEYS
from sparkcluster.recipes.structured import Fields, Format, Read, named, ranks, set_by_runner, started
from sparkcluster.spec.secret_patterns import names_secret

_KEYS = frozenset(
    {
        "name", "recipe_version", "description", "model", "container", "command", "defaults", "env", "mods",
        "build_args", "cluster_only", "solo_only",
    }
)  # fmt: skip
BY_RUNNER = {"NCCL_IGNORE_CPU_AFFINITY": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""What launch-cluster.sh sets in every container, DOCKER_ARGS."""
_PLACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What bash does not take literally between double quotes, where the runner puts the value of a variable.
_EXPANDED = re.compile(r'[$`"\\]')


def format_of(importer: Importer) -> Format:
    """The format, whose commands start what ``importer`` reads."""

    def read_(top: Fields, choices: Mapping[str, str]) -> Read:
        return read(top, choices, importer)

    return Format("recipes of eugr/spark-vllm-docker", fits, read_)


def fits(data: Mapping[str, Any]) -> bool:
    """Whether its runner can start a document; sparkrun takes many of the same keys, but fills in commands otherwise.

    The runner wants ``recipe_version`` 1, and ``str.format`` must succeed on the command. A recipe without version is
    its own too, if braces are doubled as only it needs them, or if nothing at the top names a model, as sparkrun does.
    """
    if not {"container", "command"} <= data.keys():
        return False
    version = data.get("recipe_version")
    if version is not None and str(version) != "1":
        return False
    if not data.get("model"):
        return True
    command, defaults = data["command"], data.get("defaults") or {}
    if not isinstance(command, str) or not isinstance(defaults, dict):
        return version is not None
    if version is None and (OWN_KEYS & data.keys() or "{{" not in command):
        return False
    return not _faults(command, {"tensor_parallel": 1, **defaults})


def read(top: Fields, choices: Mapping[str, str], importer: Importer) -> Read:
    """The playbook of a recipe, and what was left out.

    Raises:
        SpecError: a key is missing, or of another kind than the format has.
    """
    image, written = top.text("container"), top.text("command")
    defaults, solo, cluster = top.mapping("defaults"), top.flag("solo_only"), top.flag("cluster_only")
    if solo and cluster:
        raise top.fault("solo_only", "solo_only and cluster_only exclude each other", "keep one of them")
    lost: list[str] = []
    env = _environment(top.mapping("env"), lost)
    # The runner takes one rank in solo mode whatever the recipe says, and drops the executor there.
    filling = {"one": {"tensor_parallel": "1", **choices}, "several": choices}
    made: dict[str, Read] = {}
    for name in ("one",) if solo else ("several",) if cluster else ("one", "several"):
        # The runner strips the last backslash.
        text = _filled(top, written, defaults, filling[name]).rstrip().rstrip("\\")
        text = re.sub(r"--distributed-executor-backend\s+\S+", "", text) if name == "one" else text
        made[name] = started(top, Container(image=image, env={**env}), text, importer, lost=lost)
    document, notes = made["one" if solo else "several"]
    if solo and ranks(document) != 1:
        raise top.fault(
            "solo_only", f"solo_only, but the command is for {ranks(document)} Sparks", "write -tp {tensor_parallel}"
        )
    if solo:
        document["nodes"] = {"max": 1}
    elif cluster and ranks(document) == 1:
        raise top.fault("cluster_only", "cluster_only, but the command is for one Spark", "write -tp {tensor_parallel}")
    elif cluster:
        document["nodes"] = {"min": 2}
        notes.append("cluster_only: the model needs several Sparks; tensor_parallel says how many")
    elif made["one"][0].get("tensor_parallel") != document.get("tensor_parallel"):
        document.pop("tensor_parallel", None)
        notes.append("tensor_parallel: left to the inventory, as the recipe's runner does on one Spark")
    title = top.data.get("name")
    named(document, name=name_of(title) if isinstance(title, str) else None, description=top.data.get("description"))
    added = mods.add(document, top.texts("mods"))
    unknown = top.unknown(_KEYS, "a playbook has no such key")
    notes += set_by_runner(document, BY_RUNNER, "launch-cluster.sh")
    return document, [*mods.build(image, top.texts("build_args")), *added, *notes, *unknown]


def _environment(env: Fields, notes: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, value in env.data.items():
        text = env.written(name)
        if value is None:
            notes.append(f"env: {shown(name)}: it is empty, which the recipe's runner exports as None")
        if _EXPANDED.search(text) and not names_secret(name):
            notes.append(
                f"{shown(f'env: {name}={text}')}: the shell in the container expands it; write its value under env"
            )
        else:
            out[name] = text
    return out


def _faults(command: str, defaults: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Why ``str.format`` of the runner fails on ``command``: what is there, and what to type."""
    try:
        parts = list(string.Formatter().parse(command))
    except ValueError as error:
        return [(f"the braces of the command do not match: {error}", "write {{ and }} for braces of JSON")]
    out = []
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if not _PLACE.fullmatch(name) or spec or conversion:
            what = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            problem = f"{{{shown(what)}}} in the command is no name of a default"
            out.append((problem, "write {{ and }} for braces of JSON, and {name} for a default"))
        elif name not in defaults:
            problem = f"the command needs {{{name}}}, which defaults does not have"
            out.append((problem, f"write {name}: … under defaults, or add --define {name}=VALUE"))
    return out


def _filled(top: Fields, command: str, defaults: Fields, choices: Mapping[str, str]) -> str:
    """The command with its names filled in, as the runner's ``str.format`` does, and nothing else that format can."""
    for problem, hint in _faults(command, {**defaults.data, **choices}):
        raise top.fault("command", problem, hint)
    parts = string.Formatter().parse(command)
    return "".join(
        literal + ("" if name is None else choices[name] if name in choices else defaults.written(name))
        for literal, name, _, _ in parts
    )
