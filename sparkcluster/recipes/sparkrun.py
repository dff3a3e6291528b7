"""Recipes of sparkrun (https://github.com/spark-arena/sparkrun): RECIPES.md, and core/recipe.py at 0041b8f.

Placeholders are filled in as sparkrun does from 0.3 on (utils/text.py, core/recipe.py: render_command): ``{name}``,
again until nothing changes, and no other brace; what names no default stays as it is. Before 0.3, recipes with a
placeholder within other braces did not start (https://github.com/spark-arena/sparkrun/pull/242).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.recipes import mods
from sparkcluster.recipes.container import Container, Volume
from sparkcluster.recipes.container import read as read_container
from sparkcluster.recipes.serve import Importer, name_of
from sparkcluster.recipes.shell import shown
from sparkcluster.recipes.sparkrun_container import MODEL, environment, options, revisions, snapshots, unseen
from sparkcluster.recipes.structured import Fields, Format, Read, named, ranks, set_by_runner, short, started
from sparkcluster.spec.secret_patterns import holds_secret

OWN_KEYS = frozenset(
    {
        "sparkrun_version", "model_revision", "runtime", "runtime_version", "mode", "min_nodes", "max_nodes",
        "runtime_config", "metadata", "benchmark", "pre_exec", "post_exec", "post_commands", "stop_after_post",
        "builder", "builder_config", "executor_config", "distribution_config", "containers", "executor", "scheduler",
        "layout", "cluster_config", "runtime_cache", "capabilities", "unsupported_capabilities",
    }
)  # fmt: skip
"""Keys that only sparkrun has, not eugr/spark-vllm-docker."""
_SHARED = frozenset(
    {
        "recipe_version", "name", "description", "model", "container", "defaults", "env", "command", "cluster_only",
        "solo_only", "mods", "build_args",
    }
)  # fmt: skip
_INFORMATIONAL = frozenset({"metadata", "benchmark", "maintainer", "runtime_version", "name", "description"})
# Keys that it has from 0.3 on and that say where and how it starts ranks.
_FURTHER = {
    "containers": "every rank has the same image", "scheduler": "sparkcluster uses the nodes of the inventory",
    "layout": "sparkcluster uses the nodes of the inventory",
    "cluster_config": "write hf_home in the inventory, or model.path",
    "runtime_cache": "every playbook keeps the caches of its engine",
}  # fmt: skip
# Names of its runtimes that start an engine which this project calls otherwise (RECIPES.md, Available Runtimes).
_RUNTIMES = {"vllm-distributed": "vllm", "vllm-ray": "vllm", "eugr-vllm": "vllm", "trtllm": "tensorrt-llm"}
# The first words of a command by which it finds the runtime, where the recipe names none.
_BY_COMMAND = (
    (r"vllm\s+serve\b", "vllm"), (r"(sglang\s+serve|python3?\s+-m\s+sglang\.launch_server)\b", "sglang"),
    (r"llama-server\b", "llama-cpp"), (r"(trtllm-serve|mpirun\b.*trtllm)", "trtllm"),
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_]\w*")
# What it sets on several nodes without Ray: runtimes/vllm_distributed.py, get_cluster_env.
_BY_RUNNER = {"NCCL_CUMEM_ENABLE": "0", "OMP_NUM_THREADS": "4"}
# Doubled braces, a placeholder, other braces; and what stands for those that are no placeholder's meanwhile.
_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_OPENING, _CLOSING = "\x00", "\x01"
_MOST_ROUNDS, _LONGEST = 16, 1 << 16
# The image where a recipe names none: runtimes/vllm_ray.py and vllm_distributed.py, default_image_prefix.
_IMAGE = "ghcr.io/spark-arena/dgx-vllm-eugr-nightly-tf5:latest"


def format_of(importers: Sequence[Importer]) -> Format:
    """The format, whose commands start what one of ``importers`` reads."""

    def read_(top: Fields, choices: Mapping[str, str]) -> Read:
        return read(top, choices, importers)

    return Format("recipes of sparkrun", fits, read_, _INFORMATIONAL)


def fits(data: Mapping[str, Any]) -> bool:
    """Whether a document is a recipe: it names a model, and a command, a container or a runtime."""
    return isinstance(data.get("model"), str) and bool({"command", "container", "runtime"} & data.keys())


def read(top: Fields, choices: Mapping[str, str], importers: Sequence[Importer]) -> Read:
    """The playbook of a recipe, and what was left out.

    Raises:
        SpecError: a key is of another kind than the format has, or it starts no engine of this project.
    """
    model, template, defaults = top.text("model"), top.optional_text("command"), top.mapping("defaults")
    importer, runtime = _engine(top, template, importers)
    executor = top.optional_text("executor") or top.mapping("executor_config").optional_text("executor") or "docker"
    if executor != "docker":
        raise top.fault(
            "executor", f"the executor {shown(executor)} starts no containers of Docker", "write a playbook by hand"
        )
    filling = {key: _halved(defaults.written(key)) for key in _used(top, defaults, template, importer)}
    config = {"model": model, "resolved_model_path": model, **filling, **choices}
    if not model.startswith("/"):
        template = template and template.replace("{resolved_model_path}/", f"{MODEL}/")
    text = _rendered(top, template, config) if template else _built(top, model, config, importer)
    name, notes = config.get("served_model_name"), []
    if template and name is not None and "--served-model-name" not in text and importer.ENGINE == "vllm":
        text = f"{text.rstrip()} --served-model-name {name}"
    if template is None:
        lost = [key for key in defaults.data if key not in importer.sparkrun_flags]
        notes += [f"defaults.{shown(key)}: sparkrun passes it on by a command only, and there is none" for key in lost]
    pinned = revisions(text, model)
    text = snapshots(text, model, notes)
    container = read_container([*options(top, notes), "--", top.optional_text("container") or _IMAGE])
    if not top.optional_text("container"):
        notes.append(f"container: the recipe names none, and sparkrun takes {_IMAGE}")
    if model.startswith("/"):
        container.volumes.append(Volume(model, model, read_only=True))
    container.env = environment(top.mapping("env"), notes)
    document, more = started(top, container, text, importer)
    notes += more
    _revision(document, top, model, pinned, notes)
    notes += _sized(document, top, runtime, config)
    setup, hooks = _hooks(top, config, model)
    notes += [*hooks, *mods.add(document, _mods(top), setup)]
    written = top.optional_text("name")
    description = top.data.get("description") or top.mapping("metadata").data.get("description")
    named(document, name=name_of(written) if written else None, description=description)
    return document, [*notes, *_left(top, container), *unseen(document)]


def _engine(top: Fields, template: str | None, importers: Sequence[Importer]) -> tuple[Importer, str]:
    """Who reads the recipe's command, and the runtime by sparkrun's rules."""
    runtime = top.optional_text("runtime")
    if runtime is None:
        hints = (name for pattern, name in _BY_COMMAND if re.match(pattern, (template or "").strip()))
        runtime = next(hints, "vllm")
    name = _RUNTIMES.get(runtime, runtime)
    importer = next((each for each in importers if name == each.ENGINE), None)
    if importer is None:
        known = ", ".join(each.ENGINE for each in importers)
        raise top.fault(
            "runtime", f"the runtime {shown(runtime)} is not supported", f"only recipes for {known} can be imported"
        )
    return importer, runtime


def _halved(value: str) -> str:
    """A default without doubled braces, where one opens doubled."""
    return value.replace("{{", "{").replace("}}", "}") if "{{" in value else value


def _used(top: Fields, defaults: Fields, template: str | None, importer: Importer) -> list[str]:
    """Defaults that may be filled in: with a mapping or list, only where something names it or a flag is made of it."""
    hooks = [each for key in ("pre_exec", "post_exec") for each in top.items(key) if isinstance(each, str)]
    text = " ".join([template or "", *hooks, *(value for value in defaults.data.values() if isinstance(value, str))])
    flags = {"served_model_name"} if template and "--served-model-name" not in template else set[str]()
    flags = flags if template else set(importer.sparkrun_flags)
    out = []
    for key, value in defaults.data.items():
        if key in flags and isinstance(value, dict | list):
            kind = "mapping" if isinstance(value, dict) else "list"
            hint = "write one text, or a command with its flag"
            raise defaults.fault(key, f"{key} is a {kind}, of which sparkrun makes one text", hint)
        if value is not None and (not isinstance(value, dict | list) or f"{{{key}}}" in text):
            out.append(key)
    return out


def _rendered(top: Fields, template: str, config: Mapping[str, str]) -> str:
    """The command: with doubled braces halved if any is doubled where it opens, which no JSON does."""
    text = _filled(top, "command", template.strip(), config, escapes="{{" in template)
    # A blank behind a backslash at the end of a line: sparkrun takes it away.
    return re.sub(r"\\ +\n", "\\\n", text)


def _filled(top: Fields, key: str, text: str, config: Mapping[str, str], *, escapes: bool | None = None) -> str:
    """``text`` with its placeholders filled in until nothing changes; with ``escapes``, none may be left over."""
    width = 1 if escapes else 2
    masks = {"{{": _OPENING * width, "}}": _CLOSING * width, "{": _OPENING, "}": _CLOSING}
    text = _BRACES.sub(lambda found: masks.get(found[0], found[0]), text)
    filled = ""
    for _ in range(_MOST_ROUNDS):
        filled, at = "", 0
        for start, end in _places(text):
            place = text[start:end]
            filled += text[at:start] + config.get(place.strip("}{"), place)
            at = end
        filled += text[at:]
        if filled == text or len(filled) > _LONGEST:
            break
        text, filled = filled, ""
    if filled != text:
        message = f"{key} has placeholders that fill in each other without end"
        raise top.fault(key, message, "give each default a plain value")
    for start, end in _places(text) if escapes is not None else ():
        name = text[start + 1 : end - 1]
        if _NAME.fullmatch(name) and text[start - 1 : start] != "$":
            hint = f"write {name}: … under defaults, or add --define {name}=VALUE"
            raise top.fault("command", f"the command needs {{{name}}}, which defaults does not have", hint)
    return text.replace(_OPENING, "{").replace(_CLOSING, "}")


def _places(text: str) -> Iterator[tuple[int, int]]:
    """Where placeholders begin and end: at a brace and after the next closing one, if that is on the same line."""
    at = end = 0
    while (start := text.find("{", at)) >= 0:
        end = end if end > start else text.find("}", start)
        if end < 0:
            return
        line_end = text.find("\n", start, end)
        if line_end < 0:
            yield start, end + 1
        at = line_end + 1 or end + 1


def _built(top: Fields, model: str, config: Mapping[str, str], importer: Importer) -> str:
    """The command that sparkrun builds where a recipe has none: from the defaults that it knows flags of."""
    flags = importer.sparkrun_flags
    if not flags:
        raise top.fault(
            "command", f"no command, and defaults alone are not read for {importer.ENGINE}", "write the command"
        )
    words = [importer.COMMAND, model]
    for key, flag in flags.items():
        value = config.get(key)
        if value is None or (key == "distributed_executor_backend" and value.lower() != "ray"):
            continue
        if flag.endswith("?"):
            words += [flag[:-1]] if value.lower() in {"true", "t", "yes", "y", "1"} else []
        else:
            words += [flag, value]
    return " ".join(words)


def _revision(document: dict[str, Any], top: Fields, model: str, pinned: list[str], notes: list[str]) -> None:
    """The revision of the model: in the command's path of it, else ``model_revision``, which sparkrun downloads."""
    written = top.data.get("model_revision")
    stated = (
        top.scalar(written, ("model_revision",)) if isinstance(written, int) else top.optional_text("model_revision")
    )
    if document["model"].get("id") != model:
        if stated:
            notes.append(f"model_revision {shown(stated)}: the command serves another model than {shown(model)}")
        return
    if len(pinned) > 1 or (pinned and stated and pinned != [stated]):
        names = ", ".join(dict.fromkeys([*pinned, *([stated] if stated else [])]))
        raise top.fault(
            "command", f"the recipe names several revisions of the model: {shown(names)}", "keep one of them"
        )
    revision = pinned[0] if pinned else stated
    if revision:
        document["model"].setdefault("revision", revision)


