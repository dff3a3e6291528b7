"""The commands of a shell text that start an engine, and what else they need: containers, downloads, other machines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from sparkcluster.errors import UsageError
from sparkcluster.recipes import compose_run
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.container import read as read_container
from sparkcluster.recipes.serve import Command, Importer, unwrap
from sparkcluster.recipes.shell import SHELLS, Assumed, Call, Script, Unwrapped, left_out, parse, plain, shown, unknown
from sparkcluster.recipes.terminals import PROGRAMS, Terminals

_DOCKER = frozenset({"docker", "podman", "nerdctl"})
_QUIET = frozenset(
    {"source", ".", "set", "echo", "printf", "cd", "mkdir", "sleep", "exit", "true", ":", "clear", "trap", "shopt"}
)
# Options of ssh with a value (man ssh)
_SSH_VALUED = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
_MAX_REMOTE = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A command that starts an engine.

    Attributes:
        line: of the text.
        container: it runs in; None without.
        assumed: conditions under which it runs.
        guards: conditions before it under which the script ends, as they are where it does not.
        shown: for messages.
        rivals: lines of other engines that the same command may start.
    """

    line: int
    container: Container | None
    command: Command
    importer: Importer
    assumed: tuple[Assumed, ...]
    guards: tuple[Assumed, ...]
    shown: str
    rivals: tuple[int, ...] = ()

    def differs(self, other: Start) -> bool:
        """Whether ``other`` is not the same engine."""
        return (self.container, self.command) != (other.container, other.command)


@dataclasses.dataclass(slots=True)
class Starts:
    """What was found in a text.

    Attributes:
        downloads: repositories by the directory that the text downloads them to.
        notes: commands that were not carried over.
        containers: those that the text starts without an engine, by their names, with the conditions.
        used: keys of those in which docker exec runs something.
        written: files that here-documents are written to, with the note about each that is not run.
        compose: line of a docker compose command.
        unclear: lines of commands that may start an engine, but are not followed.
        doubts: lines of containers without an engine, whose image may be another word; why, and what to type.
    """

    script: Script
    engines: list[Start] = dataclasses.field(default_factory=list)
    downloads: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    containers: dict[str, tuple[Container, Call]] = dataclasses.field(default_factory=dict)
    used: list[str] = dataclasses.field(default_factory=list)
    written: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    compose: int | None = None
    unclear: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    doubts: list[tuple[int, tuple[str, str]]] = dataclasses.field(default_factory=list)


def starts(text: str, outer: Script, importers: list[Importer]) -> Starts:
    """All commands of ``text`` that start an engine; ``outer`` has its file and the user's values."""
    script = parse(text, environment=outer.environment, outer=outer, where=outer.where)
    out = Starts(script)
    for call in _everywhere(script.calls, script):
        if re.match(r"--?[A-Za-z]", call.words[0]):
            raise UsageError(
                f"{script.where}:{call.line}: a command begins with {shown(call.words[0])}",
                hint="end the line before it with a backslash, without comments and empty lines between",
            )
        plain_ = unwrap(call.words, call.environment, importers)
        try:
            found = _started(out, call, plain_, importers)
        except UsageError as error:
            if error.message.startswith(script.where):
                raise
            raise UsageError(f"{script.where}:{call.line}: {error.message}", hint=error.hint) from None
        if found is not None:
            out.engines.append(found)
        else:
            if not call.silent:
                _left(call, plain_.words, out)
            if not out.engines and _may_start(plain_.words, importers):
                out.unclear.append((call.line, _abridged(call.words)))
    used = out.used if any(_is_exec(start) for start in out.engines) else []
    out.notes += [
        f"the command {_abridged(call.words)}" for name, (_, call) in out.containers.items() if name not in used
    ]
    out.notes += [note for target, note in out.written if target not in script.followed]
    out.notes += script.notes
    return out


# Commands that take the engine's command for a text.
_ABOUT = frozenset(
    {"pkill", "pgrep", "grep", "kill", "killall", "sed", "awk", "logger", "cat", "tee", "which", "type", "alias"}
)


def _may_start(words: list[str], importers: list[Importer]) -> bool:
    """Whether a command that is not followed may start an engine: by its words, or since it is not known at all."""
    if any(importer.COMMAND in name for word in words for name in unknown(word) for importer in importers):
        return True
    programs = {word.rpartition("/")[2] for word in words}
    # what a shell, also one in a container, gets as text was read
    if not words or words[0] in _QUIET | _ABOUT | {"command"} or programs & (SHELLS | (_ABOUT - {"cat", "type"})):
        return False
    if not "".join(plain(word) for word in words if not unknown(word)).strip():
        return True
    return any(
        importer.after_command(words[at:]) is not None or importer.COMMAND in words[at]
        for at in range(1, len(words))
        for importer in importers
    )


def _is_exec(start: Start) -> bool:
    return start.container is not None and start.container.entrypoint == ""


