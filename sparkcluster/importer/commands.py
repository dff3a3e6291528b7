"""Find the commands in shell text that start an engine: on the host, in a container, by ssh, or by ``bash -c``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sparkcluster.errors import NoEngine, UsageError
from sparkcluster.importer import container, setup
from sparkcluster.importer.container import Container
from sparkcluster.importer.shell import Call, Condition, Shell
from sparkcluster.importer.unknown import definable, plain, shown, unknown

_DOCKER = frozenset({"docker", "podman", "nerdctl"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
# Programs that only run another program, and programs that also change how it runs, whose options are noted.
_WRAPPERS = frozenset({"command", "env", "exec", "nohup", "setsid", "sudo", "time"})
_CHANGERS = frozenset(
    {"chrt", "conda", "ionice", "nice", "nsys", "numactl", "stdbuf", "systemd-run", "taskset", "timeout", "uv", "uvx"}
)
# Options of ssh with a value (man ssh).
_SSH_VALUED = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
# Commands that an engine does not need, or that mention it without running it.
QUIET = frozenset(
    {
        "[", "break", "cat", "cd", "clear", "command", "continue", "echo", "printf", "set", "shopt", "sleep", "test",
        "trap", "wait",
    }
)  # fmt: skip
_ABOUT = frozenset({"pkill", "pgrep", "grep", "kill", "sed", "awk", "logger", "tee", "which", "type", "alias"})
_DOCUMENT = ("here-documents are unsupported", "save its text to a file and import that file")
_SCRIPT = "sparkcluster import {0}   if it is in a container, copy it from there first"
# Commands that start something else: pattern, problem, hint.
_INSTEAD = (
    (r"\bollama\b", "this starts Ollama, but sparkcluster imports only {titles}", "write a playbook by hand"),
    (r"\brun-recipe\.(?:sh|py)\s+(\S+)", "this starts the recipe {0}", "sparkcluster import {0}"),
    (r"\bsparkrun\s+run\s+(\S+)", "this starts the recipe {0} of sparkrun", "import the recipe's YAML file"),
    (r"\bdocker(?:-| )compose\b", "docker compose reads its own file", "sparkcluster import docker-compose.yml"),
    (r"^(?:(?:ba)?sh )?(\S+\.(?:sh|py))\b", "this runs {0}, which may start {titles}", _SCRIPT),
)  # fmt: skip


@dataclasses.dataclass(slots=True)
class EngineCommand:
    """The parsed command of an engine.

    Attributes:
        model: repository or path as written.
        keys: resulting playbook keys.
        args: engine arguments by name.
        unset: values of flags that are skipped, since parts of them are unknown.
        notes: options that were not converted, and where to write them.
    """

    model: str | None = None
    keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    unset: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


class Importer(Protocol):
    """Parser for commands of one engine; ``Engine.importer``.

    Attributes:
        ENGINE: name of the engine.
        TITLE: display name.
        COMMAND: the command that starts it, as printed in guides.
        IMAGE_PROBLEM: problem of images that have it as entrypoint, or an empty string.
    """

    ENGINE: str
    TITLE: str
    COMMAND: str
    IMAGE_PROBLEM: str

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after the engine's command; None for another command."""

    def is_worker(self, words: Sequence[str]) -> bool:
        """Whether these arguments start a rank other than the first."""

    def is_entrypoint(self, image: str) -> bool:
        """Whether the command is the entrypoint of ``image``."""

    def read(self, words: list[str]) -> EngineCommand:
        """Parse the words after the command."""

    def launched(self, words: list[str], env: Mapping[str, str | None]) -> Container | None:
        """The container that a recipe runner's command starts in ``env``; None for another command."""


@dataclasses.dataclass(slots=True)
class Start:
    """A command that starts an engine.

    Attributes:
        line: line in the text.
        importer: parser of the engine.
        words: words after the engine's command.
        env: its variables; None for the caller's value.
        container: its container, or None.
        setup: lines to run before it in the container.
        notes: parts that were not converted.
        conditions: conditions under which it runs.
    """

    line: int
    importer: Importer
    words: list[str]
    env: dict[str, str | None]
    container: Container | None = None
    setup: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    conditions: tuple[Condition, ...] = ()

    @property
    def what(self) -> tuple[object, ...]:
        """What is started, without line and conditions, for comparison."""
        return self.words, self.env, self.container, self.setup