def _sized(document: dict[str, Any], top: Fields, runtime: str, config: Mapping[str, str]) -> list[str]:
    """How many nodes, and what joins them: sparkrun starts as many as tensor, pipeline and data parallel need."""
    notes: list[str] = []
    data = config.get("data_parallel", "1")
    if re.fullmatch(r"[0-9]{1,9}", data) and int(data) > 1:
        document.setdefault("args", {}).setdefault("data-parallel-size", int(data))
    fewest, most = _bounds(top)
    bounds = {**({"min": fewest} if fewest > 1 else {}), **({"max": most} if most is not None else {})}
    if bounds:
        document["nodes"] = bounds
    stated = config.get("tensor_parallel")
    if stated and stated != str(document.get("tensor_parallel")):
        notes.append(f"defaults.tensor_parallel {shown(stated)}: the command does not use it")
    needed = ranks(document)
    if needed < fewest or (most is not None and needed > most):
        limits = f"at least {fewest}" if needed < fewest else f"at most {most}"
        hint = "correct tensor_parallel under defaults, or min_nodes and max_nodes"
        raise top.fault(
            "command", f"the command is for {needed} node{'' if needed == 1 else 's'}, the recipe for {limits}", hint
        )
    if needed == 1:
        document.pop("executor", None)
    elif document.get("executor") is None:
        ray = runtime in {"vllm-ray", "eugr-vllm"} or config.get("distributed_executor_backend", "").lower() == "ray"
        document["executor"] = "ray" if ray else "native"
    if document.get("executor") == "native":
        notes += set_by_runner(document, _BY_RUNNER, "sparkrun")
    return notes


