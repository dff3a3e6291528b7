"""Evaluate shell text to the commands that it would run: parsed with tree-sitter-bash, never executed.

Supported are assignments, ``export``, ``${X}`` with defaults, arrays, functions, and ``if`` and ``case`` with constant
conditions. Variables set in any other way are unknown, and marked in the words that use them. If a condition is
unknown, all branches are evaluated: variables that differ afterwards are unknown, and their commands carry the
condition.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from sparkcluster.errors import UsageError
from sparkcluster.importer import pasted
from sparkcluster.importer.unknown import mark, shown, unknown
from sparkcluster.importer.words import Value, Variables, joined, numbered

_PARSER = Parser(Language(tree_sitter_bash.language()))
MAX_STEPS = 20_000

_SETS = re.compile(r"(?<![\w${/-])([A-Za-z_]\w*)(?:\[[^\[\]]{0,80}\])?(?: ?[-+*/]?=(?!=)|\+\+|--)")
_WORD = r"((?:\"[^\"\s]*\"|'[^'\s]*'|[^\s\"'])+)"
_TEST = re.compile(rf"\[\[?\s+(?:(-[zn])\s+{_WORD}|{_WORD}\s+([!=]?=)\s+{_WORD})\s+\]\]?")
_READS = re.compile(r"\b(?:unset|read|mapfile|readarray|getopts|let|printf +-v)\b([^;&|<>\n]*)")
# Programs whose exit status is a result, and therefore unknown; other programs are assumed to succeed.
_ASKS = frozenset({"grep", "test", "[", "command", "pgrep", "which", "type", "cmp", "diff"})


class Status(enum.Enum):
    """Exit status of a command: success or failure by the text, assumed success, or unknown."""

    YES, NO, DONE, MAYBE = range(4)


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """An unknown condition, and whether it must hold for a command to run."""

    line: int
    text: str
    holds: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A command.

    Attributes:
        line: line in the text.
        words: expanded words.
        environment: variables that the text sets for it.
        conditions: conditions under which it runs.
        part: number and text of its statement.
    """

    line: int
    words: list[str]
    environment: dict[str, str]
    conditions: tuple[Condition, ...] = ()
    part: tuple[int, str] = (0, "")


def _text(node: Node | None) -> str:
    return "" if node is None else (node.text or b"").decode(errors="replace")


