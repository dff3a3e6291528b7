"""Convert a command that starts an engine, and its container if any, to a playbook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.errors import UsageError
from sparkcluster.importer.commands import Start
from sparkcluster.importer.container import Container, Volume, known
from sparkcluster.importer.unknown import names_home, shown, unknown
from sparkcluster.spec import variables
from sparkcluster.spec.playbook import REPOSITORY
from sparkcluster.spec.secret_patterns import names_secret

Made = tuple[dict[str, Any], list[str]]
"""A playbook, and notes about what was not converted."""

_CACHE_HOMES = ("/root/.cache/huggingface", "/.cache/huggingface", "/root/.cache/huggingface/hub")
_HF = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"})
# Variables that connect ranks, which the plan sets.
_JOINS = frozenset({"RAY_ADDRESS", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
_TYPOGRAPHIC = frozenset("\u2013\u2014\u201c\u201d\u2018\u2019")


def playbook(start: Start) -> Made:
    """The playbook of ``start``, and notes about what was not converted.

    Raises:
        UsageError: the model is missing or unknown.
    """
    served, box = start.importer.read(start.words), start.container or Container()
    # Clients use the port under which the container publishes the engine's.
    published = re.findall(r":(\d+)(?:/\w+)?: write api\.port", "\n".join(box.notes))
    own = [note for note in served.notes if note.partition(":")[0].removeprefix("--port ") not in published]
    notes = [*box.notes, *start.notes, *own]
    if not served.model:
        hint = f"write the model after `{start.importer.COMMAND}`, or add --model MODEL"
        raise UsageError("the command has no model", hint=hint)
    known(served.model, "the model is")
    env, secrets, more = _environment(start.env, box.volumes, start.importer.ENGINE)
    notes += more
    model = model_of(served.model, box.volumes)
    if start.container is not None and "path" in model and model["path"] == served.model:
        mounted = any(f"{served.model}/".startswith(f"{volume.target.rstrip('/')}/") for volume in box.volumes)
        problem = f"the model {served.model} is not in a mounted directory"
        notes += [] if mounted else [f"{shown(problem)}: write model.id, or its path on the nodes as model.path"]
    model |= {key: served.keys.pop(key) for key in ("file", "files") if key in served.keys}
    if not box.image and not served.keys.get("image"):
        notes.append("no image: add image: NAME to this playbook, or runtime: {kind: process} to the inventory")
    if box.image and start.importer.IMAGE_PROBLEM and start.importer.is_entrypoint(box.image):
        notes.append(f"the image {shown(box.image)} {start.importer.IMAGE_PROBLEM}")
    revision = served.keys.pop("revision", None)
    if revision is not None and "id" in model:
        model["revision"] = revision
    elif revision is not None:
        notes.append(f"--revision {shown(revision)}: a directory has no revisions")
    if odd := next((each for each in [*start.words, *map(str, env.values())] if each[:1] in _TYPOGRAPHIC), None):
        raise UsageError(f"{shown(odd)} starts with a typographic character", hint='type - or " instead')
    given = {**{f"--{name}": value for name, value in served.args.items()}, **env}
    homes = [f"{name} {value}" for name, value in given.items() if isinstance(value, str) and names_home(value)]
    notes += [f"{shown(each)}: ~ is not expanded there; write the full path" for each in homes]
    document = {
        "name": name_of(box.name or served.model), "model": model,
        "engine": None if start.importer.ENGINE == engines.DEFAULT else start.importer.ENGINE,
        "image": known(box.image, "the image is") if box.image else None, "tensor_parallel": 1, **box.keys,
        **served.keys, "args": served.args, "env": env, "secrets": secrets, "setup": start.setup,
        "mounts": _mounts(box.volumes, model, env, start, notes), "container": box.section,
    }  # fmt: skip
    return {key: value for key, value in document.items() if value not in ([], {}, None)}, notes


def name_of(written: str) -> str:
    """A playbook name from the name of a container or model."""
    last = written.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip("-_.").lower()[:63] or "imported"


def by_runner(document: Mapping[str, Any], names: Mapping[str, str], runner: str) -> list[str]:
    """A note about variables that a recipe's runner sets in every container, unless the recipe sets them."""
    lost = [f"{name}={value}" for name, value in names.items() if name not in document.get("env", {})]
    return [f"{runner} sets {', '.join(lost)}: write them under env if you need them"] if lost else []


