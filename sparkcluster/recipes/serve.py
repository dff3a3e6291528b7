"""A command that serves, with its container or without, as a playbook."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sparkcluster import engines
from sparkcluster.errors import UsageError
from sparkcluster.recipes import setup
from sparkcluster.recipes.container import Container, Volume
from sparkcluster.recipes.shell import (
    SHELLS,
    Assumed,
    Script,
    Unwrapped,
    invocation,
    names_home,
    parse,
    plain,
    shown,
    unknown,
    unwrapped,
)
from sparkcluster.spec import variables
from sparkcluster.spec.playbook import REPOSITORY
from sparkcluster.spec.secret_patterns import names_secret

if TYPE_CHECKING:
    from sparkcluster.recipes.structured import Format

# What a wrapper such as `timeout` may run beside an engine itself.
_PROGRAMS = SHELLS | {"docker", "podman", "nerdctl", "ssh", "tmux", "screen"}
_CACHE_HOMES = ("/root/.cache/huggingface", "/.cache/huggingface", "/root/.cache/huggingface/hub")
_HF = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"})
# Variables that join the ranks, which the plan sets.
_JOINS = frozenset({"RAY_ADDRESS", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})


@dataclasses.dataclass(slots=True)
class Served:
    """What the words of an engine's command say.

    Attributes:
        model: repository or path, as it was written.
        keys: keys of the playbook that follow.
        args: engine arguments by their names.
        notes: what was not carried over, and where it belongs.
    """

    model: str | None = None
    keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)


class Importer(Protocol):
    """How commands and recipes of one engine are read; ``Engine.importer``.

    Attributes:
        ENGINE: its name.
        COMMAND: the words that start it, as guides print them.
        sparkrun_flags: flags by the names of sparkrun's defaults that it has for the engine, in its order; a ``?`` at
            the end marks those without a value.
    """

    ENGINE: str
    COMMAND: str
    sparkrun_flags: Mapping[str, str]

    @property
    def formats(self) -> Sequence[Format]:
        """Formats of recipes that start nothing else."""

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after the command that starts the engine; None where they start something else."""

    def is_worker(self, words: Sequence[str]) -> bool:
        """Whether the words after the command start another rank than the first."""

    def is_twice(self, words: Sequence[str]) -> bool:
        """Whether the recipe contains the command twice."""

    def is_entrypoint(self, image: str) -> bool:
        """Whether the command is the entrypoint of ``image``."""

    def by_variables(self, container: Container) -> Command | None:
        """What an image runs that takes its arguments from variables; None for every other image."""

    def read(self, words: list[str]) -> Served:
        """What the words after the command mean."""

    def launched(self, words: list[str], env: Mapping[str, str | None]) -> Container | None:
        """The container that a command of a recipe's runner starts in ``env``; None where it is no such command."""


def unwrap(words: Sequence[str], env: Mapping[str, str | None], importers: Iterable[Importer]) -> Unwrapped:
    """A command without what only runs it, such as ``env`` and ``timeout``."""

    def starts(rest: list[str]) -> bool:
        program = rest[0].rpartition("/")[2]
        return program in _PROGRAMS or any(importer.after_command(rest) is not None for importer in importers)

    return unwrapped(words, env, starts)


