"""Checks across keys of a playbook: arguments and variables set elsewhere, secrets, mounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sparkcluster import engines
from sparkcluster.engines.base import Engine
from sparkcluster.errors import Problem
from sparkcluster.spec import powers, variables
from sparkcluster.spec.document import Document, KeyPath, shown
from sparkcluster.spec.playbook import Cache, Mount, Playbook
from sparkcluster.spec.secret_patterns import holds_secret, names_secret

_OF_THE_CONTAINER = ("/dev/", "/proc/", "/sys/", "/sparkcluster/")
_ARGUMENT = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*(\.[A-Za-z0-9_+-]+)*")


def check(written: Playbook, document: Document) -> list[Problem]:
    """Problems of a playbook whose single keys are valid."""
    checks = (_model, _alone, _caches, _arguments, _environment, _mounts, _build, _command)
    return [problem for each in checks for problem in each(written, document)]


def _model(written: Playbook, document: Document) -> Iterator[Problem]:
    refused = powers.never(written.model.path) if written.model.path is not None else None
    if refused:
        yield document.problem(("model", "path"), refused, "give another directory, such as ~/data")
    engine = engines.engine(written.engine)
    if (engine.weights_format(written) == "gguf") != (written.model.file is not None):
        if written.model.file is None:
            hint = "write file: NAME.gguf (the first part of a split file)"
            yield document.problem(("model",), f"{engine.title} serves a single file", hint, key=True)
        else:
            message = f"{engine.title} serves complete models, not single files"
            yield document.problem(("model", "file"), message, "remove file; files selects what is staged")
    file = written.model.file or ""
    first = re.sub(r"-\d{5}(?=-of-\d{5}[.]gguf$)", "-00001", file)
    if first != file:
        yield document.problem(("model", "file"), "is not the first part of a split file", f"write {first}")
    for key in ("id", "revision"):
        if ".." in (getattr(written.model, key) or ""):
            yield document.problem(("model", key), "must not contain '..'")


def _alone(written: Playbook, document: Document) -> Iterator[Problem]:
    engine = engines.engine(written.engine)
    for key in ("tensor_parallel", "pipeline_parallel"):
        if getattr(written, key) not in {None, "auto", 1} and not engine.executors:
            why = f": {engine.alone}" if engine.alone else ""
            yield document.problem((key,), f"{engine.title} serves on one Spark{why}", f"write {key}: 1, or remove it")


def _caches(written: Playbook, document: Document) -> Iterator[Problem]:
    for index, cache in enumerate(written.kept_caches):
        if cache.name in [each.name for each in written.kept_caches[:index]]:
            yield document.problem(("caches", index, "name"), f"duplicate cache name {cache.name}", "rename one")


def _arguments(written: Playbook, document: Document) -> Iterator[Problem]:
    for name, value in written.args.items():
        found = _argument(name, value, engines.engine(written.engine))
        if found:
            yield document.problem(("args", name), *found, key=True)


def _argument(  # noqa: PLR0911 - one return for each rule
    name: str, value: object, engine: Engine
) -> tuple[str, str | None] | None:
    """Problem and fix of an argument that is not named canonically or that another key sets."""
    bare = name.lstrip("-")
    short = engine.short_arguments.get(bare)
    if short:
        return f"{shown(name)[1:-1]} is a short option", f"write {short}"
    plain = bare.replace("_", "-").lower()
    negated = None if plain in engine.known_arguments() else engine.arguments.get(plain.removeprefix("no-"))
    owner = engine.arguments.get(plain) or negated
    if owner:
        return "sparkcluster sets this argument itself", f"write {owner}"
    head = plain.partition(".")[0].removeprefix("no-")
    known = {*engine.arguments, *engine.known_arguments()}
    whole = min((each for each in known if head and each.startswith(head)), default=head)
    if whole != head:
        return f"abbreviation of --{whole}", f"write {engine.arguments.get(whole, whole)}"
    if names_secret(plain) and isinstance(value, str):
        return "a secret in a command line is visible to every user of the node", "list its variable under secrets"
    if isinstance(value, list) and any(re.match(r"-\D", str(each)) for each in value):
        return "a value that starts with a dash is parsed as an argument", "write it as a key under args"
    if not _ARGUMENT.fullmatch(name):
        section = plain.partition(".")[0]
        near = section + bare[len(section) :]
        hint = f"write {near}" if _ARGUMENT.fullmatch(near) else None
        return f"must be {engine.title}'s name of the argument, in lower case, with dashes but no leading dashes", hint
    return None


def _environment(written: Playbook, document: Document) -> Iterator[Problem]:
    yield from environment(written.env, written.engine, ("env",), document)
    for index, name in enumerate(written.secrets):
        planned = variables.refused(name, written.engine)
        if planned:
            yield document.problem(("secrets", index), f"{name}: {planned[0]}", planned[1])
        elif name in written.env:
            yield document.problem(("secrets", index), f"{name} is also in env", "remove it from env")


def environment(names: Iterable[str], engine: str, section: KeyPath, document: Document) -> Iterator[Problem]:
    """Problems of variables in a section: variables that sparkcluster sets, and secrets."""
    for name in names:
        path = (*section, name)
        planned = variables.refused(name, engine)
        if planned:
            yield document.problem(path, *planned, key=True)
        elif names_secret(name):
            message = "looks like a secret, but env is shown in plans and logs"
            hint = f"write secrets: [{name}], and export it before you run sparkcluster"
            yield document.problem(path, message, hint, key=True)


def _mounts(written: Playbook, document: Document) -> Iterator[Problem]:
    targets: set[str] = set()
    sections: dict[str, Sequence[Mount | Cache]] = {"mounts": written.mounts, "caches": written.kept_caches}
    for key, entries in sections.items():
        for index, entry in enumerate(entries):
            path: KeyPath = (key, index)
            refused = _source(entry) if isinstance(entry, Mount) else None
            if refused:
                yield document.problem((*path, "source"), refused, "give another directory, such as ~/data")
            target = powers.normal(entry.target)
            if target == "/" or f"{target}/".startswith(_OF_THE_CONTAINER):
                yield document.problem((*path, "target"), f"must not be {target}: the container needs its own")
            elif target in targets:
                yield document.problem(
                    (*path, "target"), f"duplicate target {target}", "give each mount its own target"
                )
            targets.add(target)


def _source(mount: Mount) -> str | None:
    if not mount.is_local:
        return powers.never(mount.source)
    return None if mount.read_only else "playbook files are read-only in the container"


def _build(written: Playbook, document: Document) -> Iterator[Problem]:
    if written.build is not None and written.image is None:
        yield document.problem(("build",), "needs image, the base image of the build", "add image: …", key=True)


def _command(written: Playbook, document: Document) -> Iterator[Problem]:
    if written.command is None:
        return
    if written.args:
        message = "cannot be combined with command, which is the complete command line"
        yield document.problem(("args",), message, "keep one of them", key=True)
    for index, word in enumerate(written.command):
        if holds_secret(word):
            message = "a secret in a command line is visible to every user of the node"
            yield document.problem(("command", index), message, "list its variable under secrets")
