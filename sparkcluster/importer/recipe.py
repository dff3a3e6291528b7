"""Import YAML or JSON recipes of eugr/spark-vllm-docker and sparkrun: a command template with ``{name}`` placeholders.

Formats: recipes/README.md and run-recipe.py of https://github.com/eugr/spark-vllm-docker; RECIPES.md of
https://github.com/spark-arena/sparkrun. The former uses ``str.format``, so braces of JSON are doubled; the latter
replaces placeholders repeatedly, and then halves doubled braces.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.importer import compose
from sparkcluster.importer.commands import Commands, set_in
from sparkcluster.importer.container import Container
from sparkcluster.importer.playbook import Made, by_runner, name_of, playbook
from sparkcluster.importer.script import Text, refuse_unknown
from sparkcluster.importer.shell import Shell
from sparkcluster.importer.unknown import shown
from sparkcluster.spec import Playbook, kinds, messages
from sparkcluster.spec.base import Section
from sparkcluster.spec.document import Document, parse
from sparkcluster.spec.secret_patterns import names_secret

BY_RUNNER = {"NCCL_IGNORE_CPU_AFFINITY": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Variables that spark-vllm-docker's launch-cluster.sh sets in every container (DOCKER_ARGS)."""
# Variables that sparkrun sets on several nodes without Ray: runtimes/vllm_distributed.py, get_cluster_env.
_BY_SPARKRUN = {"NCCL_CUMEM_ENABLE": "0", "OMP_NUM_THREADS": "4"}
# sparkrun's runtimes with the names of their engines here (RECIPES.md, Available Runtimes).
_RUNTIMES = {"vllm-distributed": "vllm", "vllm-ray": "vllm", "eugr-vllm": "vllm"}
_SPARKRUN = frozenset({"sparkrun_version", "runtime", "mode", "min_nodes", "max_nodes", "metadata", "executor_config"})
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
_MOD = re.compile(r"(?:mods/)?([A-Za-z0-9_][\w.+-]*)/?")
_MAX_ROUNDS = 8
_SUPPORTED = "supported: Compose files, and recipes of eugr/spark-vllm-docker or sparkrun with container and command"


class Recipe(Section):
    """The supported keys of a recipe; other keys are listed in notes."""

    model_config = ConfigDict(extra="allow")

    container: str = Field(description="image of the container")
    command: str = Field(description="shell text that starts the engine, with {name} for a default")
    model: str | None = None
    model_revision: str | int | None = None
    name: str | None = None
    description: str | None = None
    recipe_version: str | int | float | None = None
    runtime: str | None = None
    defaults: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, Any] = Field(default_factory=dict)
    mods: list[str] = Field(default_factory=list)
    build_args: list[str] = Field(default_factory=list)
    solo_only: bool = False
    cluster_only: bool = False
    mode: Literal["auto", "solo", "cluster"] = "auto"
    min_nodes: int = Field(1, ge=1)
    max_nodes: int | None = Field(None, ge=1)
    executor_config: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] | None = None


def data(text: str, about: Text) -> Made:
    """The playbook of a Compose file or a recipe."""
    document = parse(text, about.source, merge_keys=True)
    return compose.read(document, about) if "services" in document.data else read(document, about)


