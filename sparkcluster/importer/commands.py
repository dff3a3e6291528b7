"""The commands of a shell text that start an engine: on the host, in a container, by ssh, or by ``bash -c``."""

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
# Programs that only run another one, and those that change how it runs: what these are given is noted.
_WRAPPERS = frozenset({"command", "env", "exec", "nohup", "setsid", "sudo", "time"})
_CHANGERS = frozenset(
    {"chrt", "conda", "ionice", "nice", "nsys", "numactl", "stdbuf", "systemd-run", "taskset", "timeout", "uv", "uvx"}
)
# Options of ssh with a value (man ssh).
_SSH_VALUED = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
# Commands that do nothing an engine needs, or that name it without running it.
QUIET = frozenset(
    {
        "[", "break", "cat", "cd", "clear", "command", "continue", "echo", "printf", "set", "shopt", "sleep", "test",
        "trap", "wait",
    }
)  # fmt: skip
_ABOUT = frozenset({"pkill", "pgrep", "grep", "kill", "sed", "awk", "logger", "tee", "which", "type", "alias"})
_DOCUMENT = ("here-documents are not evaluated", "save its text to a file, and import that file")
# What starts no engine of this project, what it starts, and what to do.
_INSTEAD = (
    *(
        (pattern, f"this starts {title}; sparkcluster imports {{titles}} only", "write a playbook by hand")
        for pattern, title in (
            (r"\bsglang\b", "SGLang"), (r"\btrtllm-serve\b", "TensorRT-LLM"), (r"\bollama\b", "Ollama"),
        )
    ),
    (r"\brun-recipe\.(?:sh|py)\s+(\S+)", "this starts the recipe {0}", "sparkcluster import {0}"),
    (r"\bsparkrun\s+run\s+(\S+)", "this starts the recipe {0} of sparkrun", "import the recipe's YAML file"),
    (r"\bdocker(?:-| )compose\b", "docker compose reads its own file", "sparkcluster import docker-compose.yml"),
    (r"^(?:(?:ba)?sh )?(\S+\.(?:sh|py))\b", "this runs {0}, which may start {titles}", "sparkcluster import {0}"),
)  # fmt: skip


@dataclasses.dataclass(slots=True)
class EngineCommand:
    """What the words of an engine's command say.

    Attributes:
        model: repository or path, as it was written.
        keys: keys of the playbook that follow.
        args: engine arguments by their names.
        unset: values of flags that are left out, since the text does not tell all of them.
        notes: what was not carried over, and where it belongs.
    """

    model: str | None = None
    keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    unset: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


class Importer(Protocol):
    """How commands of one engine are read; ``Engine.importer``.

    Attributes:
        ENGINE: its name.
        TITLE: its name for readers.
        COMMAND: the words that start it, as guides print them.
        IMAGE_PROBLEM: what is wrong with the images whose entrypoint it is; empty if nothing is.
    """

    ENGINE: str
    TITLE: str
    COMMAND: str
    IMAGE_PROBLEM: str

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after the command that starts the engine; None where they start something else."""

    def is_worker(self, words: Sequence[str]) -> bool:
        """Whether the words after the command start another rank than the first."""

    def is_entrypoint(self, image: str) -> bool:
        """Whether the command is the entrypoint of ``image``."""

    def read(self, words: list[str]) -> EngineCommand:
        """What the words after the command mean."""

    def launched(self, words: list[str], env: Mapping[str, str | None]) -> Container | None:
        """The container that a command of a recipe's runner starts in ``env``; None where it is no such command."""


