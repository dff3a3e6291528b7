"""From the text of a recipe or script to a playbook."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.recipes import eugr, variables, write
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.container import read as read_container
from sparkcluster.recipes.serve import Command, playbook
from sparkcluster.recipes.shell import MARKS, Script, assignment, parse, plain
from sparkcluster.spec import Playbook, check, messages
from sparkcluster.spec.document import parse as parse_yaml

MAX_BYTES = 1 << 20

_DOCKER = frozenset({"docker", "podman", "nerdctl"})
_BEFORE = frozenset({"sudo", "nohup", "exec", "time", "command", "env"})
# Tokens of hubs and APIs, and what stands in a header for one.
_SECRET = re.compile(r"(hf_|sk-|nvapi-|gh[a-z]_|glpat-)[A-Za-z0-9_-]{8,}|(?<=Bearer )\S+|(?<=-key[ =])\S+")
_QUIET = frozenset({"set", "echo", "printf", "cd", "mkdir", "sleep", "exit", "true", ":", "clear", "trap", "shopt"})


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """A playbook made of something else.

    Attributes:
        text: the playbook as YAML, with what was left out in its comments.
        document: the same as data.
        left: what could not be carried over, and what to do about it.
    """

    text: str
    document: dict[str, Any]
    left: tuple[str, ...]


def convert(text: str, source: str, *, name: str | None = None) -> Imported:
    """Make a playbook of a recipe in YAML, or of a command or script that starts vLLM.

    Args:
        text: the recipe.
        source: where it comes from, told in the playbook.
        name: of the playbook; default: the container's, or the model's.

    Raises:
        UsageError: nothing in it starts vLLM, or what it asks for no playbook may.
        SpecError: it is YAML, and broken.
    """
    if MARKS & set(text):
        raise UsageError(f"{source} holds characters that are no text", hint="is this the right file?")
    odd = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise UsageError(f"{source}: line {line} holds the character \\x{ord(odd[0]):02x}", hint="is it a text file?")
    document, left = eugr.read(text, source) if eugr.is_recipe(text) else _script(text, source)
    if name is not None:
        document["name"] = name
    left = [_SECRET.sub("…", one) for one in dict.fromkeys(left)]
    made = write.text(document, source, left)
    _validated(made, source)
    return Imported(made, document, tuple(left))


def _script(text: str, source: str) -> tuple[dict[str, Any], list[str]]:
    script = parse(text)
    left = list(script.left)
    chosen: tuple[Container | None, Command] | None = None
    downloads: dict[str, str] = {}
    for words in script.commands:
        env, rest = _bare(words)
        found = _started(rest, env, script)
        if found is None:
            _downloaded(rest, downloads)
            if rest and rest[0] not in _QUIET and not _downloads(rest):
                left.append(f"the command {_cut(words)}")
        elif chosen is None:
            chosen = found
        else:
            left.append(f"only the first engine of the text is carried over, not {_cut(words)}")
    if chosen is None:
        raise UsageError(
            f"{source} starts no vLLM",
            hint="give a recipe, or a text with `docker run … vllm serve …` or `vllm serve …` in it",
        )
    document, more = playbook(*chosen, downloads)
    return document, [*more, *left]


def _bare(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Assignments in front of a command, and the command without what only wraps it."""
    env: dict[str, str] = {}
    rest = list(words)
    while rest:
        one = assignment(rest[0])
        if one is not None:
            env[one[0]] = one[1]
        elif rest[:2] == ["uv", "run"] or rest[0] == "uvx":
            return env, _launched(rest[1:])
        elif rest[0] not in _BEFORE:
            break
        elif rest[0] == "sudo":
            rest = _after_flags(rest)
            continue
        rest = rest[1:]
    return env, rest


def _after_flags(words: list[str]) -> list[str]:
    """What stands behind sudo and its flags, of which -u and -g take a word."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in {"-u", "-g"} else 1
    return words[at:]


def _launched(words: list[str]) -> list[str]:
    """What uv runs: from the first word on that is followed as vLLM's own command is."""
    for at in range(len(words) - 1):
        module = at + 2 < len(words) and words[at + 1 : at + 3] == ["-m", "vllm.entrypoints.openai.api_server"]
        if words[at : at + 2] == ["vllm", "serve"] or module:
            return words[at:]
    return words


def _started(rest: list[str], env: dict[str, str], script: Script) -> tuple[Container | None, Command] | None:
    """The engine that a command starts, in a container or not."""
    if rest and rest[0].rpartition("/")[2] in _DOCKER:
        words = rest[1:]
        if words[:1] == ["container"]:
            words = words[1:]
        if words[:1] != ["run"] or _other(words):
            return None
        container = read_container(words[1:])
        command = variables.command(container) or Command.of(container, script)
        return (container, command) if command is not None else None
    if rest and rest[0].rpartition("/")[2] == "launch-cluster.sh" and "exec" in rest:
        container = eugr.launched(rest)
        command = Command.of(container, script)
        return (container, command) if command is not None else None
    command = Command.plain(rest, env, script)
    return (None, command) if command is not None else None


def _other(words: list[str]) -> bool:
    """Whether a ``docker run`` only looks at something, as ``nvidia-smi`` or ``vllm --version``."""
    return words[-1] in {"nvidia-smi", "--version", "--help", "bash", "sh"} or "bench" in words


def _downloads(words: list[str]) -> bool:
    return words[:2] in (["hf", "download"], ["huggingface-cli", "download"])


def _downloaded(words: list[str], downloads: dict[str, str]) -> None:
    """Remember which repository a directory was downloaded from."""
    if not _downloads(words):
        return
    for index, word in enumerate(words[:-1]):
        if word == "--local-dir":
            downloads[words[index + 1].rstrip("/")] = words[2]


def _cut(words: list[str]) -> str:
    line = plain(" ".join(words)).replace("\n", " ")
    return line if len(line) <= 80 else f"{line[:79]}…"


def _validated(text: str, source: str) -> None:
    """Refuse what no playbook may say, before anybody has it in a file.

    Raises:
        UsageError: the first thing that is wrong, in words of the recipe.
    """
    problems: list[Problem]
    try:
        document = parse_yaml(text, source)
        problems = list(document.problems)
        try:
            problems += check.playbook(Playbook.model_validate(document.data), document)
        except ValidationError as error:
            problems += messages.problems(error, document, Playbook)
    except SpecError as error:
        problems = list(error.problems)
    if problems:
        first = problems[0]
        where = f"{first.path}: " if first.path else ""
        raise UsageError(
            f"{source} asks for what no playbook may: {where}{first.message}",
            hint=first.hint or "take it out of the text",
        )