def read(document: Document, about: Text) -> Made:
    """The playbook of a recipe, and notes about skipped keys.

    Raises:
        SpecError: another format, missing or invalid keys, or an unsupported engine.
    """
    recipe = _recipe(document, about)
    data = document.data
    version = recipe.recipe_version or ("1" if "{{" in recipe.command else "2")
    is_eugr = str(version) == "1" and not _SPARKRUN & data.keys() and _formats(recipe)
    solo, cluster = recipe.solo_only or recipe.mode == "solo", recipe.cluster_only or recipe.mode == "cluster"
    least, most = max(recipe.min_nodes, 2 if cluster else 1), 1 if solo else recipe.max_nodes
    names = [*recipe.defaults, *_PLACE.findall(recipe.command)]
    given = {name: value for name in names if (value := about.value(name)) is not None}
    values = {name: str(value) for name, value in recipe.defaults.items() if not isinstance(value, dict | list)}
    values |= {"model": recipe.model} if recipe.model and not is_eugr else {}
    values |= {"tensor_parallel": "1"} if solo and is_eugr else {}
    made, notes = _started(recipe, _filled(document, recipe.command, values | given, doubled=is_eugr), document, about)
    used = " ".join([recipe.command, *values.values()])
    unused = [name for name in recipe.defaults if f"{{{name}}}" not in used]
    notes += [f"defaults.{shown(name)}: the command does not use it" for name in unused]
    free = is_eugr and not solo and not cluster and "{tensor_parallel}" in recipe.command
    if free and made.get("tensor_parallel") != 1:
        made.pop("tensor_parallel", None)
        notes.append("tensor_parallel: set by the inventory, since the recipe's runner uses 1 on one Spark")
    needed = _sized(made, least, most)
    if not is_eugr and needed > 1:
        by_ray = recipe.runtime in {"vllm-ray", "eugr-vllm"} or values.get("distributed_executor_backend") == "ray"
        made.setdefault("executor", "ray" if by_ray else "native")
    elif solo or not is_eugr:
        made.pop("executor", None)
    if is_eugr:
        notes += by_runner(made, BY_RUNNER, "launch-cluster.sh")
    elif made.get("executor") == "native":
        notes += by_runner(made, _BY_SPARKRUN, "sparkrun")
    _described(made, recipe)
    own = {*Recipe.model_fields, "maintainer", "benchmark"}
    notes += [f"{shown(key)}: {shown(str(data[key]), 80)}: not read" for key in data if key not in own and data[key]]
    return made, notes + _mods(made, recipe)


def _recipe(document: Document, about: Text) -> Recipe:
    """Parse a recipe.

    Raises:
        SpecError: another format, invalid, or an unsupported engine.
    """
    is_own = {*document.data} <= {*Playbook.model_fields} and not isinstance(document.data.get("container"), str)
    if kinds.is_inventory(document) or (is_own and kinds.is_playbook(document)):
        problem = "this is already a file of sparkcluster"
        raise SpecError([document.problem((), problem, "sparkcluster lint checks it")])
    if not {"command", "container"} & document.data.keys():
        raise SpecError([document.problem((), "unknown format", _SUPPORTED)])
    runtime = str(document.data.get("runtime") or "vllm")
    engine = _RUNTIMES.get(runtime, runtime)
    if not any(engine == importer.ENGINE for importer in about.importers):
        known = ", ".join(importer.TITLE for importer in about.importers)
        problem = f"this starts {shown(engine)}, but only recipes for {known} can be imported"
        raise _fault(document, "runtime", problem, "write a playbook by hand")
    ignored = ("metadata", "benchmark", "description", "maintainer")
    if problems := [each for each in document.problems if not each.path.startswith(ignored)]:
        raise SpecError(problems)
    try:
        return Recipe.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(messages.problems(error, document, Recipe)) from None


def _described(made: dict[str, Any], recipe: Recipe) -> None:
    """Set name, description, and the model's revision."""
    if recipe.model_revision is not None and made["model"].get("id") == recipe.model:
        made["model"].setdefault("revision", str(recipe.model_revision))
    if recipe.name:
        made["name"] = name_of(recipe.name)
    text = recipe.description or (recipe.metadata or {}).get("description")
    if isinstance(text, str) and text.strip():
        made["description"] = " ".join(text.split())


