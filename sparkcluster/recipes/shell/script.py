"""What was read of a shell text, and the state of the shell while it is read."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

from tree_sitter import Node

from sparkcluster.recipes.shell.marks import is_known, mark

Array = dict[str, str]  # by index or key, in order


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
        assumed: conditions under which it runs.
        within: the statements that it is a part of, from the outermost on.
    """

    words: list[str]
    line: int
    environment: dict[str, str]
    stdin: str | None = None
    document: str = ""
    assumed: tuple[Assumed, ...] = ()
    within: tuple[Node, ...] = ()

    def whole(self, engine: Call) -> Node | None:
        """The statement that has to run before ``engine`` where that is more than this command."""
        outer = next((node for node in self.within if node not in engine.within and not _is_chain(node)), None)
        return None if outer is None or outer.type == "command" else outer


def _is_chain(node: Node) -> bool:
    """Whether a statement is ``A && B``, whose parts can be run one after the other."""
    return node.type == "list" and any(child.type == "&&" for child in node.children)


@dataclasses.dataclass(slots=True)
class Script:
    """What was read of a text.

    Attributes:
        calls: its commands, in the order in which they run.
        variables: what the text sets, at its end.
        environment: exported variables at its end.
        notes: what was not followed.
        unread: line and text of what is no shell text.
        undecided: by name, the condition on which the value of a variable depends.
        defines: values of the user for what the text leaves open.
        asked: names that it leaves open, and placeholders; in order.
        used: names of ``defines`` that were asked for.
        where: its file.
        line: where it begins in that file, 0 for the file itself.
        ended: line of an ``exit`` that was certain, if that came before the end.
    """

    calls: list[Call] = dataclasses.field(default_factory=list)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    unread: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    undecided: dict[str, Assumed] = dataclasses.field(default_factory=dict)
    defines: dict[str, str] = dataclasses.field(default_factory=dict)
    asked: dict[str, None] = dataclasses.field(default_factory=dict)
    used: set[str] = dataclasses.field(default_factory=set)
    where: str = "the text"
    line: int = 0
    ended: int | None = None

    @property
    def commands(self) -> list[list[str]]:
        """The words of each call."""
        return [call.words for call in self.calls]


@dataclasses.dataclass(slots=True)
class State:
    """What a shell knows at one moment.

    Attributes:
        variables: values; an unknown one is a mark.
        arrays: None for one that is unknown.
        exported: names that programs see, in order.
        functions: bodies in the syntax tree.
        arguments: of the script, or of the function that runs.
        files: what the text wrote by here-documents.
        flow: ``exit``, ``return``, ``break`` or ``continue`` after such a command.
    """

    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    arrays: dict[str, Array | None] = dataclasses.field(default_factory=dict)
    exported: dict[str, None] = dataclasses.field(default_factory=dict)
    functions: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: list[str] = dataclasses.field(default_factory=list)
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    flow: str | None = None

    def copy(self) -> State:
        """The same, to be changed apart."""
        return State(
            dict(self.variables), dict(self.arrays), dict(self.exported), dict(self.functions), list(self.arguments),
            dict(self.files), self.flow,
        )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """Exported variables with their values, in the order of the text."""
        return {name: self.variables[name] for name in self.exported if name in self.variables}


def joined(states: Sequence[State]) -> tuple[State, list[str]]:
    """What is known after branches of which any may have been taken, and names whose value depends on which.

    A branch that ended the script, the function or the loop says nothing of what comes after it.
    """
    alive = [state for state in states if state.flow is None] or list(states[:1])
    out, differing = alive[0].copy(), []
    for other in alive[1:]:
        for name in dict.fromkeys([*out.variables, *other.variables]):
            if out.variables.get(name) != other.variables.get(name):
                out.variables[name] = mark(name)
                differing.append(name)
        for name in dict.fromkeys([*out.arrays, *other.arrays]):
            if out.arrays.get(name, {}) != other.arrays.get(name, {}):
                out.arrays[name] = None
                differing.append(name)
        out.exported |= other.exported
        out.functions |= other.functions
        out.files |= other.files
    return out, [name for name in dict.fromkeys(differing) if name in out.arrays or not is_known(out.variables[name])]