def _left(call: Call, words: list[str], out: Starts) -> None:
    """Remember what a command that starts no engine says."""
    if compose_run.is_compose(words):
        out.compose = call.line
    if words[:2] in (["hf", "download"], ["huggingface-cli", "download"]):
        _downloaded(words, out.downloads)
    elif words[:1] in (["source"], ["."]):
        out.notes.append(f"the variables of {shown(' '.join(words[1:2]))}, which the text reads")
    elif call.document:
        out.written.append((call.target or "", left_out(call.document)))
    elif words and words[0] not in _QUIET and not any(call is started for _, started in out.containers.values()):
        out.notes.append(f"the command {_abridged(call.words)}")


def _started(out: Starts, call: Call, found: Unwrapped, importers: list[Importer]) -> Start | None:
    """The engine that a command starts, in a container or not; a container without one is remembered."""
    script = dataclasses.replace(out.script, line=call.line)
    words, env = found.words, found.env
    for importer in importers:
        container = _container(words, env, out, call) or (importer.launched(words, env) if words else None)
        if container is None:
            command = Command.plain(call.words, call.environment, script, importer)
        else:
            _put_script(container, call, script)
            script = dataclasses.replace(script, files=_visible(container, out.script))
            command = importer.by_variables(container) or Command.of(container, script, importer)
        if command is not None:
            assumed, guards = (*call.assumed, *command.assumed), (*call.guards, *command.guards)
            if words[1:2] == ["exec"] and out.used:
                assumed = (*out.containers[out.used[-1]][1].assumed, *assumed)
            text = _abridged(call.words)
            return Start(call.line, container, command, importer, assumed, guards, text, command.rivals)
        if container is not None and container.image and words[1:2] != ["exec"]:
            _remember(out, container, call)
            if container.unclear is not None:
                out.doubts.append((call.line, container.unclear))
                if not out.engines and any(importer.ENGINE in word for word in words):
                    out.unclear.append((call.line, _abridged(call.words)))
    return None


def _everywhere(calls: list[Call], script: Script, depth: int = 0) -> Iterator[Call]:
    """The commands, with those that ssh runs elsewhere and tmux in a terminal."""
    terminals = Terminals()
    for call in calls:
        inner = _inner(call, script, terminals) if depth < _MAX_REMOTE else None
        if inner is None:
            yield call
        for nested in inner or ():
            yield from _within_call(call, nested, script, depth)
    for call, nested in terminals.rest(script):
        yield from _within_call(call, nested, script, depth)


def _within_call(call: Call, nested: Script, outer: Script, depth: int) -> Iterator[Call]:
    """The commands of ``nested``, which ``call`` runs; what is lost of it is lost of ``outer``."""
    host = _host(call) or call.host
    inside = [
        dataclasses.replace(
            each,
            assumed=(*call.assumed, *each.assumed),
            guards=(*call.guards, *each.guards),
            host=host,
            silent=call.silent or each.silent,
        )
        for each in nested.calls
    ]
    yield from _everywhere(inside, nested, depth + 1)
    outer.notes += nested.notes
    outer.unread += nested.unread