def _formats(recipe: Recipe) -> bool:
    """Whether the command is a valid ``str.format`` template, as in spark-vllm-docker; otherwise it is sparkrun's."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(recipe.command) if name is not None]
    except ValueError:
        return False
    return {*names} <= {"tensor_parallel", *recipe.defaults} or not recipe.model


def _fault(document: Document, key: str, problem: str, hint: str | None) -> SpecError:
    return SpecError([document.problem((key,), problem, hint)])


def _filled(document: Document, command: str, values: Mapping[str, str], *, doubled: bool) -> str:
    """The command with its placeholders filled in."""
    if doubled:
        parts = list(string.Formatter().parse(command))
        if lost := next((name for _, name, _, _ in parts if name is not None and name not in values), None):
            raise _missing(document, lost)
        return "".join(text + ("" if name is None else values[name]) for text, name, _, _ in parts)
    text = command
    for _ in range(_MAX_ROUNDS):
        text = _PLACE.sub(lambda found: values.get(found[1], found[0]), text)
    if left := next((name for name in _PLACE.findall(text) if f"${{{name}}}" not in text), None):
        raise _missing(document, left)
    return text.replace("{{", "{").replace("}}", "}") if "{{" in command else text


def _missing(document: Document, name: str) -> SpecError:
    hint = f"write {shown(name)}: … under defaults, or add --define {shown(name)}=VALUE"
    return _fault(document, "command", f"the command needs {{{shown(name)}}}, which is missing in defaults", hint)


def _started(recipe: Recipe, text: str, document: Document, about: Text) -> Made:
    """The playbook of the command in the recipe's container."""
    box = Container(recipe.container, env={})
    for name, value in recipe.env.items():
        if re.search(r'[$`"\\]', str(value)) and not names_secret(name):
            what = shown(f"env: {name}={value}")
            box.notes.append(f"{what}: the shell in the container expands it; write its value under env")
        else:
            box.env[name] = str(value)
    for key, value in recipe.executor_config.items():
        for each in value if isinstance(value, list) else [value]:
            box.put(key.replace("_", "-"), "" if each is True else str(each), f"executor_config.{key}")
    shell, commands = Shell(about.source, about.defines, about.asked), Commands(about.importers)
    place = document.values.get(("command",))
    line = place.line if place else 1
    try:
        starts = commands.of_text(text, shell.child(line, set_in(box.env)), box)
        if not starts:
            raise commands.nothing(about.source, shell)
        refuse_unknown(starts[0], shell)
        made, notes = playbook(starts[0])
    except SpecError:
        raise
    except UsageError as error:
        raise _fault(document, "command", error.message.removeprefix(f"{about.source}:{line}: "), error.hint) from None
    return made, notes


def _sized(made: dict[str, Any], least: int, most: int | None) -> int:
    """Set the supported group sizes; returns the number of nodes that the command needs."""
    bounds = {**({"min": least} if least > 1 else {}), **({"max": most} if most is not None else {})}
    if bounds:
        made["nodes"] = bounds
    copies = made.get("args", {}).get("data-parallel-size", 1)
    sizes = (made.get("tensor_parallel", 1), made.get("pipeline_parallel", 1), copies)
    return math.prod(size for size in sizes if isinstance(size, int))


def _mods(made: dict[str, Any], recipe: Recipe) -> list[str]:
    """Mount a recipe's mods (directories with a ``run.sh``) and run them first in setup; returns manual steps.

    The recipe's runner copies each mod to ``/workspace/mods/NAME`` and runs it there, with ``WORKSPACE_DIR`` set to the
    engine's working directory (``launch-cluster.sh``).
    """
    where = "build it with build-and-copy.sh of spark-vllm-docker on the first node"
    notes = [] if "/" in recipe.container else [f"container {shown(recipe.container)}: {where}"]
    notes += [f"build_args: {shown(each)}: only needed to build the image" for each in recipe.build_args]
    setup: list[str] = []
    for mod in recipe.mods:
        found = _MOD.fullmatch(mod)
        if not found or ".." in mod or mod.endswith(".zip"):
            notes.append(f"mods: {shown(mod)}: mount its directory, and run its run.sh under setup")
            continue
        name = found[1]
        made.setdefault("mounts", []).append({"source": f"./mods/{name}", "target": f"/opt/mods/{name}"})
        setup.append(
            f"mkdir -p /workspace/mods && cp -r /opt/mods/{name} /workspace/mods/ && export WORKSPACE_DIR=$PWD && "
            f"cd /workspace/mods/{name} && chmod +x run.sh && ./run.sh"
        )
        notes.append(f"mods: {name}: copy it to mods/{name} in the playbook's directory; ranks are not privileged")
    if setup:
        made["setup"] = [*setup, *made.get("setup", [])]
    return notes