@dataclasses.dataclass(slots=True)
class Start:
    """A command that starts an engine.

    Attributes:
        line: of the text.
        importer: of the engine.
        words: after the engine's command.
        env: variables set for it; None for the caller's value.
        container: it runs in; None without.
        setup: lines run before it in the container.
        notes: what was not carried over.
        conditions: under which it runs.
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
        """What is started, whatever the line and the conditions."""
        return self.words, self.env, self.container, self.setup


class Commands:
    """What the commands of a text start.

    Attributes:
        containers: by name, those that run no engine by themselves.
        others: line and words of the commands that start no engine.
        doubts: line and words of those that may start one, and are not followed.
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
            UsageError: a command is broken, or may start an engine and cannot be parsed.
        """
        for line, text in shell.unread:
            if not text.startswith("<<") and any(i.COMMAND.split()[0] in text for i in self.importers):
                if "<<" in text:
                    raise shell.fault(line, *_DOCUMENT)
                hint = "check for a quote that is not closed, a missing word, an argument behind a redirection"
                raise shell.fault(line, "this cannot be parsed as shell text", hint)
        out: list[Start] = []
        for call in shell.calls if calls is None else calls:
            if re.match(r"--?[A-Za-z]", call.words[0]):
                problem = f"a command begins with {shown(call.words[0])}"
                raise shell.fault(call.line, problem, "end the line above with a backslash, without a comment")
            try:
                found = self.of_call(call, shell, None)
            except UsageError as error:
                placed = error.message.startswith(f"{shell.source}:")
                raise error if placed else shell.fault(call.line, error.message, error.hint or "") from None
            out += [dataclasses.replace(each, conditions=(*call.conditions, *each.conditions)) for each in found]
        return out

    def of_call(self, call: Call, shell: Shell, within: Container | None) -> list[Start]:
        """The engines that a command starts, which runs in the container ``within``."""
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
        """The engines that ``text`` starts in the shell ``inner``; what runs before the first is its setup."""
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
        self.starts(inner, [])  # refuses what cannot be parsed
        return [start for _, start in found]

    def _unwrapped(self, call: Call) -> tuple[list[str], dict[str, str | None], list[str]]:
        """A command without assignments and wrappers in front of it, its environment, and notes."""
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
                notes.append(f"{shown(' '.join(words[:at]))}: left out")
            words = words[max(at, 1) :]
        return words, env, notes

    def _begins(self, words: list[str]) -> int:
        """Where what a wrapper runs begins; 0 if that is nothing of interest."""
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
        """The container that a command starts, or runs something in."""
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
        """The engine that a container starts; one that starts none is remembered by its name."""
        words = [*([box.entrypoint] if box.entrypoint else []), *box.words]
        for importer in self.importers:
            if box.entrypoint is None and importer.is_entrypoint(box.image):
                # Guides that write the command again mean it once.
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
        """Remember a command that starts no engine."""
        if words and program not in QUIET:
            self.others.append((line, words))
            text = plain(" ".join(words))
            is_named = any(importer.COMMAND in text for importer in self.importers)
            runs_unknown = unknown(program) or (program in _SHELLS and unknown(words[-1].rpartition("/")[2]))
            if (is_named and not _ABOUT & {program, *words[:2]}) or runs_unknown:
                self.doubts.append((line, words))

    def instead(self, source: str) -> NoEngine | None:
        """What the commands start instead of an engine of this project; None if that is not known."""
        for pattern, problem, hint in _INSTEAD:
            for line, words in self.others:
                if found := re.search(pattern, shown(" ".join(words), 2000)):
                    what, do = (text.format(*found.groups(), titles=self._titles) for text in (problem, hint))
                    return NoEngine(f"{source}:{line}: {what}", hint=do)
        return None

    def nothing(self, source: str, shell: Shell) -> UsageError:
        """Why no engine was found, and what to import instead."""
        reasons = shell.variables.reasons
        for line, words in self.doubts:
            names = dict.fromkeys(name for word in words for name in unknown(word))
            whys = [f"{name} depends on {reasons[name][1]}" for name in names if name in reasons]
            why = "; ".join(whys) or f"`{shown(' '.join(words), 80)}` may start {self._titles}, but is not evaluated"
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
    """The variables of ``env`` that have a value there."""
    return {name: value for name, value in env.items() if value is not None}


def _shell_text(words: list[str], program: str) -> tuple[str | None, list[str]]:
    """The text that a command has a shell run, with its arguments; None for another command."""
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
