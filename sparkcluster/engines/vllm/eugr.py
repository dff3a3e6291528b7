"""Recipes of eugr/spark-vllm-docker: YAML with a command whose ``{names}`` stand for defaults.

Format: recipes/README.md and run-recipe.py of https://github.com/eugr/spark-vllm-docker
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.serve import Command, Importer, name_of, playbook
from sparkcluster.recipes.shell import Script, shown
from sparkcluster.spec.document import parse as parse_yaml

_LOOKS = re.compile(r"^(recipe_version|container|command|defaults):", re.MULTILINE)
_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KEYS = frozenset(
    {
        "name", "recipe_version", "description", "model", "container", "command", "defaults", "env", "mods",
        "build_args", "cluster_only", "solo_only",
    }
)  # fmt: skip


def is_recipe(text: str) -> bool:
    """Whether ``text`` is a recipe rather than a script: it has two of its keys at the beginning of lines."""
    return len(set(_LOOKS.findall(text))) >= 2


def read(text: str, source: str, importer: Importer) -> tuple[dict[str, Any], list[str]]:
    """The playbook of a recipe, and what was left out.

    Raises:
        UsageError: a key is missing, or of another kind than the format has.
        SpecError: it is no YAML.
    """
    data = parse_yaml(text, source).data
    text, image = _text(data, "command", source), _text(data, "container", source)
    defaults, written = _mapping(data, "defaults", source), _mapping(data, "env", source)
    env = {name: _scalar(value) for name, value in written.items() if value is not None}
    command = Command.nested(_filled(text, defaults, source), env, Script(), importer)
    if command is None:
        raise UsageError(f"{source}: its command does not start vLLM", hint="only recipes for vLLM can be imported")
    document, notes = playbook(Container(image=image), command, {}, importer)
    _named(document, data)
    _sized(document, data)
    unknown = [f"{shown(key)}: a playbook has no such key" for key in data if key not in _KEYS]
    return document, [*_notes(data, image), *notes, *unknown]


def launched(words: list[str]) -> Container | None:
    """The container of ``launch-cluster.sh [options] exec COMMAND``, by which a recipe's command is run by hand."""
    if words[0].rpartition("/")[2] != "launch-cluster.sh" or "exec" not in words:
        return None
    at = words.index("exec")
    container = Container(image="vllm-node", words=words[at + 1 :])
    before = words[1:at]
    for option, value in pairwise(before):
        if option in {"-t", "--container"}:
            container.image = value
        elif option in {"-e", "--env"}:
            name, equals, text = value.partition("=")
            container.env[name] = text if equals else None
        elif option in {"-n", "--nodes"}:
            container.notes.append(f"--nodes {shown(value)}: list the Sparks in the inventory")
        elif option == "--apply-mod":
            container.notes.append(f"{option} {shown(value)}: it changes the image; build one that has the change")
    return container


def _text(data: dict[str, Any], key: str, source: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{source}: {key} must be text", hint=f"write {key}: …")
    return value


def _mapping(data: dict[str, Any], key: str, source: str) -> dict[str, Any]:
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise UsageError(f"{source}: {key} must be a mapping", hint=f"write {key}: with lines below it")
    return value


def _filled(command: str, defaults: dict[str, Any], source: str) -> str:
    """The command with its names filled in, as the runner's ``str.format`` does, and nothing else that format can."""

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        if name not in defaults or isinstance(defaults[name], dict | list):
            raise UsageError(
                f"{source}: the command needs {{{name}}}, which defaults does not have",
                hint=f"write {name}: … under defaults",
            )
        return _scalar(defaults[name])

    return _PLACE.sub(fill, command)


def _scalar(value: Any) -> str:
    return ("True" if value else "False") if isinstance(value, bool) else str(value)


def _named(document: dict[str, Any], data: dict[str, Any]) -> None:
    if isinstance(data.get("name"), str):
        document["name"] = name_of(data["name"])
    if isinstance(data.get("description"), str) and data["description"].strip():
        document["description"] = " ".join(data["description"].split())


def _sized(document: dict[str, Any], data: dict[str, Any]) -> None:
    """How many ranks: the runner takes one in solo mode whatever the recipe says, and drops the executor."""
    if data.get("solo_only") is True:
        document["tensor_parallel"] = 1
        document.pop("executor", None)
    elif data.get("cluster_only") is not True:
        document.pop("tensor_parallel", None)
        document.pop("executor", None)


def _notes(data: dict[str, Any], image: str) -> list[str]:
    out: list[str] = []
    if "/" not in image:
        out.append(f"container {shown(image)}: build it with build-and-copy.sh of spark-vllm-docker on the first node")
    for key in ("mods", "build_args"):
        listed = data.get(key) or []
        for name in listed if isinstance(listed, list) else [listed]:
            effect = "changes the image before it starts" if key == "mods" else "is for the image's build"
            out.append(f"{key}: {shown(str(name))}, which {effect}; build an image that has it")
    if data.get("cluster_only") is True:
        out.append("cluster_only: the model needs several Sparks; tensor_parallel says how many")
    elif "tensor_parallel" in (data.get("defaults") or {}) and data.get("solo_only") is not True:
        out.append("tensor_parallel: left to the inventory, as the recipe's runner does on one Spark")
    return out
