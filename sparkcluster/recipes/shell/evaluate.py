"""Walks the syntax tree of a shell text, statement by statement."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import branches, builtin, conditions, expand, loops, redirects
from sparkcluster.recipes.shell.marks import (
    CLOSE,
    OPEN,
    bare_name,
    is_argument,
    is_placeholder,
    mark,
    shown,
    unknown,
    with_brackets,
)
from sparkcluster.recipes.shell.script import Assumed, Call, Outside, Script, State, Status
from sparkcluster.recipes.shell.syntax import statements, text_of, written
from sparkcluster.recipes.shell.syntax import words as command_parts
from sparkcluster.recipes.shell.wrappers import unwrapped

MAX_DEPTH = 24
_STATEMENT = 50  # units of the budget
_ALWAYS_SET = frozenset({"EUID", "HOSTNAME", "PPID", "PWD", "RANDOM", "SECONDS", "UID"})  # by bash


class Evaluator:
    """One run over a text; ``state`` is what the shell would know at this moment."""

    def __init__(self, script: Script, state: State, where: str, first_line: int = 0) -> None:
        self.script = script
        self.state = state
        self.where = where
        self.first_line = first_line
        self.assumed: tuple[Assumed, ...] = ()
        self.guards: tuple[Assumed, ...] = ()  # conditions under which the text would have ended by now
        # Of each function that runs: what it made local, as it was.
        self.outside: list[dict[str, Outside]] = []
        self.silent = False  # whether what runs is in $(…)
        self.unsure = False  # whether words were made of a value whose number of words is unknown
        self.last = Status.YES  # of the last statement, which `$?` and a bare `return` give
        self.substituted = Status.YES  # of the last $(…)
        self.left: list[tuple[State, Assumed]] = []  # by return, break or continue in a branch
        self._within: list[Node] = []
        self._depth = self._words = self._asked = 0

    def line(self, node: Node) -> int:
        """The line of a node in the file."""
        return self.first_line or node.start_point[0] + 1

    @contextlib.contextmanager
    def deeper(self, node: Node) -> Iterator[None]:
        """Guard what calls itself.

        Raises:
            UsageError: it does so too often.
        """
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UsageError(
                f"{self.where}:{self.line(node)}: nested deeper than {MAX_DEPTH} levels", hint="is this the right file?"
            )
        yield
        self._depth -= 1

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """A loop or a function: what is assumed because a branch left it holds no longer behind it."""
        outside = self.assumed
        yield
        self.assumed = outside

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """What runs only for its status, as a condition does: a failure there does not end a text with ``set -e``."""
        self._asked += 1
        yield
        self._asked -= 1

    @contextlib.contextmanager
    def process(self, state: State) -> Iterator[None]:
        """A shell of its own: what it sets, and that it ends, is over with it."""
        before, self.state = self.state, state
        guards, asked, self._asked = self.guards, self._asked, 0
        yield
        before.files = self.state.files
        self.state, self.guards, self._asked = before, guards, asked

    # values

    def value(self, name: str) -> str | None:
        """The value of a variable or argument, perhaps a mark; None if the text does not set it."""
        state = self.state
        if is_argument(name):
            if state.arguments is None:
                return mark("@")
            if int(name) <= len(state.arguments):
                self.script.asked[name] = None
                return state.arguments[int(name) - 1]
            return None
        if name in state.arrays:
            array = state.arrays[name]
            return mark(name) if array is None else array.get("0")
        if name in state.variables:
            return state.variables[name]
        given = self.defined(name)
        return mark(name) if given is None and name in _ALWAYS_SET else given

    def defined(self, name: str) -> str | None:
        """The user's value for a name that the text leaves open."""
        if name in self.script.defines:
            self.script.asked[name] = None
            return self.script.defines[name]
        return None

    def filled(self, text: str) -> str:
        """A literal with the user's values for its placeholders."""
        for name in unknown(text):
            if is_placeholder(name):
                bare = bare_name(name)
                self.script.asked[bare] = None
                value = self.defined(bare)
                text = text if value is None else text.replace(mark(name), value)
        return text

    def undecided(self, name: str, node: Node) -> str:
        """A mark for what a shell would make something of that is not followed."""
        name = with_brackets(name)
        self.script.undecided[name] = Assumed(self.line(node), shown(name))
        return mark(name)

    def assign(self, name: str, value: str) -> None:
        """Set a variable; one unknown value is known by the variable's own name, which says more."""
        names = unknown(value)
        if len(names) == 1 and value.startswith(OPEN) and value.endswith(CLOSE) and not is_placeholder(names[0]):
            self.script.asked[name] = None
            why = self.script.undecided.get(names[0])
            if why is not None:
                self.script.undecided[name] = why
            value = mark(name) if (given := self.defined(name)) is None else given
        array = self.state.arrays.get(name)
        if array is not None:
            self.state.arrays[name] = {**array, "0": value}
            return
        self.state.arrays.pop(name, None)
        self.state.variables[name] = value
        if "allexport" in self.state.options:
            self.state.exported[name] = None

    def lose(self, name: str, node: Node) -> None:
        """A variable gets a value that is not followed."""
        self.state.arrays.pop(name, None)
        self.script.undecided[name] = Assumed(self.line(node), shown(written(node).partition("\n")[0]))
        self.assign(name, mark(name))

    def spend(self, units: int) -> None:
        """Take of what the text may cause; UsageError if it is too much."""
        self.script.budget.spend(units, self.where)

    def words(self, parts: Sequence[Node]) -> list[str]:
        """The words that the parts of a simple command become."""
        out: list[str] = []
        pending: list[Node] = []
        for child in parts:
            if child.type == "variable_assignment":
                name, _, _ = text_of(child).partition("=")
                value = child.child_by_field_name("value")
                out.append(f"{name}={'' if value is None else expand.text(self, value)}")
            elif child.type == "command_name":
                pending += child.children
            elif not child.type.endswith("_redirect"):
                pending.append(child)
        out += expand.fields(self, *pending)
        if self._words + len(out) > expand.MAX_WORDS:
            raise UsageError(f"{self.where}: more than {expand.MAX_WORDS} words", hint="is this the right file?")
        self._words += len(out)
        return out

    def here_document_of(self, node: Node) -> str | None:
        """The here-document of a redirected statement."""
        return redirects.read(self, node).stdin

    # statements

    def sequence(self, nodes: Iterator[Node] | Sequence[Node]) -> Status:
        """Run statements until one ends the text, the function or the loop."""
        status = Status.YES
        for node in nodes:
            waits = node.next_sibling is None or node.next_sibling.type != "&"
            status = self.run(node) if waits else self.background(node)
            if self.state.flow is not None:
                break
        return status

    def run(self, node: Node) -> Status:
        """Run one statement."""
        self.spend(_STATEMENT)
        handler = _HANDLERS.get(node.type)
        if node.is_error or handler is None or (node.has_error and _is_broken(node)):
            return self.unread(node)
        self._within.append(node)
        with self.deeper(node):
            status = handler(self, node)
        self._within.pop()
        self.last = self._checked(node, status) if node.type in _MAY_END else status
        return self.last

    def unread(self, node: Node) -> Status:
        """A statement that cannot be parsed: what it sets has no value that is known."""
        self.script.unread.append((self.line(node), written(node)))
        for name in dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\+?=", text_of(node))):
            self.lose(name, node)
        return Status.MAYBE

    def _checked(self, node: Node, status: Status) -> Status:
        """The status of a command; under ``set -e`` one that certainly failed ends the text."""
        fails = status is Status.NO and self.state.flow is None
        if fails and "errexit" in self.state.options and not self._asked:
            self.ended(node, "exit")
        return status

    def pipeline(self, node: Node) -> Status:
        """``A | B``: each in a shell of its own; its status is that of the last, or of all with ``pipefail``."""
        ends = [self.subshell(child) for child in statements(node)]
        if "pipefail" in self.state.options:
            return next((end for end in (Status.NO, Status.MAYBE, Status.LIKELY) if end in ends), Status.YES)
        return ends[-1]

    def background(self, node: Node) -> Status:
        """``A &``."""
        self._within.append(node)  # of `( … )` as well, whose statements are run one by one
        self.subshell(node)
        self._within.pop()
        return Status.YES

    def subshell(self, node: Node) -> Status:
        """``( … )``, or a part of a pipeline."""
        before, guards, left = self.state, self.guards, len(self.left)
        self.state = before.copy()
        status = self.sequence(statements(node)) if node.type == "subshell" else self.run(node)
        before.files = self.state.files  # what it wrote stays
        self.state, self.guards = before, guards
        if self.left[left:]:  # it may have ended before
            del self.left[left:]
            return Status.MAYBE
        return status

    def group(self, node: Node) -> Status:
        """``{ … }``, or ``((…))``."""
        if node.children[0].type == "((":
            return self._checked(node, builtin.arithmetic_command(self, node))
        return self.sequence(statements(node))

    def negated(self, node: Node) -> Status:
        """``! A``."""
        with self.asking():
            return self.run(node.named_children[-1]).inverted()

    def test(self, node: Node) -> Status:
        """``[ … ]`` and ``[[ … ]]``."""
        return Status.of(conditions.of_node(self, node))

    def function(self, node: Node) -> Status:
        """The definition of a function."""
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.state.functions[text_of(name)] = body
            self.script.functions.add(text_of(name))
        return Status.YES

    def redirected(self, node: Node) -> Status:
        """A statement with its redirections and here-documents."""
        found = redirects.read(self, node)
        body = node.child_by_field_name("body")
        with self.asking() if any(sign for sign, _ in found.after) else contextlib.nullcontext():
            status = Status.YES if body is None else self._with(body, found)
        for sign, more in found.after:
            following = functools.partial(self.run, more)
            status = branches.then(self, status, node, sign, following) if sign else self.subshell(more)
        return status

    def _with(self, body: Node, found: redirects.Redirects) -> Status:
        """A statement whose redirections are ``found``; of ``A || B`` they are those of B."""
        if body.type == "command":
            redirects.keep(self, body, found)
            return self._checked(body, self.command(body, found))
        if body.type == "list":
            parts = [child for child in body.children if child.type != "comment"]
            if len(parts) != 3:
                return self.unread(body)
            left, sign, right = parts
            with self.asking():
                status = self.run(left)
            return branches.then(self, status, left, sign.type, lambda: self._with(right, found))
        status = self.run(body)
        if found.target is not None:
            redirects.lose(self, self.state.path(found.target), body)
        if found.stdin is not None:
            self.script.notes.append(redirects.left_out(found.name))
        return status

    def command(self, node: Node, found: redirects.Redirects | None = None) -> Status:
        """A simple command: of the shell, of the text, or of the machine."""
        children, self.unsure = command_parts(node), False
        if any(
            one.type == "variable_assignment" and expand.adjacent(one, two) for one, two in itertools.pairwise(children)
        ):
            return self.unread(node)  # NAME=a`b`c
        alone = redirects.ended_by_line(node, children)
        for child in children[:alone]:
            builtin.assign(self, child)
        found = found or redirects.Redirects()
        words = [*self.words(children[alone:]), *found.words]
        if words in ([], ["exec"]):  # nothing, or a redirection of all that follows
            return Status.YES
        known = builtin.run(self, node, words, found.stdin)
        if known is not None:
            return known
        self.call(node, words, found)
        if not (found.target is not None and words[0] in {"tee", "sudo"}):  # keep() knows what it wrote
            redirects.after(self, node, words)
        if words[0] == "exec":
            self.state.flow = "exit"
        return Status.YES if words[0] in builtin.NEVER_FAIL else Status.LIKELY

    def call(self, node: Node, words: list[str], found: redirects.Redirects | None = None) -> None:
        """Note that the text runs a program."""
        found = found or redirects.Redirects()
        self.spend(len(self.state.exported) + sum(map(len, words)) // 8)
        self.script.calls.append(
            Call(
                words,
                self.line(node),
                self.state.environment,
                stdin=found.stdin,
                document=found.name,
                target=None if found.stdin is None or found.target is None else self.state.path(found.target),
                background=self._background(),
                silent=self.silent and unwrapped(words, {}).words[1:2] != ["run"],
                assumed=self.assumed,
                guards=self.guards,
                within=tuple(self._within),
            )
        )

    def _background(self) -> bool:
        """Whether the statement that runs, or one that it is a part of, ends with ``&``."""
        return any(node.next_sibling is not None and node.next_sibling.type == "&" for node in self._within)

    def ended(self, node: Node, flow: str, status: Status = Status.NO) -> Status:
        """``exit``, ``return``, ``break`` and ``continue``, or what ``set -e`` makes of a failure."""
        self.state.flow = flow
        if flow == "exit" and not self.assumed and self.script.ended is None:
            self.script.ended = self.line(node)
        return status


def _is_broken(node: Node) -> bool:
    """Whether what cannot be parsed is of this statement, not of one within it."""
    if node.type in {"command", "test_command"} or node.type.startswith(("variable_assignment", "declaration")):
        return True
    return any(child.is_error or child.is_missing for child in node.children)


# Statements that `set -e` looks at; the status of others is that of one of these.
_MAY_END = frozenset({"command", "test_command", "pipeline", "subshell", "variable_assignment", "variable_assignments"})

_HANDLERS: dict[str, Callable[[Evaluator, Node], Status]] = {
    "command": Evaluator.command,
    "redirected_statement": Evaluator.redirected,
    "list": branches.chain,
    "pipeline": Evaluator.pipeline,
    "subshell": Evaluator.subshell,
    "compound_statement": Evaluator.group,
    "negated_command": Evaluator.negated,
    "test_command": Evaluator.test,
    "if_statement": branches.if_,
    "case_statement": branches.case,
    "while_statement": loops.until,
    "for_statement": loops.over,
    "c_style_for_statement": loops.over,
    "function_definition": Evaluator.function,
    "variable_assignment": builtin.assignment_statement,
    "variable_assignments": builtin.assignment_statement,
    "declaration_command": builtin.declaration,
    "unset_command": builtin.unset,
}
