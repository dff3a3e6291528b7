"""What was read of a shell text, and the state of the shell while it is read."""

from __future__ import annotations

import dataclasses
import enum
import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell.marks import mark

Array = dict[str, str]  # by index or key, in order
OPTIONS = {"a": "allexport", "e": "errexit"}
"""Options of ``set`` by their letter; ``pipefail``, and ``nocasematch`` of ``shopt``, have none."""


def with_options(options: frozenset[str], words: Sequence[str]) -> tuple[frozenset[str], list[str] | None]:
    """``options`` after ``set`` with ``words``, and the operands behind them; None where there are none."""
    on, at, operands = set(options), 0, None
    while at < len(words) and words[at][:1] in {"-", "+"} and len(words[at]) > 1:
        word = words[at]
        at += 1
        if word == "--":
            operands = list(words[at:])
            break
        names = [OPTIONS.get(letter, letter) for letter in word[1:] if letter != "o"]
        if "o" in word:
            names += words[at : at + 1]
            at += 1
        (on.update if word[0] == "-" else on.difference_update)(names)
    known = frozenset(on & {*OPTIONS.values(), "pipefail", "nocasematch"})
    return known, list(words[at:]) or None if operands is None else operands


class Status(enum.Enum):
    """How a statement ends: LIKELY well, as commands do that only do something."""

    YES = "yes"
    NO = "no"
    LIKELY = "likely"
    MAYBE = "maybe"

    @classmethod
    def of(cls, decided: bool | None) -> Status:
        """The status of a condition; None for one that the text does not decide."""
        return cls.MAYBE if decided is None else cls.YES if decided else cls.NO

    def inverted(self) -> Status:
        """The status behind ``!``."""
        return {Status.YES: Status.NO, Status.NO: Status.YES}.get(self, Status.MAYBE)