def model_of(written: str, volumes: Iterable[Volume] = ()) -> dict[str, Any]:
    """The section ``model`` for a repository, or for a path, which ``volumes`` map to the node.

    Raises:
        UsageError: neither a repository nor a full path.
    """
    if re.fullmatch(REPOSITORY, written):
        return {"id": written}
    if not written.startswith(("/", "~")) or set(written) & set("*?["):
        problem = f"the model {shown(written)} is neither a repository nor a full path"
        raise UsageError(problem, hint="write ORGANISATION/NAME, or /path")
    source = written
    for volume in volumes:
        below = written.removeprefix(volume.target.rstrip("/"))
        if below != written and below[:1] in {"", "/"}:
            source = volume.source.rstrip("/") + below
    known(source, "the model is at")
    return {"path": source}


def _environment(
    written: Mapping[str, str | None], volumes: Sequence[Volume], engine: str
) -> tuple[dict[str, str], list[str], list[str]]:
    env: dict[str, str] = {}
    secrets: list[str] = []
    notes: list[str] = []
    owners = engines.engine(engine).variables
    for name, value in written.items():
        if name in _HF:
            source = next((volume.source for volume in volumes if value == volume.target), None)
            where = f"hf_home: {shown(source)}" if source else "hf_home"
            notes.append(f"{name}: write {where} in the inventory, if it is not ~/.cache/huggingface")
        elif name in owners:
            notes.append(f"{name}: {owners[name]}")
        elif name in _JOINS:
            notes.append(f"{name}: skipped: sparkcluster sets it from the inventory")
        elif name in variables.HUB_TOKENS:
            notes.append(f"{name}: skipped: needed only to stage gated models; set it where you run sparkcluster")
        elif name in variables.per_node(engine):
            notes.append(f"{name}: skipped: it differs between nodes, so sparkcluster sets it")
        elif names_secret(name):
            secrets.append(name)
            notes.append(f"{name}: listed under secrets; set it in the environment of sparkcluster")
        elif value is None or unknown(value):
            what = shown(name if value is None else f"{name}={value}")
            notes.append(f"{what}: not set; write its value under env")
        else:
            env[name] = value
    return env, secrets, notes


def _mounts(
    volumes: Iterable[Volume], model: Mapping[str, str], env: Mapping[str, str], start: Start, notes: list[str]
) -> list[dict[str, Any]]:
    """Mounts in addition to weights and caches, which the plan mounts."""
    used = " ".join([*start.words[1:], *start.setup, *env.values()])
    homes = {value for name, value in start.env.items() if name in _HF and value}
    caches = engines.engine(start.importer.ENGINE).caches.values()
    path = f"{model.get('path', '')}/"
    out: list[dict[str, Any]] = []
    for volume in volumes:
        source, target = shown(volume.source), shown(volume.target)
        where = f"--volume {source}:{target}"
        if unknown(volume.source + volume.target):
            notes.append(f"{where}: its variables are not set")
            continue
        is_home = volume.target in homes or volume.target.endswith(_CACHE_HOMES)
        is_model = "path" in model and path.startswith(f"{volume.source.rstrip('/')}/")
        if is_home and not homes and volume.source.rstrip("/") != "~/.cache/huggingface":  # hf_home's default
            notes.append(f"{where}: write hf_home: {source} in the inventory")
        is_used = f"{volume.target.rstrip('/')}/" in used
        if volume.target in caches or ((is_home or is_model) and not is_used):
            continue
        # Weights are mounted read-only; other directories may need write access.
        read_only = volume.read_only or is_home or is_model
        out.append({"source": volume.source, "target": volume.target, **({} if read_only else {"read_only": False})})
    return out