@dataclasses.dataclass(slots=True)
class Command:
    """What is run.

    Attributes:
        words: after the command that starts the engine.
        env: variables set for it.
        setup: lines run before it.
        notes: what was not carried over.
        assumed: conditions within the text of ``bash -c`` under which it runs.
        guards: conditions before it there under which that text ends, as they are where it does not.
        rivals: lines of other commands there that start the engine otherwise.
    """

    words: list[str]
    env: dict[str, str | None] = dataclasses.field(default_factory=dict)
    setup: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    assumed: tuple[Assumed, ...] = ()
    guards: tuple[Assumed, ...] = ()
    rivals: tuple[int, ...] = ()

    @classmethod
    def of(cls, container: Container, script: Script, importer: Importer) -> Command | None:
        """What a container runs, which sees nothing of ``script`` but its here-documents; None for another program."""
        words = list(container.words)
        if container.entrypoint:
            words = [container.entrypoint, *words]
        elif container.entrypoint is None and importer.is_entrypoint(container.image):
            # Guides that write the command again mean it once.
            after = importer.after_command(words)
            if after is None:
                return cls(words, dict(container.env))
            command = cls(after, dict(container.env))
            command.notes.append(f"`{importer.COMMAND}` after an image whose entrypoint it is: kept once")
            return command
        return cls.plain(words, container.env, script, importer)

    @classmethod
    def plain(
        cls, words: list[str], env: Mapping[str, str | None], script: Script, importer: Importer
    ) -> Command | None:
        """What a command line runs in the environment ``env``; None where that is not the engine."""
        found = unwrap(words, env, (importer,))
        words, env = found.words, found.env
        lost = [f"{shown(each)}: left out" for each in found.left_out]
        if found.lost:
            lost.append(f"{shown(', '.join(found.lost))}: sudo does not pass it on; write it under env if it is needed")
        after = importer.after_command(words)
        if after is not None:
            twice = f"duplicate `{importer.COMMAND}`, which ends with `unrecognized arguments`: kept once"
            notes = [*lost, *([twice] if importer.is_twice(words) else [])]
            return cls(after, env, notes=notes)
        if words and words[0].rpartition("/")[2] in SHELLS:
            shell = invocation(words[1:])
            if shell.is_command and shell.operands:
                command = cls.nested(
                    shell.operands[0], env, script, importer, shell.operands[2:], options=shell.options
                )
                if command is not None:
                    command.notes += lost
                return command
        return None

    @classmethod
    def nested(
        cls, text: str, env: Mapping[str, str | None], outer: Script, importer: Importer,
        arguments: Sequence[str] = (), *, options: frozenset[str] = frozenset(),
    ) -> Command | None:  # fmt: skip
        """What a shell text runs, such as the line of ``bash -c``: what is before the engine is setup."""
        script = parse(
            text, environment={name: value for name, value in env.items() if value is not None}, outer=outer,
            where=outer.where, line=outer.line, arguments=arguments, options=options,
        )  # fmt: skip
        ensure_parsed(script, importer)
        script.calls = [call for call in script.calls if not call.silent]
        missing = {name: None for name, value in env.items() if value is None}
        made = [cls.plain(call.words, {**missing, **call.environment}, script, importer) for call in script.calls]
        at, command = next(((at, each) for at, each in enumerate(made) if each is not None), (0, None))
        if command is None:
            return None
        call = script.calls[at]
        for other, later in zip(script.calls[at + 1 :], made[at + 1 :], strict=True):
            if later is not None and later != command:
                command.rivals += (other.line,)
            elif later is None and other.words[0] not in setup.NOTHING:
                command.notes.append(f"the command {shown(shlex.join(other.words))}, which follows the engine")
        before, notes = setup.before(script, at)
        command.setup = [*before, *command.setup]
        command.notes += notes
        command.assumed = (*call.assumed, *command.assumed)
        kept = "\n".join(before)
        command.guards = (*(each for each in call.guards if each.text not in kept), *command.guards)
        command.notes += [*script.notes, *script.unparsed]
        why = "a playbook cannot remove a variable of the image; write it under env, if it may be empty"
        command.notes += [f"unset {name}: {why}" for name in script.unset if name not in script.functions]
        return command


def ensure_parsed(script: Script, importer: Importer) -> None:
    """Refuse a text that may start the engine in what cannot be parsed.

    Raises:
        UsageError: it may.
    """
    for line, text in script.unread:
        if importer.COMMAND.split()[0] in text:
            raise UsageError(f"{script.where}:{line}: cannot be parsed as shell text", hint="copy the whole command")


def playbook(
    container: Container | None, command: Command, downloads: dict[str, str], importer: Importer
) -> tuple[dict[str, Any], list[str]]:
    """The playbook of a command, and what it could not take along.

    ``downloads`` has repositories by the directory that the text downloads them to.

    Raises:
        UsageError: it names no model.
    """
    served = importer.read(command.words)
    notes = [*(container.notes if container else []), *command.notes, *served.notes]
    if not served.model:
        raise UsageError("the command names no model", hint=f"write the model after `{importer.COMMAND}`, or --model")
    _resolved(served.model, "the model is")
    volumes = list(container.volumes) if container else []
    env, secrets, more = _environment(command.env, volumes, importer.ENGINE)
    notes += more
    document: dict[str, Any] = {"name": "", "model": {}}
    revision = served.keys.pop("revision", None)
    document["model"] = _model(served.model, volumes, downloads, notes)
    mounted = any(f"{served.model}/".startswith(f"{volume.target.rstrip('/')}/") for volume in volumes)
    if container is not None and "path" in document["model"] and not mounted:
        problem = f"the model {served.model} is not in a mounted directory"
        notes.append(f"{shown(problem)}: write model.id, or its path on the nodes")
    if revision is not None:
        if "id" in document["model"]:
            document["model"]["revision"] = revision
        else:
            notes.append(f"--revision {shown(revision)}: a directory has no revisions")
    if container is not None and container.image:
        document["image"] = _resolved(container.image, "the image is")
    document |= {"tensor_parallel": 1, **(container.keys if container else {}), **served.keys}
    document["args"] = served.args
    homes = {**{f"--{name}": value for name, value in served.args.items()}, **env}
    notes += [
        f"{shown(f'{name} {value}')}: nothing makes a home directory of ~ there; write the whole path"
        for name, value in homes.items()
        if isinstance(value, str) and names_home(value)
    ]
    document["env"] = env
    document["secrets"] = secrets
    document["setup"] = command.setup
    document["mounts"] = _mounts(volumes, document, command, notes, importer.ENGINE)
    if container is not None:
        document["container"] = container.further
    document["name"] = name_of((container.name if container else None) or str(served.model))
    return {key: value for key, value in document.items() if value not in ([], {}, None)} | (
        {"model": document["model"]}
    ), notes