def _operands(words: list[str]) -> list[str]:
    """What follows the options of ssh: the machine, then what runs there."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at][-1] in _SSH_VALUED and len(words[at]) == 2 else 1
    return words[at:]


def _host(call: Call) -> str:
    """The machine that ``ssh`` reaches; empty for another command."""
    words = unwrap(call.words, {}, ()).words
    return next(iter(_operands(words)), "") if words[:1] == ["ssh"] else ""


def _inner(call: Call, script: Script, terminals: Terminals) -> list[Script] | None:
    """The shell texts that a command runs elsewhere; None for one that runs nothing."""
    found = unwrap(call.words, call.environment, ())
    words = found.words
    if words[:1] and words[0] in PROGRAMS:
        return terminals.run(call, found, script)
    if words[:1] != ["ssh"]:
        return None
    remote = " ".join(_operands(words)[1:]).strip()
    if call.stdin is not None and remote.split()[:1] in ([], ["bash"], ["sh"]):
        remote = call.stdin
    return [parse(remote, outer=script, where=script.where, line=call.line)] if remote else None


def _put_script(container: Container, call: Call, script: Script) -> None:
    """What a shell in the container reads, or a script of the text that is mounted, is what it runs."""
    words = container.words
    if call.stdin is not None and words[-1:] in (["bash"], ["sh"]):
        container.words = ["bash", "-c", call.stdin]
        return
    at = 1 if words[:1] and words[0].rpartition("/")[2] in {"bash", "sh"} else 0
    if len(words) <= at or words[at].startswith("-"):
        return
    for volume in container.volumes:
        inside = words[at].removeprefix(volume.target.rstrip("/"))
        if inside == words[at] or (inside and not inside.startswith("/")):
            continue
        source = plain(volume.source.rstrip("/")) + inside
        name = next((name for name in script.files if source == name or source.endswith(f"/{name}")), None)
        if name is not None:
            if not source.startswith(("$PWD/", "$(pwd)/")) and source != name:
                container.notes.append(f"{shown(source)}: taken to be the file {shown(name)} that the text writes")
            container.words = ["bash", "-c", script.files[name] or "", words[at], *words[at + 1 :]]
            script.followed.add(name)


def _visible(container: Container, script: Script) -> dict[str, str | None]:
    """The files of the text that a container sees, by their paths in it."""
    out: dict[str, str | None] = {}
    for volume in container.volumes:
        source = re.sub(r"^\$(PWD|\(pwd\))(/|$)", "", plain(volume.source).rstrip("/"))
        for name, content in script.files.items():
            if name == source:
                out[volume.target] = content
            elif name.startswith(f"{source}/") or not source:
                out[f"{volume.target.rstrip('/')}/{name[len(source) :].lstrip('/')}"] = content
    return out


def _remember(out: Starts, container: Container, call: Call) -> None:
    """A container without an engine, for ``docker exec``.

    Raises:
        UsageError: a condition that the text does not decide says which of two it is.
    """
    name = f"{call.host} {container.name or ''}"
    before = out.containers.get(name)
    if before is not None and before[0] != container and (before[1].assumed or call.assumed):
        why = (call.assumed or before[1].assumed)[-1]
        called = f"the container {shown(container.name)}" if container.name else "the container"
        raise UsageError(
            f"{out.script.where}:{why.line}: `{why.text}` decides what {called} is",
            hint="copy the commands of one of them to a file of its own",
        )
    out.containers[name] = (container, call)


def _container(words: list[str], env: Mapping[str, str | None], out: Starts, call: Call) -> Container | None:
    """The container that ``docker run`` starts, or that ``docker exec`` runs a command in."""
    if not words or words[0].rpartition("/")[2] not in {*_DOCKER, "docker-compose"}:
        return None
    if compose_run.is_compose(words):
        return _composed(words, env, out)
    words = words[2:] if words[1:2] == ["container"] else words[1:]
    if words[:1] not in (["run"], ["exec"]) or _is_diagnostic(words):
        return None
    container = read_container(words[1:])
    # `-e NAME` takes the value of the shell that runs docker
    container.env = {name: env.get(name) if value is None else value for name, value in container.env.items()}
    return container if words[0] == "run" else _within(container, out, call)


def _composed(words: list[str], env: Mapping[str, str | None], out: Starts) -> Container | None:
    """The container that ``docker compose run`` starts, if the text wrote the Compose file."""

    def variable(name: str) -> str | None:
        out.script.asked[name] = None
        return env.get(name, out.script.defines.get(name, "~" if name == "HOME" else None))

    found = compose_run.as_docker_run(words, out.script.files, variable)
    if found is None:
        return None
    container = read_container(found[0])
    container.env = {name: env.get(name) if value is None else value for name, value in container.env.items()}
    container.notes += found[1]
    out.script.followed.add(found[2])
    return container


def _within(executed: Container, out: Starts, call: Call) -> Container:
    """``docker exec``: what runs in a container that the text started before.

    Raises:
        UsageError: it may be one of several.
    """
    here = [name for name in out.containers if name.startswith(f"{call.host} ")] or list(out.containers)
    named = [name for name in here if name == f"{call.host} {executed.image}"]
    found = named or (here if len(here) == 1 else [])
    if not found and here:
        raise UsageError(
            f"docker exec in {shown(executed.image)}, which is one of {len(here)} containers", hint="write its name"
        )
    if not found:
        name, executed.image = executed.image, ""
        executed.notes.append(f"image: the text does not start the container {shown(name)}; write its image")
        return executed
    out.used.append(found[0])
    started = out.containers[found[0]][0]
    return dataclasses.replace(
        started,
        words=executed.words,
        entrypoint="",
        env={**started.env, **executed.env},
        notes=[*started.notes, *executed.notes],
    )


def _is_diagnostic(words: list[str]) -> bool:
    """Whether a ``docker run`` only looks at something, as ``nvidia-smi`` or ``--version``."""
    return words[-1] in {"nvidia-smi", "--version", "--help"} or "bench" in words


def _downloaded(words: list[str], downloads: dict[str, str]) -> None:
    """Remember which repository a directory was downloaded from."""
    operands = [
        word for before, word in pairwise(words[1:]) if not word.startswith("-") and not before.startswith("--")
    ]
    for index, word in enumerate(words[:-1]):
        if word == "--local-dir":
            downloads[words[index + 1].rstrip("/")] = next(iter(operands), words[2])


def _abridged(words: list[str]) -> str:
    line = shown(" ".join(words)).replace("\n", " ")
    return line if len(line) <= 80 else f"{line[:79]}…"