def _bounds(top: Fields) -> tuple[int, int | None]:
    """The fewest nodes that the recipe takes, and the most."""
    fewest, most, mode = top.count("min_nodes") or 1, top.count("max_nodes"), top.optional_text("mode") or "auto"
    if mode not in {"auto", "solo", "cluster"}:
        raise top.fault("mode", f"mode must be auto, solo or cluster, not {shown(mode)}", "write mode: auto")
    if mode == "solo":
        fewest = most = 1
    if top.flag("solo_only"):
        most = 1
    if top.flag("cluster_only") or mode == "cluster":
        fewest = max(fewest, 2)
    if most is not None and most < fewest:
        raise top.fault("max_nodes", f"at most {most} nodes, but at least {fewest}", "correct min_nodes or max_nodes")
    return fewest, most


def _hooks(top: Fields, config: Mapping[str, str], model: str) -> tuple[list[str], list[str]]:
    """Setup lines, and notes about hooks that no playbook has."""
    setup: list[str] = []
    notes: list[str] = []
    for index, entry in enumerate(top.items("pre_exec")):
        if isinstance(entry, dict):
            to = entry.get("dest") or "/workspace/mods"
            what = f"pre_exec: the copy of {short(str(entry.get('copy')))} to {short(str(to))}"
            notes.append(f"{what}: put it beside the playbook, and write mounts: a source that begins with ./")
        elif isinstance(entry, str):
            line = snapshots(_filled(top, "pre_exec", entry, config).strip(), model, notes, inside=True)
            if holds_secret(line):
                notes.append(
                    f"pre_exec: {short(line)}: it has a secret, which a playbook must not; list it under secrets"
                )
                continue
            # sparkrun runs each in bash, setup lines are run by sh.
            plain = re.fullmatch(r"[\w ./:=@%+,~'-]*", line) and line.count("'") % 2 == 0
            setup.append(line if plain else f"bash -c {shlex.quote(line)}")
        else:
            raise top.fault("pre_exec", f"pre_exec[{index}] must be text or a mapping with copy", "write a shell line")
    why = {
        "post_exec": "a playbook runs nothing in the container after the start",
        "post_commands": "a playbook runs nothing on the controller",
    }
    for key, reason in why.items():
        notes += [f"{key}: {short(str(entry))}: {reason}" for entry in top.items(key)]
    if top.flag("stop_after_post"):
        notes.append("stop_after_post: run sparkcluster down when you are done")
    return setup, notes