def _inner(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


class Shell:
    """Evaluator of shell text, with its resulting state.

    Attributes:
        variables: variables after the last command.
        functions: bodies of functions by name.
        calls: commands in execution order.
        unread: line and text of unsupported parts: here-documents, and text that cannot be parsed.
        notes: corrections, and unsupported parts that may matter.
    """

    def __init__(self, source: str, defines: Mapping[str, str], asked: dict[str, None]) -> None:
        self.source = source
        self.variables = Variables(defines, asked, {}, numbered([]), {})
        self.functions: dict[str, Node] = {}
        self.calls: list[Call] = []
        self.unread: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self._flow = ""  # exit or return, if the text or function was left
        self._conditions: tuple[Condition, ...] = ()
        self._locals: list[dict[str, Value | None]] = []
        self._returned: list[Variables] = []
        self._line, self._left, self._part = 0, [MAX_STEPS], (0, "")

    def child(self, line: int, environment: Mapping[str, str], arguments: Iterable[str] = ()) -> Shell:
        """A shell that a command at ``line`` starts; all of its text has this line number."""
        out = Shell(self.source, self.variables.defines, self.variables.asked)
        values = {**environment, **numbered(arguments)}
        out.variables = dataclasses.replace(self.variables, values=values, exported=dict.fromkeys(environment))
        out._line, out._left = line, self._left
        return out

    def run(self, text: str) -> None:
        """Evaluate ``text``.

        Raises:
            UsageError: it is too long, or a comment interrupts a command.
        """
        self._flow, text = "", pasted.as_shell(text, self.source, self._line, self.notes)
        for node in _PARSER.parse(text.encode()).root_node.named_children:
            self._begin(node)
            self._all([node])
            if _is_broken(node):
                lines = text.splitlines()[node.start_point[0] : node.end_point[0] + 1]
                self.unread.append((self._at(node), "\n".join(lines)))
                self._forget(node)

    def _begin(self, node: Node) -> None:
        """Begin a statement; ``a && b`` has two."""
        self._part = (self._part[0] + 1, _text(node))

    def fault(self, line: int, problem: str, hint: str = "import the docker run line alone") -> UsageError:
        """An error about a line."""
        return UsageError(f"{self.source}:{line}: {problem}", hint=hint)

    # Statements

    def _at(self, node: Node) -> int:
        return self._line or node.start_point[0] + 1

    def _run(self, node: Node) -> Status:
        """Evaluate a statement."""
        self._left[0] -= 1
        if self._left[0] < 0:
            raise self.fault(self._at(node), "this takes too long to evaluate")
        follow: Callable[[Node], Status] = getattr(self, f"_{node.type.lower()}", self._group)
        return follow(node)

    def _group(self, node: Node) -> Status:
        return self._all(node.named_children)

    def _all(self, nodes: Iterable[Node]) -> Status:
        status = Status.DONE
        for node in nodes:
            status = status if self._flow else self._run(node)
        return status

    def _list(self, node: Node) -> Status:
        left, is_and, right = node.children[0], _text(node.children[1]) == "&&", node.children[-1]
        asks = left.type == "test_command" or _text(left).split()[0] in _ASKS
        are_two = is_and and not asks and self._part[1] == _text(node)
        if are_two:
            self._begin(left)
        status = self._run(left)
        if status in {Status.YES, Status.NO}:
            return self._run(right) if (status is Status.YES) == is_and else status
        if status is Status.DONE and is_and:
            if are_two:
                self._begin(right)
            return self._run(right)
        return self._chain([(Status.MAYBE, left, [right][:is_and]), (Status.YES, left, [right][is_and:])])

    def _chain(self, clauses: Sequence[tuple[Status | list[Node], Node, list[Node]]]) -> Status:
        """Evaluate clauses (condition, its node, body) up to the first that holds.

        If a condition is unknown, both cases are evaluated.
        """
        if not clauses:
            return Status.DONE
        condition, why, body = clauses[0]
        status = self._all(condition) if isinstance(condition, list) else condition
        if status in {Status.YES, Status.NO}:
            return self._all(body) if status is Status.YES else self._chain(clauses[1:])
        before, conditions, line, text = self.variables, self._conditions, self._at(why), shown(_text(why), 80)
        ends: list[tuple[str, Variables]] = []
        for holds in (True, False):
            self.variables, self._flow = before.copy(), ""
            self._conditions = (*conditions, Condition(line, text, holds))
            self._all(body) if holds else self._chain(clauses[1:])
            ends.append((self._flow, self.variables))
        self._conditions = conditions
        self._returned += [variables for flow, variables in ends if flow == "return"]
        (self._flow, self.variables), *others = [end for end in ends if not end[0]] or ends[:1]
        for _, other in others:
            self.variables.join(other, line, f"`{text}`")
        return Status.MAYBE

    def _if_statement(self, node: Node) -> Status:
        return self._chain([*_clauses(node)])

    def _case_statement(self, node: Node) -> Status:
        word = self._value(node.child_by_field_name("value"))
        clauses: list[tuple[Status | list[Node], Node, list[Node]]] = []
        for item in (child for child in node.named_children if child.type == "case_item"):
            patterns = item.children_by_field_name("value")
            status = _matches(word, [self._value(pattern) for pattern in patterns])
            clauses.append((status, item, item.named_children[len(patterns) :]))
        return self._chain(clauses)

    def _for_statement(self, node: Node) -> Status:
        """Evaluate a loop once; variables that it sets are unknown in and after it."""
        self._forget(node)
        self._chain([(Status.MAYBE, node, [*filter(None, map(node.child_by_field_name, ("condition", "body")))])])
        return self._forget(node)

    _while_statement = _c_style_for_statement = _for_statement

    def _forget(self, node: Node) -> Status:
        """Make all variables unknown that a statement sets."""
        read = " ".join(_READS.findall(_text(node)))
        names = [*_SETS.findall(_text(node)), *re.findall(r"(?<![\w$-])[A-Za-z_]\w*", read)]
        return self._lose([*names, _text(node.child_by_field_name("variable"))], node)

    def _lose(self, names: Iterable[str], node: Node) -> Status:
        reason = f"`{shown(_text(node), 60)}`"
        for name in filter(None, names):
            self.variables.lose(name, self._at(node), reason)
        return Status.MAYBE

    def _function_definition(self, node: Node) -> Status:
        self.functions[_text(node.child_by_field_name("name"))] = node.child_by_field_name("body") or node
        return Status.DONE

    def _subshell(self, node: Node) -> Status:
        before, flow = self.variables, self._flow
        self.variables = before.copy()
        self._group(node)
        self.variables, self._flow = before, flow
        return Status.MAYBE

    _pipeline = _subshell

    def _negated_command(self, node: Node) -> Status:
        self._group(node)
        return Status.MAYBE

    def _compound_statement(self, node: Node) -> Status:
        return self._forget(node) if node.children[0].type == "((" else self._group(node)

    _unset_command = _forget

    def _redirected_statement(self, node: Node) -> Status:
        body = node.child_by_field_name("body")
        is_shown = _text(body).split()[:1] in (["cat"], ["tee"], ["echo"], ["read"])
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                self.unread.append((self._at(child), _text(child if is_shown else node)))
                self.notes.append(f"line {self._at(child)}: here-document, which is unsupported")
            elif re.match(r"\d*[<>&|]+\s*[^\s\"'<>&|]+\s+\S", _text(child)):  # an argument follows the redirection
                self.unread.append((self._at(child), _text(node)))
        self._part = (self._part[0], _text(body)) if self._part[1] == _text(node) else self._part
        return Status.DONE if body is None else self._run(body)

    # Assignments

    def _variable_assignment(self, node: Node) -> Status:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name, written = _text(target), _text(value)
        before = self.variables.values.get(name)
        is_array, adds = value is not None and value.type == "array", any(child.type == "+=" for child in node.children)
        if target is None or target.type == "subscript" or (isinstance(before, list) and not is_array):
            return self._lose([name.partition("[")[0]], node)
        new: Value = self._words(_inner(value)) if value is not None and is_array else self._value(value)
        if isinstance(new, list):
            old = [before] if isinstance(before, str) and before else before or []
            new = [*(old if adds else []), *new]
        elif adds:
            new = joined(before or "") + new
        elif before is None and re.search(rf"\$\{{?{name}\b(?!:?[-=?][^}}])", written) and name not in unknown(new):
            new = mark(name) + new  # it extends the value from its environment
        self._left[0] -= len(joined(new)) >> 10
        self.variables.set(name, new, self._at(node), f"`{shown(written, 60)}`")
        return Status.DONE

    def _declaration_command(self, node: Node) -> Status:
        kind = node.children[0].type
        is_local = kind not in {"export", "readonly"} and bool(self._locals)
        for child in _inner(node):
            name = _text(child.child_by_field_name("name") or child)
            if not name.isidentifier():
                note = f"line {self._at(node)}: variables of `{shown(_text(node), 80)}`"
                self.notes += [] if name.startswith("-") else [note]
                continue
            if is_local:
                self._locals[-1].setdefault(name, self.variables.values.get(name))
            if child.type == "variable_assignment":
                self._variable_assignment(child)
            elif is_local:
                self.variables.values.pop(name, None)
            if kind == "export" or " -x" in _text(node):
                self.variables.exported[name] = None
        return Status.DONE

    # Commands

    def _command(self, node: Node) -> Status:
        environment = self.variables.environment()
        assigned = [each for each in _inner(node) if each.type == "variable_assignment"]
        given = {_text(each.children[0]): self._value(each.child_by_field_name("value")) for each in assigned}
        parts = [each for each in _inner(node) if not each.type.endswith(("variable_assignment", "_redirect"))]
        words = self._words(parts) or [""]
        if words[0] in self.functions:
            return self._function(node, words, given)
        status = self._builtin(node, words[0], words[1:])
        if status is None:
            self.calls.append(Call(self._at(node), words, environment | given, self._conditions, self._part))
            self._flow = "exit" if words[0] == "exec" and words[1:] else ""
            status = Status.MAYBE if words[0] in _ASKS else Status.DONE
        return status

    def _function(self, node: Node, words: list[str], given: Mapping[str, str]) -> Status:
        values, own, outer = self.variables.values, {**numbered(words[1:]), **given}, self._returned
        names = dict.fromkeys([*own, *(each for each in values if not each.isidentifier())])
        self._locals.append({each: values.pop(each, None) for each in names})
        values |= own
        self._returned, only = [], given.keys() - self.variables.exported
        self.variables.exported |= dict.fromkeys(given)
        status = self._run(self.functions[words[0]])
        for other in self._returned:
            self.variables.join(other, self._at(node), f"`return` in {words[0]}")
            status = Status.MAYBE
        restored = {**self.variables.values, **self._locals.pop()}
        self.variables.values = {each: value for each, value in restored.items() if value is not None}
        self.variables.exported = {each: None for each in self.variables.exported if each not in only}
        self._flow, self._returned = "" if self._flow == "return" else self._flow, outer
        return status

    def _builtin(self, node: Node, name: str, rest: list[str]) -> Status | None:
        """Evaluate a builtin of the shell; None for other commands."""
        if name in {"", ":", "true", "false"}:
            return Status.NO if name == "false" else Status.YES
        if name in {"exit", "return"}:
            self._flow = name
            return Status.YES if rest[:1] == ["0"] else Status.NO if "".join(rest).isdecimal() else Status.MAYBE
        if _READS.match(" ".join([name, *rest[:1]])):
            return self._forget(node)
        if name not in {"set", "shift"}:
            return None
        if name == "shift" or "--" in rest:
            self._lose("@*#123456789", node)
        elif any(re.match("-[a-z]*a", each) for each in rest):
            self.notes.append(f"line {self._at(node)}: set -a: write the variables that the engine needs under env")
        return Status.DONE

    def _test_command(self, node: Node) -> Status:
        """Evaluate a test for an empty word or for equality."""
        found = _TEST.fullmatch(_text(node))
        if found is None:
            return Status.MAYBE
        sign, left, right = (group or "" for group in (found[1] or found[4], found[2] or found[3], found[5]))
        same = _matches(self.variables.text(left), [self.variables.text(right)])
        return {Status.YES: Status.NO, Status.NO: Status.YES}.get(same, same) if sign in {"-n", "!="} else same

    # Words

    def _words(self, nodes: Iterable[Node]) -> list[str]:
        """The expanded words of ``nodes``; adjacent nodes without a blank form one word."""
        written: list[str] = []
        end = -1
        for node in nodes:
            before = written.pop() if node.start_byte == end else ""
            written.append(before + _text(node))
            end = node.end_byte
        return self.variables.words(written)

    def _value(self, node: Node | None) -> str:
        return self.variables.text(_text(node))


def _is_broken(node: Node) -> bool:
    """Whether a statement cannot be parsed; ignores braces of JSON in a default, which the grammar rejects."""
    if node.type == "expansion" or not node.has_error:
        return False
    return node.type == "ERROR" or node.is_missing or any(map(_is_broken, node.children))


def _matches(word: str, patterns: Sequence[str]) -> Status:
    """Whether a word matches a pattern; unknown for patterns other than ``*`` and literals."""
    if "*" in patterns or (word in patterns and not unknown(word)):
        return Status.YES
    is_known = not unknown("".join([word, *patterns])) and not {*"".join(patterns)} & {*"*?[("}
    return Status.NO if is_known else Status.MAYBE


def _clauses(node: Node) -> Iterator[tuple[Status | list[Node], Node, list[Node]]]:
    """Clauses of ``if``: condition, its node, and body."""
    if node.type == "else_clause":
        yield Status.YES, node, node.named_children
        return
    then = next((child.start_byte for child in node.children if child.type == "then"), 0)
    inner = [child for child in _inner(node) if child.type not in {"elif_clause", "else_clause"}]
    condition = [child for child in inner if child.start_byte < then]
    yield condition, (condition or [node])[-1], inner[len(condition) :]
    for child in _inner(node)[len(inner) :]:
        yield from _clauses(child)