class Commands:
    """Finds what the commands of a text start.

    Attributes:
        containers: by name, containers whose own command starts no engine.
        others: line and words of commands that start no engine.
        doubts: line and words of unsupported commands that may start an engine.
    """

    def __init__(self, importers: Sequence[Importer]) -> None:
        self.importers = importers
        self._titles = " or ".join(importer.TITLE for importer in importers)
        self.containers: dict[str, Container] = {}
        self.others: list[tuple[int, list[str]]] = []
        self.doubts: list[tuple[int, list[str]]] = []

    def starts(self, shell: Shell, calls: Sequence[Call] | None = None) -> list[Start]:
        """The engines that the commands of ``shell`` start, in order.

        Raises:
            UsageError: a command is invalid, or cannot be parsed and may start an engine.
        """
        for line, text in shell.unread:
            if not text.startswith("<<") and any(i.COMMAND.split()[0] in text for i in self.importers):
                if "<<" in text:
                    raise shell.fault(line, *_DOCUMENT)
                hint = "check for an unclosed quote, a missing word, or an argument after a redirection"
                raise shell.fault(line, "this cannot be parsed as shell text", hint)
        out: list[Start] = []
        for call in shell.calls if calls is None else calls:
            if re.match(r"--?[A-Za-z]", call.words[0]):
                problem = f"a command starts with {shown(call.words[0])}"
                raise shell.fault(call.line, problem, "end the previous line with a backslash, without a comment")
            try:
                found = self.of_call(call, shell, None)
            except UsageError as error:
                placed = error.message.startswith(f"{shell.source}:")
                raise error if placed else shell.fault(call.line, error.message, error.hint or "") from None
            out += [dataclasses.replace(each, conditions=(*call.conditions, *each.conditions)) for each in found]
        return out

    def of_call(self, call: Call, shell: Shell, within: Container | None) -> list[Start]:
        """The engines that a command in the container ``within`` starts."""
        words, env, notes = self._unwrapped(call)
        program = words[0].rpartition("/")[2] if words else ""
        if within is None and words and (box := self._container(words, program, env)) is not None:
            return self.in_container(box, call, shell, notes)
        text, arguments = _shell_text(words, program)
        if text is not None:
            if program == "ssh":
                inner = shell.child(call.line, {})
                inner.run(text)
                return self.starts(inner)
            return self.of_text(text, shell.child(call.line, set_in(env), arguments), within)
        for importer in self.importers:
            after = importer.after_command(words)
            if after is not None:
                return [Start(call.line, importer, after, env, within, notes=notes)]
        self._left(call.line, words, program)
        return []

    def of_text(self, text: str, inner: Shell, within: Container | None) -> list[Start]:
        """The engines that ``text`` starts in the shell ``inner``; commands before the first become its setup."""
        inner.run(text)
        others = len(self.others)
        found = [(at, start) for at, each in enumerate(inner.calls) for start in self.of_call(each, inner, within)]
        for at, start in found[:1]:
            lines, notes = setup.before(inner, at)
            start.setup = [*lines, *start.setup]
            behind = (each.words for each in inner.calls[at + 1 :] if each.words[0] not in QUIET)
            notes += [f"the command {shown(' '.join(words), 80)}, which follows the engine" for words in behind]
            start.notes += [*inner.notes, *notes]
            start.conditions = (*inner.calls[at].conditions, *start.conditions)
            del self.others[others:]
        self.starts(inner, [])  # refuses text that cannot be parsed
        return [start for _, start in found]

    def _unwrapped(self, call: Call) -> tuple[list[str], dict[str, str | None], list[str]]:
        """A command without leading assignments and wrappers, its environment, and notes."""
        words, notes = list(call.words), list[str]()
        env: dict[str, str | None] = dict(call.environment)
        while words:
            name, equals, value = words[0].partition("=")
            program = words[0].rpartition("/")[2]
            at = self._begins(words) if program in _WRAPPERS | _CHANGERS else 0
            if equals and name.isidentifier():
                env[name] = value
            elif at == 0:
                break
            elif program in _CHANGERS:
                notes.append(f"{shown(' '.join(words[:at]))}: skipped")
            words = words[max(at, 1) :]
        return words, env, notes

    def _begins(self, words: list[str]) -> int:
        """Index of the command that a wrapper runs; 0 if it is irrelevant."""
        for at in range(1, len(words)):
            is_engine = any(i.after_command(words[at:]) or i.launched(words[at:], {}) for i in self.importers)
            name, equals, _ = words[at].partition("=")
            program = words[at].rpartition("/")[2]
            if (
                is_engine
                or (equals and name.isidentifier())
                or program in {*_DOCKER, *_SHELLS, *_WRAPPERS, *_CHANGERS, "ssh"}
            ):
                return at
        return 0

    def _container(self, words: list[str], program: str, env: Mapping[str, str | None]) -> Container | None:
        """The container that a command starts or executes in."""
        rest = words[2:] if words[1:2] == ["container"] else words[1:]
        out = next((box for each in self.importers if (box := each.launched(words, env)) is not None), None)
        is_docker = program in _DOCKER and rest[:1] in (["run"], ["exec"])
        if out is None and not is_docker:
            return None
        out = out or container.read(rest[1:])
        # `-e NAME` takes the value of the shell that runs docker
        out.env = {name: env.get(name) if value is None else value for name, value in out.env.items()}
        if not is_docker or rest[0] == "run":
            return out
        only = next(iter(self.containers.values())) if unknown(out.image) and len(self.containers) == 1 else None
        base = self.containers.get(out.image, self.containers.get("", only))
        if base is None:
            notes = [f"docker exec in {shown(out.image)}: add image: NAME to the playbook"]
            return Container(entrypoint="", words=out.words, env=out.env, notes=notes)
        return dataclasses.replace(base, words=out.words, entrypoint="", env=base.env | out.env)

    def in_container(self, box: Container, call: Call, shell: Shell, notes: list[str]) -> list[Start]:
        """The engine that a container starts; a container without an engine is stored by name."""
        words = [*([box.entrypoint] if box.entrypoint else []), *box.words]
        for importer in self.importers:
            if box.entrypoint is None and importer.is_entrypoint(box.image):
                # Guides may repeat the command that is already the entrypoint.
                after = importer.after_command(words)
                return [Start(call.line, importer, words if after is None else after, {**box.env}, box, notes=notes)]
        inner = dataclasses.replace(call, words=words, environment=set_in(box.env), conditions=())
        found = self.of_call(inner, shell, box) if words else []
        if not found and box.entrypoint is None and words[:1] and words[0].startswith("-"):
            container.known(box.image, "the image is")
        for start in found:
            start.env |= {name: None for name, value in box.env.items() if value is None}
            start.notes += notes
        if not found and box.image:
            self.containers[box.name or ""] = box
            self.others.append((call.line, [box.image]))
        return found

    def _left(self, line: int, words: list[str], program: str) -> None:
        """Record a command that starts no engine."""
        if words and program not in QUIET:
            self.others.append((line, words))
            text = plain(" ".join(words))
            is_named = any(importer.COMMAND in text for importer in self.importers)
            runs_unknown = unknown(program) or (program in _SHELLS and unknown(words[-1].rpartition("/")[2]))
            if (is_named and not _ABOUT & {program, *words[:2]}) or runs_unknown:
                self.doubts.append((line, words))

    def instead(self, source: str) -> NoEngine | None:
        """An error if the commands start a known other program; else None."""
        for pattern, problem, hint in _INSTEAD:
            for line, words in self.others:
                if found := re.search(pattern, shown(" ".join(words), 2000)):
                    what, do = (text.format(*found.groups(), titles=self._titles) for text in (problem, hint))
                    return NoEngine(f"{source}:{line}: {what}", hint=do)
        return None

    def nothing(self, source: str, shell: Shell) -> UsageError:
        """The error that no engine was found, with a hint."""
        reasons = shell.variables.reasons
        for line, words in self.doubts:
            names = dict.fromkeys(name for word in words for name in unknown(word))
            whys = [f"{name} depends on {reasons[name][1]}" for name in names if name in reasons]
            why = "; ".join(whys) or f"`{shown(' '.join(words), 80)}` may start {self._titles}, but is unsupported"
            defines = [f"--define {name}=VALUE" for name in map(definable, names) if name]
            hint = f"add {' '.join(defines)}, or import" if defines else "import"
            return UsageError(
                f"{source}:{line}: {why}", hint=f"{hint} the docker run or {self.importers[0].COMMAND} line alone"
            )
        if (instead := self.instead(source)) is not None:
            return instead
        command = self.importers[0].COMMAND
        for line, text in shell.unread:
            if command.split()[0] in text:
                return NoEngine(f"{source}:{line}: {_DOCUMENT[0]}", hint=_DOCUMENT[1])
        hint = f"import a recipe, a Compose file, or a text with `docker run … {command} …` or `{command} …`"
        return NoEngine(f"{source} does not start {self._titles}", hint=hint)


def set_in(env: Mapping[str, str | None]) -> dict[str, str]:
    """The variables of ``env`` that have a value."""
    return {name: value for name, value in env.items() if value is not None}


def _shell_text(words: list[str], program: str) -> tuple[str | None, list[str]]:
    """The shell text that a command runs, with its arguments; None for another command."""
    at = 1
    if program == "ssh":
        while at < len(words) and words[at].startswith("-"):
            at += 2 if words[at][-1] in _SSH_VALUED and len(words[at]) == 2 else 1
        return " ".join(words[at + 1 :]) or None, []
    while program in _SHELLS and at < len(words) - 1 and words[at].startswith("-"):
        if re.fullmatch(r"-[a-z]*c", words[at]):
            return words[at + 1], words[at + 3 :]
        at += 1
    return None, []