def _mods(top: Fields) -> list[str]:
    return top.texts("mods") or top.mapping("runtime_config").texts("mods")


def _left(top: Fields, container: Container) -> list[str]:
    """Notes on keys that playbooks have nothing for."""
    config, notes = top.mapping("runtime_config"), []
    builder = top.optional_text("builder")
    arguments = top.texts("build_args") or config.texts("build_args")
    notes += mods.build(container.image, arguments)
    if builder not in {None, "docker-pull", "eugr"}:
        notes.append(f"builder {short(builder or '')}: build the image before, and push it to a registry or a node")
    if top.mapping("builder_config").data:
        notes.append("builder_config: it is for the image's build")
    models = top.mapping("distribution_config").mapping("models").items("entries")
    for entry in models:
        if (
            isinstance(entry, dict)
            and entry.get("revision")
            and entry.get("name") not in ("{model}", top.data.get("model"))
        ):
            notes.append(f"distribution_config: the revision of {short(str(entry.get('name')))}: its main is staged")
    known = {"mods", "build_args"}
    notes += [f"runtime_config.{shown(key)}: a playbook has no such key" for key in config.data if key not in known]
    for key, why in _FURTHER.items():
        if top.data.get(key):
            notes.append(f"{key}: {short(str(top.data[key]))}: {why}")
    if "benchmark" in top.data:
        notes.append("benchmark: it starts nothing; measure with a program of your own")
    ignored = "a playbook has no such key"
    hints = {"volumes": "; write the directories under mounts", "draft_model": "; the command names what is loaded"}
    known_keys = OWN_KEYS | _SHARED | {"maintainer"}
    return [*notes, *(f"{shown(key)}: {ignored}{hints.get(key, '')}" for key in top.data if key not in known_keys)]
