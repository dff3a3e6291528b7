"""Checks across keys of a playbook: arguments and variables set elsewhere, secrets, mounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sparkcluster import engines
from sparkcluster.errors import Problem
from sparkcluster.spec import beside, powers, variables
from sparkcluster.spec.document import Document, KeyPath, shown
from sparkcluster.spec.playbook import Playbook, is_root
from sparkcluster.spec.secret_patterns import holds_secret, names_secret

_ARGUMENT = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*(\.[A-Za-z0-9_+-]+)*")


def check(written: Playbook, document: Document) -> list[Problem]:
    """Problems of a playbook whose keys are each valid."""
    checks = (
        _model,
        _names,
        _arguments,
        _environment,
        _secrets,
        _mounts,
        _caches,
        _build,
        _container,
        _command,
        _verify,
    )
    return [problem for each in checks for problem in each(written, document)]


def repeated(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Positions of ``names`` that occurred before."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield index, name
        seen.add(name)


def _model(written: Playbook, document: Document) -> Iterator[Problem]:
    if written.model.path is not None and "revision" in written.model.model_fields_set:
        message = "applies to Hugging Face repositories only; a directory has no revisions"
        yield document.problem(("model", "revision"), message, "remove it", key=True)
    refused = powers.never(written.model.path) if written.model.path is not None else None
    if refused:
        yield document.problem(("model", "path"), refused, "give another directory, such as ~/data")
    for key in ("id", "revision"):
        value = getattr(written.model, key)
        if value and ".." in value:
            yield document.problem(("model", key), "must not contain '..'")


def _names(written: Playbook, document: Document) -> Iterator[Problem]:
    for index, name in repeated([written.model_name, *written.aliases]):
        yield document.problem(("aliases", index - 1), f"duplicate name {name}", "name the model once in each way")


def _arguments(written: Playbook, document: Document) -> Iterator[Problem]:
    engine = engines.engine(written.engine)
    known = {*engine.arguments, *engine.known_arguments()} if written.args else ()
    for name, value in written.args.items():
        path = ("args", name)
        bare = name.lstrip("-")
        short = engine.short_arguments.get(bare)
        plain = bare if short else bare.replace("_", "-").lower()
        owner = engine.arguments.get(plain) or engine.arguments.get(plain.removeprefix("no-"))
        head = plain.partition(".")[0].removeprefix("no-")
        whole = min((each for each in known if head and each.startswith(head)), default=head)
        if short:
            message = f"{shown(name)[1:-1]} is a short form of an argument"
            yield document.problem(path, message, f"write {short}", key=True)
        elif owner:
            yield document.problem(path, "sparkcluster sets this argument itself", f"write {owner}", key=True)
        elif whole != head:
            instead = engine.arguments.get(whole, whole)
            yield document.problem(path, f"abbreviation of --{whole}", f"write {instead}", key=True)
        elif names_secret(plain) and isinstance(value, str):
            message = "a secret in a command line can be read by every user of the node"
            yield document.problem(path, message, "list its variable under secrets", key=True)
        elif isinstance(value, list) and any(re.match(r"-\D", str(each)) for each in value):
            yield document.problem(
                path, "a value that starts with a dash is read as another argument", "write it under args"
            )
        elif not _ARGUMENT.fullmatch(name):
            head, dot, tail = bare.partition(".")
            near = head.replace("_", "-").lower() + dot + tail
            hint = f"write {near}" if _ARGUMENT.fullmatch(near) else None
            message = (
                f"must be {engine.title}'s name of the argument, in lower case with dashes, without leading dashes"
            )
            yield document.problem(path, message, hint, key=True)


def _environment(written: Playbook, document: Document) -> Iterator[Problem]:
    yield from environment(written.env, written.engine, ("env",), document)


def environment(names: Iterable[str], engine: str, section: KeyPath, document: Document) -> Iterator[Problem]:
    """Problems of variables in a section: those that sparkcluster sets itself, and secrets."""
    for name in names:
        path = (*section, name)
        planned = variables.refused(name, engine)
        if planned:
            yield document.problem(path, *planned, key=True)
        elif names_secret(name):
            message = "looks like a secret, and env is shown in plans and logs"
            hint = f"write secrets: [{name}], and set it in the environment you start sparkcluster in"
            yield document.problem(path, message, hint, key=True)


def _secrets(written: Playbook, document: Document) -> Iterator[Problem]:
    for index, name in enumerate(written.secrets):
        path = ("secrets", index)
        planned = variables.refused(name, written.engine)
        if planned:
            yield document.problem(path, f"{name}: {planned[0]}", planned[1])
        elif name in written.env:
            yield document.problem(path, f"{name} is in env as well", "remove it from env")
        elif name in written.secrets[:index]:
            yield document.problem(path, f"duplicate {name}")


def _mounts(written: Playbook, document: Document) -> Iterator[Problem]:
    targets: dict[str, KeyPath] = {}
    for index, mount in enumerate(written.mounts):
        path = ("mounts", index)
        if mount.source.startswith(beside.PREFIX):
            refused = None if mount.read_only else "what is beside the playbook is read-only in the container"
        else:
            refused = powers.never(mount.source)
        if refused:
            yield document.problem((*path, "source"), refused, "give another directory, such as ~/data")
        yield from _target(mount.target, (*path, "target"), targets, document)
    for index, cache in enumerate(written.kept_caches):
        yield from _target(cache.target, ("caches", index, "target"), targets, document)


def _target(written: str, path: KeyPath, taken: dict[str, KeyPath], document: Document) -> Iterator[Problem]:
    target = powers.normal(written)
    if target == "/" or any(f"{target}/".startswith(f"{each}/") for each in ("/dev", "/proc", "/sys", "/sparkcluster")):
        yield document.problem(path, f"must not be {target}: the container needs its own")
    elif target in taken:
        yield document.problem(path, f"duplicate target {target}", "give each mount its own target")
    taken[target] = path


def _caches(written: Playbook, document: Document) -> Iterator[Problem]:
    for index, name in repeated(cache.name for cache in written.kept_caches):
        yield document.problem(("caches", index, "name"), f"duplicate cache name {name}", "rename one")


def _build(written: Playbook, document: Document) -> Iterator[Problem]:
    if written.build is None:
        return
    if written.image is None:
        yield document.problem(("build",), "needs image, on which it builds", "add image: …", key=True)
    if written.build.script is not None and "dockerfile" in written.build.model_fields_set:
        message = "cannot be combined with dockerfile, which would run it"
        yield document.problem(("build", "script"), message, "keep one of them", key=True)


def _container(written: Playbook, document: Document) -> Iterator[Problem]:
    own = written.container
    if own.cap_add and own.user is not None and not is_root(own.user):
        message = f"has no effect for user {own.user}: Docker gives capabilities to root alone"
        yield document.problem(("container", "cap_add"), message, "remove it, or user", key=True)


def _command(written: Playbook, document: Document) -> Iterator[Problem]:
    if written.command is None:
        return
    if written.args:
        message = "cannot be combined with command, which is the whole command line"
        yield document.problem(("args",), message, "keep one of them", key=True)
    for index, word in enumerate(written.command):
        if holds_secret(word):
            message = "a secret in a command line can be read by every user of the node"
            yield document.problem(("command", index), message, "list its variable under secrets")


def _verify(written: Playbook, document: Document) -> Iterator[Problem]:
    if "reasoning-parser" in written.args and written.verify.max_tokens < 512:
        message = f"is {written.verify.max_tokens}, but a reasoning model needs at least 512 to reach its answer"
        yield document.problem(("verify", "max_tokens"), message, "write max_tokens: 512")
