"""Functions, and scripts that the text contains: what is run of the text itself."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import joins
from sparkcluster.recipes.shell.marks import shown
from sparkcluster.recipes.shell.script import Outside, Status, with_options
from sparkcluster.recipes.shell.syntax import statements, tree

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

SHELLS = frozenset({"bash", "sh", "dash", "zsh"})


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A text that a shell of its own runs.

    Attributes:
        text: of it.
        arguments: ``$1`` and following.
        options: of ``set`` that are on.
    """

    text: str
    arguments: list[str]
    options: frozenset[str] = frozenset()


def content(evaluator: Evaluator, name: str) -> str:
    """What is in a file that the text wrote.

    Raises:
        UsageError: it differs between branches, or another program changed it.
    """
    found = evaluator.state.files[name]
    if found is None:
        why = evaluator.script.rewritten.get(name)
        at, after = (f":{why.line}", f" after `{why.text}`") if why is not None else ("", "")
        problem = f"{evaluator.where}{at}: what {shown(name)} contains is not certain{after}"
        raise UsageError(problem, hint="write it in one place, by cat or echo")
    return found


def interpreted(text: str) -> frozenset[str] | None:
    """Options of the shell that the first line of a script names; None if it names no shell."""
    words = text.partition("\n")[0].removeprefix("#!").split() if text.startswith("#!") else []
    programs = [word for word in words if not word.startswith("-") and word.rpartition("/")[2] != "env"]
    if programs and programs[0].rpartition("/")[2] not in SHELLS:
        return None
    return with_options(frozenset(), [word for word in words if word.startswith("-") and word != "-S"])[0]


def _follow(evaluator: Evaluator, key: str) -> None:
    """Remember that a file is run, and the one that it is a copy of."""
    while key not in evaluator.script.followed:
        evaluator.script.followed.add(key)
        key = evaluator.script.copies.get(key, key)


def program(evaluator: Evaluator, name: str, rest: list[str], stdin: str | None) -> Program | None:
    """What a command runs of the text: a file that it wrote, or a here-document that a shell reads; else None."""
    files, key = evaluator.state.files, evaluator.state.path(name)
    if "/" not in name:
        key = next((file for file in files if file.endswith(f"/bin/{name}")), "")
    arguments, options = rest, interpreted(files.get(key) or "")
    if key not in files and name.rpartition("/")[2] in SHELLS:
        shell = invocation(rest)
        if stdin is not None and not shell.is_command and (not shell.operands or shell.reads_stdin):
            return Program(stdin, shell.operands, shell.options)
        key = evaluator.state.path(shell.operands[0]) if shell.operands and not shell.is_command else ""
        arguments, options = shell.operands[1:], shell.options
    if key not in files or options is None:
        return None
    _follow(evaluator, key)
    return Program(content(evaluator, key), arguments, options)


def is_program(evaluator: Evaluator, words: list[str]) -> bool:
    """Whether words begin with a shell, or with a script that the text wrote."""
    return words[0].rpartition("/")[2] in SHELLS or evaluator.state.path(words[0]) in evaluator.state.files


@dataclasses.dataclass(frozen=True, slots=True)
class Invocation:
    """The words behind ``bash``.

    Attributes:
        options: of ``set`` that are on.
        is_command: whether the first operand is text (``-c``).
        reads_stdin: whether all operands are arguments (``-s``).
        operands: text or a script, and its arguments.
    """

    options: frozenset[str]
    is_command: bool
    reads_stdin: bool
    operands: list[str]


def invocation(words: Sequence[str]) -> Invocation:
    """What the words behind ``bash`` say; options may be on either side of ``-c``."""
    at, flags, letters = 0, list[str](), ""
    while at < len(words) and words[at][:1] in {"-", "+"}:
        word = words[at]
        at += 1
        if word in {"-", "--"}:
            break
        if word.startswith("--"):
            at += word in {"--rcfile", "--init-file"}
            continue
        letters += word[1:]
        flags.append(word)
        if "o" in word or "O" in word:
            flags += words[at : at + 1] if "o" in word else []
            at += 1
    return Invocation(with_options(frozenset(), flags)[0], "c" in letters, "s" in letters, list(words[at:]))


def run_text(evaluator: Evaluator, node: Node, text: str) -> Status:
    """Run text that the script has in a word or in a file."""
    first, evaluator.first_line = evaluator.first_line, evaluator.line(node)
    evaluator.spend(len(text))
    with evaluator.deeper(node):
        status = evaluator.sequence(statements(tree(text, evaluator.where, evaluator.first_line)))
    evaluator.first_line = first
    return status


def called(
    evaluator: Evaluator, node: Node, name: str, arguments: list[str], assigned: list[tuple[str, str]]
) -> Status:
    """A function; what is set for it and what it declares ``local`` is over with it."""
    state, body = evaluator.state, evaluator.state.functions[name]
    if body is None:
        line = evaluator.line(node)
        message = f"{evaluator.where}:{line}: the function {name} differs between branches"
        raise UsageError(message, hint="keep one of them")
    outside, state.arguments = state.arguments, None if evaluator.unsure else arguments
    with before(evaluator, node, assigned):
        with evaluator.deeper(node), evaluator.bounded():
            status = evaluator.run(body)
        if evaluator.state.flow == "return":
            evaluator.state.flow = None
        if joins.come_in(evaluator, "return"):
            status = Status.MAYBE
    evaluator.state.arguments = outside
    return status


@contextlib.contextmanager
def before(evaluator: Evaluator, node: Node, assigned: list[tuple[str, str]]) -> Iterator[None]:
    """A function or a text with ``NAME=value`` in front: this, and what it declares ``local``, is over with it."""
    state = evaluator.state
    exported = dict(state.exported)
    evaluator.outside.append(
        {name: Outside(state.variables.get(name), state.arrays.get(name, {}), assigned=True) for name, _ in assigned}
    )
    for name, value in assigned:
        evaluator.assign(name, value)
        state.exported[name] = None
    yield
    state = evaluator.state
    for name, found in evaluator.outside.pop().items():
        state.variables.pop(name, None)
        state.arrays.pop(name, None)
        if found.value is not None:
            state.variables[name] = found.value
        if found.array != {}:
            state.arrays[name] = found.array
        if name not in exported:
            state.exported.pop(name, None)
        if not found.certain:
            evaluator.lose(name, node)