@dataclasses.dataclass(frozen=True, slots=True)
class Assumed:
    """A condition that the text does not decide.

    Attributes:
        line: where it is, from 1.
        text: as it was written.
        names: variables in it whose value is unknown.
        holds: what was assumed of it; None of a value that differs between its branches.
    """

    line: int
    text: str
    names: tuple[str, ...] = ()
    holds: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A command that the text runs.

    Attributes:
        words: assignments in front of it included.
        line: where it begins.
        environment: exported variables at that moment.
        stdin: the here-document that it reads.
        document: name of a here-document that it reads or writes to a file.
        target: the file that it writes one to.
        host: the machine on which ssh runs it.
        background: whether the shell goes on without waiting for it.
        silent: whether it is in ``$(…)``, where it prints something.
        assumed: conditions under which it runs.
        guards: conditions before it under which the script ends, as they are where it does not.
        within: the statements that it is a part of, from the outermost on.
    """

    words: list[str]
    line: int
    environment: dict[str, str]
    stdin: str | None = None
    document: str = ""
    target: str | None = None
    host: str = ""
    background: bool = False
    silent: bool = False
    assumed: tuple[Assumed, ...] = ()
    guards: tuple[Assumed, ...] = ()
    within: tuple[Node, ...] = ()

    def whole(self, engine: Call, asked: Collection[Node]) -> Node | None:
        """The statement that has to run before ``engine`` where that is more than this command; ``Script.asking``."""
        outer = next((each for each in self.within if each not in engine.within and not _is_chain(each, asked)), None)
        alone = outer is not None and outer.type == "command" and outer == self.within[-1]
        return None if alone else outer


def _is_chain(node: Node, asked: Collection[Node]) -> bool:
    """Whether a statement is ``A && B``, whose parts can be run one after the other, as A is no condition."""
    return node.type == "list" and node.children[1].type == "&&" and node.children[0] not in asked


class Budget:
    """How much work one text may cause: what is built from it, however it is nested."""

    def __init__(self, units: int = 4_000_000) -> None:
        self.left = units

    def spend(self, units: int, where: str) -> None:
        """Take ``units`` characters, words or variables.

        Raises:
            UsageError: the text needs too many.
        """
        self.left -= units
        if self.left < 0:
            raise UsageError(f"{where}: too much is made of this text", hint="is this the right file?")


@dataclasses.dataclass(slots=True)
class Script:
    """What was read of a text.

    Attributes:
        calls: its commands, in the order in which they run.
        variables: what the text sets, at its end.
        arrays: lists that it sets, at its end.
        exported: names of exported variables.
        environment: exported variables at its end.
        notes: what was not followed.
        unread: line and text of what is no shell text.
        undecided: by name, the condition on which the value of a variable depends.
        unset: names that it unsets and has not set.
        defines: values of the user for what the text leaves open.
        asked: names that it leaves open, and placeholders; in order.
        asking: what is in front of `&&` and fails where what follows is not to run.
        where: its file.
        line: where it begins in that file, 0 for the file itself.
        ended: line of an ``exit`` that was certain, if that came before the end.
        files: what it wrote, at its end.
        rewritten: what made the content of a file uncertain, by its path.
        directory: it is in, at its end, seen from where the text began.
        functions: names that it defines.
        followed: files of these that it runs.
        copies: of files, by the path that each was copied to.
        budget: what is left of the work that it may cause.
    """

    calls: list[Call] = dataclasses.field(default_factory=list)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    arrays: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    exported: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    unread: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    undecided: dict[str, Assumed] = dataclasses.field(default_factory=dict)
    unset: dict[str, None] = dataclasses.field(default_factory=dict)
    defines: dict[str, str] = dataclasses.field(default_factory=dict)
    asked: dict[str, None] = dataclasses.field(default_factory=dict)
    asking: list[Node] = dataclasses.field(default_factory=list)
    where: str = "the text"
    line: int = 0
    ended: int | None = None
    files: dict[str, str | None] = dataclasses.field(default_factory=dict)
    rewritten: dict[str, Assumed] = dataclasses.field(default_factory=dict)
    directory: str = ""
    functions: set[str] = dataclasses.field(default_factory=set)
    followed: set[str] = dataclasses.field(default_factory=set)
    copies: dict[str, str] = dataclasses.field(default_factory=dict)
    budget: Budget = dataclasses.field(default_factory=Budget)

    @property
    def commands(self) -> list[list[str]]:
        """The words of each call that is not for what it prints."""
        return [call.words for call in self.calls if not call.silent]

    @property
    def unparsed(self) -> list[str]:
        """Notes about ``unread``."""
        return [f"line {line}, which cannot be parsed as shell text" for line, _ in self.unread]


@dataclasses.dataclass(slots=True)
class State:
    """What a shell knows at one moment.

    Attributes:
        variables: values; an unknown one is a mark.
        arrays: None for one that is unknown.
        associative: names of arrays with keys instead of numbers.
        uncounted: names of arrays of which an element may be any number of them, as an unquoted unknown value is.
        exported: names that programs see, in order.
        functions: bodies in the syntax tree; None for one that is defined differently in branches.
        arguments: of the script, or of the function that runs; None if even their number is unknown.
        files: what the text wrote, by ``path``; None where that is not certain.
        directory: it is in; empty for the one where it began.
        options: of ``set -o`` and ``shopt`` that are on, of those that matter (``OPTIONS``).
        flow: ``exit``, ``return``, ``break`` or ``continue`` after such a command.
    """

    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    arrays: dict[str, Array | None] = dataclasses.field(default_factory=dict)
    associative: set[str] = dataclasses.field(default_factory=set)
    uncounted: set[str] = dataclasses.field(default_factory=set)
    exported: dict[str, None] = dataclasses.field(default_factory=dict)
    functions: dict[str, Node | None] = dataclasses.field(default_factory=dict)
    arguments: list[str] | None = dataclasses.field(default_factory=list)
    files: dict[str, str | None] = dataclasses.field(default_factory=dict)
    directory: str = ""
    options: frozenset[str] = frozenset()
    flow: str | None = None

    def path(self, name: str) -> str:
        """The name of a file as ``files`` has it."""
        for here in (mark("PWD"), mark("(pwd)")):
            name = name.removeprefix(f"{here}/")
        whole = name if name.startswith("~") else posixpath.join(self.directory, name)
        return posixpath.normpath(whole)

    @property
    def size(self) -> int:
        """What a copy costs."""
        return len(self.variables) + len(self.arrays) + len(self.exported) + len(self.functions) + len(self.files)

    def copy(self) -> State:
        """The same, to be changed apart."""
        return dataclasses.replace(
            self,
            variables=dict(self.variables),
            arrays=dict(self.arrays),
            associative=set(self.associative),
            uncounted=set(self.uncounted),
            exported=dict(self.exported),
            functions=dict(self.functions),
            arguments=None if self.arguments is None else list(self.arguments),
            files=dict(self.files),
        )

    def child(self, arguments: list[str] | None, environment: Mapping[str, str], options: frozenset[str]) -> State:
        """What a shell sees that this one starts in ``environment``."""
        return State(
            variables={"HOME": "~", **environment},
            exported=dict.fromkeys(environment),
            arguments=arguments,
            files=self.files,
            directory=self.directory,
            options=options,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Exported variables with their values, in the order of the text."""
        return {name: self.variables[name] for name in self.exported if name in self.variables}


@dataclasses.dataclass(slots=True)
class Outside:
    """A variable as it was before a function made it its own.

    Attributes:
        value: None if it was not set.
        array: if it was one.
        certain: whether the function certainly did.
        assigned: whether it was set in front of the call: ``NAME=value function``.
    """

    value: str | None
    array: Array | None
    certain: bool = True
    assigned: bool = False


_MISSING = object()


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Names that only one of two mappings has, or with another value."""
    return [
        name for name in dict.fromkeys([*first, *second]) if first.get(name, _MISSING) != second.get(name, _MISSING)
    ]


def joined(first: State, second: State) -> tuple[State, list[str]]:
    """What is known where either of two states may be the case, and names whose value depends on which."""
    out = first.copy()
    values = differences(first.variables, second.variables)
    values += [
        name for name in differences(first.exported, second.exported) if name in {**first.variables, **second.variables}
    ]
    lists = differences(first.arrays, second.arrays)
    for name in values:
        out.variables[name] = mark(name)
    for name in lists:
        out.variables.pop(name, None)
        out.arrays[name] = None
    for name in differences(first.functions, second.functions):
        out.functions[name] = None
    for path in differences(first.files, second.files):
        out.files[path] = None
    if first.directory != second.directory:
        out.directory = mark("PWD")
    out.exported |= second.exported
    out.associative |= second.associative
    out.uncounted |= second.uncounted
    differing = [*values, *lists]
    if first.arguments != second.arguments:
        out.arguments = None
        differing.append("@")
    return out, list(dict.fromkeys(differing))