def name_of(written: str) -> str:
    """A playbook's name out of a container's or a model's."""
    last = written.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip("-_.").lower()[:63] or "imported"


def _resolved(word: str, what: str, *, key: str = "name") -> str:
    """``word``, which needs a variable that the text sets.

    Raises:
        UsageError: the text does not set it.
    """
    if unknown(word):
        name = unknown(word)[0]
        hint = f"add --define {name}=VALUE" if name.isidentifier() else f"write its {key} in the text"
        raise UsageError(f"{what} {plain(word)}, which the text does not set", hint=hint)
    return word


def _model(written: str, volumes: list[Volume], downloads: dict[str, str], notes: list[str]) -> dict[str, Any]:
    if re.fullmatch(REPOSITORY, written):
        return {"id": written}
    if not written.startswith(("/", "~")):
        raise UsageError(
            f"the model {written} is neither a repository nor a full path", hint="write ORGANISATION/NAME, or /path"
        )
    if set(written) & set("*?["):
        raise UsageError(
            f"the model {written} is a pattern, which a shell fills in on its machine", hint="write its path"
        )
    source = written
    for volume in volumes:
        if written == volume.target or written.startswith(volume.target.rstrip("/") + "/"):
            source = volume.source.rstrip("/") + written[len(volume.target.rstrip("/")) :]
    _resolved(source, "the model is at", key="path")
    repository = downloads.get(source.rstrip("/"))
    if repository:
        notes.append(
            f"the download of {shown(repository)} to {shown(source)}: download it on every node, or write model.id"
        )
    return {"path": source}


def _environment(
    written: dict[str, str | None], volumes: list[Volume], engine: str
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
            notes.append(f"{name}: left out: it follows from the inventory")
        elif name in variables.HUB_TOKENS:
            notes.append(f"{name}: left out: the engine needs none; set HF_TOKEN where you stage gated models")
        elif name in variables.per_node(engine):
            notes.append(f"{name}: left out: it differs between nodes, and sparkcluster sets it on each")
        elif names_secret(name):
            secrets.append(name)
            notes.append(f"{name}: listed under secrets; set it in the environment of sparkcluster")
        elif value is None:
            notes.append(f"{shown(name)}: write its value under env; the text takes it from the caller")
        elif unknown(value):
            notes.append(f"{shown(f'{name}={value}')}: write its value under env; the text does not set it")
        else:
            env[name] = value
    return env, secrets, notes


def _mounts(
    volumes: list[Volume], document: dict[str, Any], command: Command, notes: list[str], engine: str
) -> list[dict[str, Any]]:
    """What the container has to see beside weights and caches, which the plan mounts by itself."""
    used = " ".join([*command.words[1:], *command.setup, *document["env"].values()])
    homes = {value for name, value in command.env.items() if name in _HF and value}
    out: list[dict[str, Any]] = []
    for volume in volumes:
        if unknown(volume.source + volume.target):
            notes.append(f"--volume {shown(volume.source)}:{shown(volume.target)}: the text does not set them")
            continue
        is_home = volume.target in homes or volume.target.endswith(_CACHE_HOMES)
        model = document["model"].get("path")
        is_model = model is not None and (model == volume.source or model.startswith(volume.source.rstrip("/") + "/"))
        named = f"{volume.target.rstrip('/')}/" in used
        if volume.target in engines.engine(engine).caches.values():
            continue  # kept by every playbook's caches
        if is_home and not homes:
            source, target = shown(volume.source), shown(volume.target)
            notes.append(f"--volume {source}:{target}: write hf_home: {source} in the inventory, if it differs")
        if (is_home or is_model) and not named:
            continue
        # Weights are read; only what is neither may have to be written.
        read_only = volume.read_only or is_home or is_model
        out.append({"source": volume.source, "target": volume.target, **({} if read_only else {"read_only": False})})
    return out
