"""Shell text as the commands that it would run: parsed with the grammar of tree-sitter-bash, never run.

Followed are assignments, ``export``, ``${X}`` with defaults, arrays, functions, ``if`` and ``case`` that constants
decide. What anything else sets is unknown: a mark in the words that have it. Where the text does not decide between
branches, each is read, what they set differently is unknown afterwards, and the commands in them carry the condition.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import fnmatch
import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.importer.unknown import in_quotes, mark, output_of, shown, unknown, with_places

MAX_TEXT, MAX_VALUE, MAX_STEPS = 1 << 18, 1 << 16, 20_000

Value = str | list[str]

# `$ docker run …` and `user@host:~$ …`
_PROMPT = re.compile(r"^[ \t]*(?:[\w.-]+@[\w.-]+:[^\s$#]*)?\$[ \t]+(?=\S)", re.MULTILINE)
_PIECE = re.compile(
    r"\\(?P<escaped>.)|(?P<ansi>\$'(?:\\.|[^'\\])*')|(?P<quote>\$?\")|(?P<single>')|(?P<sum>\$\(\()|(?P<open>\$\{|\$\(|`)"
    r"|\$(?P<name>[A-Za-z_]\w*|[0-9@*#?$!-])|(?P<plain>[^\\'\"$`]+|\$|\\$)",
    re.DOTALL,
)
_PARAMETER = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\]]{0,80})\])?([\s\S]*)")
_SETS = re.compile(r"(?<![\w$/-])([A-Za-z_]\w*)(?:\[[^\[\]]{0,80}\])?(?:[-+*/]?=(?!=)|\+\+|--)")
_BRACKET = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[(){}`]", re.DOTALL)
_CLOSES = {"${": "}", "$(": ")", "`": "`"}
# Programs that answer a question: whether they succeed is not known, as it is taken for granted of others.
_ASKS = frozenset({"grep", "test", "[", "command", "pgrep", "which", "type", "cmp", "diff"})
_SUMS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}")


class Status(enum.Enum):
    """How a command ends: as the text decides, as is taken for granted, or not known."""

    YES, NO, DONE, MAYBE = range(4)


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A condition that the text does not decide, and whether it holds where a command runs."""

    line: int
    text: str
    holds: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A command.

    Attributes:
        line: of the text.
        words: expanded.
        environment: that it runs in, as far as the text sets it.
        conditions: under which it runs.
        part: number of the statement of the text that it is of, and that statement as it is written.
    """

    line: int
    words: list[str]
    environment: dict[str, str]
    conditions: tuple[Condition, ...] = ()
    part: tuple[int, str] = (0, "")


@dataclasses.dataclass(slots=True)
class State:
    """What the commands of a text change.

    Attributes:
        variables: by name; arrays are lists, and so is ``@``, the arguments of the text or of the function that runs.
        exported: names of those that commands see, in order.
        functions: their bodies, with the first line of the text that defines them.
        flow: how the text is left: ``exit``, ``return``, ``break`` or ``continue``; empty where it goes on.
    """

    variables: dict[str, Value]
    exported: dict[str, None]
    functions: dict[str, tuple[Node, int]]
    flow: str = ""

    def copy(self) -> State:
        """A state that changes apart from this one."""
        return State(dict(self.variables), dict(self.exported), dict(self.functions))


@functools.cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _text(node: Node | None) -> str:
    return "" if node is None else (node.text or b"").decode(errors="replace")


def _statements(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


class Shell:
    """A shell text, and what it leaves behind.

    Attributes:
        state: after the last command.
        calls: commands in the order in which they would run.
        asked: names whose values the text asks for.
        reasons: line and reason by the name of each variable whose value is not known.
        unread: lines that are not followed, here-documents and what cannot be parsed, with their text.
        notes: what was overlooked.
    """

    def __init__(self, source: str, defines: Mapping[str, str], asked: dict[str, None]) -> None:
        self.source, self.defines, self.asked = source, defines, asked
        self.state = State({"@": []}, {}, {})
        self.calls: list[Call] = []
        self.reasons: dict[str, tuple[int, str]] = {}
        self.unread: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self._conditions: tuple[Condition, ...] = ()
        self._locals: list[dict[str, Value | None]] = []
        self._first, self._line, self._left = 1, 0, [MAX_STEPS]
        self._part, self._statement = (0, ""), 0

    def child(self, line: int, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> Shell:
        """A shell that another command starts at ``line``: all of its text counts as on that line."""
        out = Shell(self.source, self.defines, self.asked)
        out.state = State({**environment, "@": list(arguments)}, dict.fromkeys(environment), {})
        out.reasons, out._line, out._left = self.reasons, line, self._left
        return out

    def run(self, text: str, first: int = 1) -> None:
        """Read ``text``, which begins at line ``first``.

        Raises:
            UsageError: it is too long.
        """
        if len(text) > MAX_TEXT:
            raise UsageError(f"{self.source} is longer than {MAX_TEXT >> 10} KiB", hint="is this the right file?")
        self._first = first
        text = _PROMPT.sub("", text).rstrip().rstrip("\\")  # a text cut off after a backslash ends there
        text, slips = re.subn(r"\\[ \t]+\n", "\\\n", text)
        self.notes += ["a space after the backslash at the end of a line: ignored"] if slips else []
        for node in _parser().parse(with_places(text).encode()).root_node.named_children:
            self._begin(node)
            self._run(node)
            if _is_broken(node):
                before = node.prev_sibling
                is_rest = before is not None and before.end_point[0] == node.start_point[0]
                self.unread.append((self._at(node), (_text(before) if is_rest else "") + _text(node)))
                self._forget(node)

    def _begin(self, node: Node) -> None:
        """Count a statement; of ``a && b`` each is one."""
        self._part, self._statement = (self._part[0] + 1, _text(node)), node.id

    def fault(self, line: int, problem: str, hint: str = "import the docker run line alone") -> UsageError:
        """An error about a line."""
        return UsageError(f"{self.source}:{line}: {problem}", hint=hint)

    # Statements

    def _at(self, node: Node) -> int:
        return self._line or node.start_point[0] + self._first

    def _run(self, node: Node) -> Status:
        """Follow a statement."""
        if self.state.flow:
            return Status.YES
        self._left[0] -= 1
        if self._left[0] < 0:
            raise self.fault(self._at(node), "this takes too long to evaluate")
        if node.next_sibling is not None and node.next_sibling.type == "&":
            before, self.state = self.state, self.state.copy()
            self._follow(node)
            self.state = before
            return Status.DONE
        return self._follow(node)

    def _follow(self, node: Node) -> Status:
        follow: Callable[[Node], Status] | None = getattr(self, f"_{node.type.lower()}", None)
        return self._all(node.named_children) if follow is None else follow(node)

    def _all(self, nodes: Iterable[Node]) -> Status:
        out = Status.DONE
        for node in nodes:
            out = self._run(node)
        return out

    def _comment(self, node: Node) -> Status:
        before = node.prev_sibling
        if _text(node).endswith("\\") and before is not None and before.end_point[0] == node.start_point[0]:
            problem = "a comment ends the command, so the backslash in it does not continue the line"
            raise self.fault(self._at(node), problem, "remove the comment")
        return Status.DONE

    def _list(self, node: Node) -> Status:
        left, sign, right = node.children[0], _text(node.children[1]), node.children[-1]
        asks = left.type == "test_command" or _text(left).split()[0] in _ASKS
        are_two = self._statement == node.id and sign == "&&" and not asks
        if are_two:
            self._begin(left)
        status = self._run(left)
        if status is Status.DONE and sign == "&&":
            if are_two:
                self._begin(right)
            return self._run(right)
        if status in {Status.YES, Status.NO}:
            return self._run(right) if (status is Status.YES) == (sign == "&&") else status
        branches = ([right], []) if sign == "&&" else ([], [right])
        return self._either(left, *(functools.partial(self._all, branch) for branch in branches))

    def _either(self, why: Node, *branches: Callable[[], object]) -> Status:
        """Follow branches between which the text does not decide: the first where ``why`` holds."""
        before, conditions, line, text = self.state, self._conditions, self._at(why), shown(_text(why), 80)
        ends: list[State] = []
        for branch in branches:
            self.state = before.copy()
            self._conditions = (*conditions, Condition(line, text, not ends))
            branch()
            ends.append(self.state)
        self._conditions = conditions
        self.state, *others = [end for end in ends if not end.flow] or ends[:1]
        for other in others:
            for name in sorted(self.state.variables.keys() | other.variables.keys()):
                if self.state.variables.get(name) != other.variables.get(name):
                    self._lose(name, line, f"`{text}`")
            self.state.exported |= other.exported
            self.state.functions |= other.functions
        return Status.MAYBE

    def _lose(self, name: str, line: int, reason: str) -> None:
        """Make a variable unknown, for a reason, unless the user gave its value."""
        self.asked[name] = None
        self.reasons[name] = (line, reason)
        self.state.variables[name] = self.defines.get(name, mark(name))

    def _chain(self, clauses: Sequence[tuple[Callable[[], Status], Node, list[Node]]]) -> Status:
        """Follow ``if`` or ``case``: conditions, each with where it is and what runs where it holds."""
        for at, (condition, where, body) in enumerate(clauses):
            status = condition()
            if status is Status.YES:
                return self._all(body)
            if status is not Status.NO:
                return self._either(where, lambda: self._all(body), lambda: self._chain(clauses[at + 1 :]))  # noqa: B023
        return Status.DONE

    def _if_statement(self, node: Node) -> Status:
        return self._chain([*self._clauses(node)])

    def _clauses(self, node: Node) -> Iterator[tuple[Callable[[], Status], Node, list[Node]]]:
        if node.type == "else_clause":
            yield (lambda: Status.YES), node, node.named_children
            return
        then = next((child.start_byte for child in node.children if child.type == "then"), 0)
        inner = [child for child in _statements(node) if child.type not in {"elif_clause", "else_clause"}]
        condition = [child for child in inner if child.start_byte < then] or [node]
        body = [child for child in inner if child.start_byte > then]
        yield functools.partial(self._all, condition), condition[-1], body
        for child in _statements(node)[len(inner) :]:
            yield from self._clauses(child)

    def _case_statement(self, node: Node) -> Status:
        word = self.text(node.child_by_field_name("value"))
        clauses = []
        for item in (child for child in node.named_children if child.type == "case_item"):
            ends = next((child.start_byte for child in item.children if child.type == ")"), 0)
            written = [child for child in item.named_children if child.start_byte < ends]
            patterns = [(self.text(child), _text(child)) for child in written]
            body = [child for child in item.named_children if child.start_byte > ends]
            if ";&" in _text(item) or ";;&" in _text(item):
                raise self.fault(self._at(item), "`;&` and `;;&` in case are not supported")
            clauses.append((functools.partial(_matches, word, patterns), item, body))
        return self._chain(clauses)

    def _for_statement(self, node: Node) -> Status:
        """Follow a loop, whose rounds are not counted: what it sets is unknown in it and behind it."""
        condition = node.child_by_field_name("condition")
        if condition is not None and condition.type == "test_command" and self._run(condition) is Status.NO:
            return Status.DONE
        self._forget(node)
        self._either(node, functools.partial(self._all, [node.child_by_field_name("body") or node]), lambda: None)
        return self._forget(node)

    def _forget(self, node: Node) -> Status:
        """Make every variable unknown that a statement sets."""
        names = [*_SETS.findall(_text(node)), _text(node.child_by_field_name("variable"))]
        for name in filter(None, names):
            self._lose(name, self._at(node), f"`{shown(_text(node), 60)}`")
        return Status.MAYBE

    _while_statement = _c_style_for_statement = _for_statement

    def _function_definition(self, node: Node) -> Status:
        body = node.child_by_field_name("body")
        if body is not None:
            self.state.functions[_text(node.child_by_field_name("name"))] = (body, self._first)
        return Status.DONE

    def _subshell(self, node: Node) -> Status:
        before, self.state = self.state, self.state.copy()
        status = self._all(_statements(node))
        self.state = before
        return status if node.type == "subshell" else Status.MAYBE

    _pipeline = _subshell

    def _negated_command(self, node: Node) -> Status:
        self._all(_statements(node))
        return Status.MAYBE

    def _compound_statement(self, node: Node) -> Status:
        return self._forget(node) if node.children[0].type == "((" else self._all(node.named_children)

    def _unset_command(self, node: Node) -> Status:
        for name, is_part in re.findall(r"(?<![\w-])([A-Za-z_]\w*)(\[?)", _text(node).removeprefix("unset")):
            if is_part:
                self._lose(name, self._at(node), f"`{shown(_text(node), 60)}`")
            else:
                self.state.variables.pop(name, None)
                self.state.exported.pop(name, None)
        return Status.DONE

    def _redirected_statement(self, node: Node) -> Status:
        body = node.child_by_field_name("body")
        documents = [child for child in node.named_children if child.type == "heredoc_redirect"]
        is_shown = _text(body).split()[:1] in (["cat"], ["tee"], ["echo"], ["read"])
        for child in documents:
            self.unread.append((self._at(child), _text(child if is_shown else node)))
            self.notes.append(f"line {self._at(child)}: a here-document, which is not evaluated")
        if body is None:
            return Status.DONE
        self._statement = body.id if self._statement == node.id else self._statement
        return self._run(body)

    # Assignments

    def _variable_assignment(self, node: Node) -> Status:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = _text(target)
        before = self.state.variables.get(name, "") if any(child.type == "+=" for child in node.children) else ""
        if name == "IFS":
            raise self.fault(self._at(node), "setting IFS is not supported, since it changes how words are split")
        is_list = isinstance(self.state.variables.get(name), list)
        if target is None or target.type == "subscript" or (is_list and (value is None or value.type != "array")):
            self._lose(name.partition("[")[0], self._at(node), f"`{shown(_text(node), 60)}`")
        elif value is not None and value.type == "array":
            items = before if isinstance(before, list) else [before] if before else []
            self._set(name, [*items, *self.words(_statements(value))], node)
        elif name not in self.state.variables and _extends(name, _text(value)):
            # it extends what its environment has
            text = self.text(value)
            self.state.variables[name] = text if name in unknown(text) else mark(name) + text
        else:
            self._set(name, _joined(before) + self.text(value), node)
        return Status.DONE

    def _set(self, name: str, value: Value, node: Node) -> None:
        if len(_joined(value)) > MAX_VALUE:
            raise self.fault(self._at(node), f"{name} is longer than {MAX_VALUE >> 10} KiB", "is this the right file?")
        names = unknown(value) if isinstance(value, str) else []
        program = next((each for each in names if each.startswith("$(")), None)
        if names:
            self.asked[name] = None
            value = self.defines.get(name, value)
        if program is not None and name not in self.defines:
            self._lose(name, self._at(node), program.strip("$() …"))
        else:
            self.state.variables[name] = value

    def _declaration_command(self, node: Node) -> Status:
        kind, options = node.children[0].type, re.findall(r"\s-[a-zA-Z]+", _text(node).partition("=")[0])
        letters = "".join(options)
        for child in _statements(node):
            name = _text(child.child_by_field_name("name") or child)
            if not name.isidentifier():
                self.notes += (
                    [f"line {self._at(node)}: variables of `{shown(_text(node), 80)}`"] if name[0] != "-" else []
                )
                continue
            if kind not in {"export", "readonly"} and self._locals and "g" not in letters:
                self._locals[-1].setdefault(name, self.state.variables.pop(name, None))
            if child.type == "variable_assignment":
                self._variable_assignment(child)
            elif kind != "export":
                self.state.variables.setdefault(name, "")
            if kind == "export" or "x" in letters:
                self.state.exported[name] = None
            if set(letters) & set("iulnA"):
                self._lose(name, self._at(node), f"`{shown(_text(node), 60)}`")
        return Status.DONE

    # Commands

    def _command(self, node: Node) -> Status:
        environment = {name: _joined(value) for name in self.state.exported if (value := self._value(name)) is not None}
        parts: list[Node] = []
        given: dict[str, str] = {}
        for child in _statements(node):
            if child.type == "variable_assignment" and not parts:
                given[_text(child.child_by_field_name("name"))] = self.text(child.child_by_field_name("value"))
            elif not child.type.endswith("_redirect"):
                parts.append(child)
        words = self.words(parts) or [""]
        if words[0] in self.state.functions:
            return self._function(words[0], words[1:], given)
        status = self._builtin(node, words[0], words[1:])
        if status is None:
            self.calls.append(Call(self._at(node), words, environment | given, self._conditions, self._part))
            self.state.flow = "exit" if words[0] == "exec" and words[1:] else ""
            status = Status.MAYBE if words[0] in _ASKS else Status.DONE
        return status

    def _function(self, name: str, arguments: list[str], given: Mapping[str, str]) -> Status:
        body, first = self.state.functions[name]
        before, self._first = self._first, first
        self._locals.append({each: self.state.variables.get(each) for each in ("@", *given)})
        self.state.variables |= {"@": arguments, **given}
        status = self._run(body)
        for local, value in self._locals.pop().items():
            self.state.variables.pop(local, None)
            self.state.variables |= {} if value is None else {local: value}
        self._first, self.state.flow = before, "" if self.state.flow == "return" else self.state.flow
        return status

    def _builtin(self, node: Node, name: str, rest: list[str]) -> Status | None:
        """Do what a command of the shell does; None for every other command."""
        if name in {"", ":", "true", "false"}:
            return Status.NO if name == "false" else Status.YES
        if name in {"exit", "return", "break", "continue"}:
            self.state.flow = name
            return Status.NO if rest[:1] == ["1"] else Status.YES
        if name == "shift":
            count = int(rest[0]) if "".join(rest[:1]).isdecimal() else 1
            self.state.variables["@"] = self.state.variables["@"][count:]
        elif name == "set":
            options = rest[: rest.index("--")] if "--" in rest else rest
            self.state.variables["@"] = rest[len(options) + 1 :] if "--" in rest else self.state.variables["@"]
            if any(re.match("-[a-z]*a", each) for each in options):
                self.notes.append(f"line {self._at(node)}: set -a: write the variables that the engine needs under env")
        elif name in {"read", "mapfile", "readarray", "getopts", "let"} or (name, rest[:1]) == ("printf", ["-v"]):
            for found in filter(None, (re.match(r"[A-Za-z_]\w*", each) for each in rest)):
                self._lose(found[0], self._at(node), name)
            return Status.MAYBE
        elif name == "shopt" and "nocasematch" in rest:
            raise self.fault(self._at(node), "shopt -s nocasematch is not supported")
        else:
            return None
        return Status.DONE

    def _test_command(self, node: Node) -> Status:
        decided = self._decided(node)
        return Status.MAYBE if decided is None else Status.YES if decided else Status.NO

    def _decided(self, node: Node) -> bool | None:
        """What a test gives; None where the text does not decide it."""
        sides, first = _statements(node), node.children[0].type if node.children else ""
        if not sides or re.search(r"\s-[ao]\s", _text(node)):
            return None
        if node.type in {"test_command", "parenthesized_expression"} or first == "!":
            inner = self._decided(sides[-1]) if len(sides) == 1 else None
            return inner if inner is None or first != "!" else not inner
        sign = next(
            (_text(child) for child in node.children if not child.is_named or child.type == "test_operator"), ""
        )
        if sign in {"&&", "||"}:
            both = {self._decided(sides[0]), self._decided(sides[-1])}
            return (sign == "||") if (sign == "||") in both else None if None in both else sign == "&&"
        values = [self.text(side) for side in sides if side.type != "test_operator"]
        return _holds(sign, values, sides[-1])

    # Words

    def words(self, nodes: Iterable[Node]) -> list[str]:
        """The words that ``nodes`` become in a command; those without a blank between them are one."""
        written: list[tuple[str, int]] = []
        end = -1
        for node in nodes:
            before = written.pop()[0] if node.start_byte == end else ""
            written.append((before + _text(node), self._at(node)))
            end = node.end_byte
        out: list[str] = []
        for text, line in written:
            word: str | None = None
            pieces = list(self._expanded(text, line))
            for value, split in pieces:
                parts = [value] if isinstance(value, str) else value
                for at, part in enumerate(re.split(r"[ \t\n]+", _joined(value)) if split else parts):
                    out += [word] if at and word is not None else []
                    before = "" if at else word or ""
                    word = before + part if part or before or not split else None
            # `"$@"` without arguments is no word
            out += [word] if word or (word is not None and all(value != [] for value, _ in pieces)) else []
        return out

    def text(self, node: Node | None) -> str:
        """The value of ``node`` where no words are split, as behind ``NAME=``; empty where it is not there."""
        pieces = [] if node is None else self._expanded(_text(node), self._at(node))
        return "".join(_joined(value) for value, _ in pieces)

    def _expanded(self, text: str, line: int, outer: bool | None = None) -> Iterator[tuple[Value, bool]]:
        """The values that a word is put together of, and whether each is split at blanks.

        ``outer``, in the default of a variable, is whether that is in double quotes.
        """
        at, inside = 0, bool(outer)
        while at < len(text):
            found = _PIECE.match(text, at)
            kind, at = (found.lastgroup, found.end()) if found else ("plain", at + 1)
            piece = found[kind or 0] if found else ""
            if kind == "escaped":
                kept = inside and piece not in '\\$`"\n' + "}" * (outer is not None)
                yield ("\\" if kept else "") + piece.strip("\n"), False
            elif kind == "quote":
                inside = not inside
                yield "" if inside else piece[:-1], False
            elif kind == "single" and not inside and not outer:
                end = text.find("'", at)
                yield in_quotes(text[at:end]), False
                at = end + 1
            elif kind == "ansi" and not inside:
                yield piece[2:-1].encode().decode("unicode_escape", "replace"), False
            elif kind == "sum":
                end = _closing(text, at, ")")
                yield self._sum(text[at:end]), False
                at = end + 2
            elif kind == "open":
                end = _closing(text, at, _CLOSES[piece])
                inner, at = text[at:end], end + 1
                expand = self._parameter if piece == "${" else self._output
                yield from expand(inner, line, inside or bool(outer))
            elif kind == "name":
                yield from self._parameter(piece, line, inside or bool(outer))
            elif outer is None and not inside and _BRACES.search(piece):
                yield output_of("braces"), False
            else:
                yield in_quotes(piece) if inside else piece, outer is False and not inside

    def _sum(self, inside: str) -> str:
        """What ``$((…))`` gives, of numbers and variables with + - * and brackets."""
        text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: _joined(self._value(found[1]) or "0"), inside)
        try:
            return str(_number(ast.parse(text.strip()[:200], mode="eval").body))
        except (KeyError, RecursionError, SyntaxError, TypeError, ValueError):
            return output_of("sum")

    def _output(self, inside: str, line: int, quoted: bool) -> Iterable[tuple[Value, bool]]:
        """What ``$(…)`` prints, where that is known."""
        if inside.strip() == "uname -m":
            return [("aarch64", False)]  # as on every Spark
        if found := re.fullmatch(r"\s*basename ([\w$./{}-]+|\"[^\"]+\")\s*", inside):
            path = "".join(_joined(value) for value, _ in self._expanded(found[1], line))
            return [(path.rstrip("/").rpartition("/")[2], not quoted)]
        return [(output_of((inside.split() or [""])[0]), not quoted)]

    def _value(self, name: str) -> Value | None:
        """The value of a variable or an argument; None where the text sets none."""
        arguments = self.state.variables["@"]
        if name in {"@", "*", "#"}:
            return str(len(arguments)) if name == "#" and isinstance(arguments, list) else arguments
        if name in {"0", "?", "$", "!", "-"}:
            return self.source if name == "0" and not self._line else mark(name)
        if name.isdecimal() and 0 < int(name[:6]) <= len(arguments):
            return arguments[int(name[:6]) - 1] if isinstance(arguments, list) else mark(name)
        if name in self.state.variables:
            return self.state.variables[name]
        self.asked[name] = None
        return self.defines.get(name, "~" if name == "HOME" else None)

    def _parameter(self, inside: str, line: int, quoted: bool) -> Iterable[tuple[Value, bool]]:
        """What ``${inside}`` is, as pieces of a word."""
        found = _PARAMETER.fullmatch(inside)
        if found is None:
            return [(output_of("expansion"), False)]
        sign, name, index, rest = found.groups()
        value = self._value(name)
        if index in {"@", "*"}:
            value = [value] if isinstance(value, str) else value or []
        elif isinstance(value, list) and name not in "@*":
            value = dict(enumerate(value)).get(int(index or 0)) if (index or "0").isdecimal() else None
        if sign == "#" and value is not None and not unknown(_joined(value)):
            return [(str(len(value)), False)]
        if quoted and "*" in {name, index}:
            value = _joined(value or "")
        default = re.match(r"(:?)([-=+])(.*)", rest, re.DOTALL)
        is_set = bool(value) if rest[:1] == ":" or isinstance(value, list) else value is not None
        if default is not None and is_set == (default[2] == "+"):
            pieces = list(self._expanded(default[3], line, quoted))
            self.state.variables |= {name: "".join(_joined(each) for each, _ in pieces)} if default[2] == "=" else {}
            return pieces
        if default is not None:
            return [("" if default[2] == "+" else value or "", not quoted)]
        if value is not None and (rest[:1] == "?" or rest[:2] == ":?" or not rest + sign):
            return [(value, not quoted)]
        if value is not None or sign:
            self.reasons.setdefault(name, (line, f"`${{{shown(inside, 60)}}}`"))
        return [(mark(name), not quoted)]


def _joined(value: Value) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _closing(text: str, at: int, close: str) -> int:
    """Where the bracket or backtick is closed that is open before ``at``."""
    depth, opens = 0, {"}": "{", ")": "("}.get(close, "")
    for found in _BRACKET.finditer(text, at):
        if found[0] == close and depth == 0:
            return found.start()
        depth += (found[0] == opens) - (found[0] == close)
    return len(text)


def _is_broken(node: Node) -> bool:
    """Whether a statement cannot be parsed; the braces of JSON in a default, which the grammar minds, are no matter."""
    if node.type == "expansion" or not node.has_error:
        return False
    return node.type == "ERROR" or node.is_missing or any(map(_is_broken, node.children))


def _extends(name: str, value: str) -> bool:
    """Whether what is assigned to a variable has its value before in it, as of PATH, rather than a default for it."""
    used = re.search(rf"\$\{{?{name}\b", value)
    return used is not None and not re.match(rf'"?\$\{{{name}:?[-=?][^}}]', value)


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return int(_SUMS[type(node.op)](_number(node.left), _number(node.right)))
    return int(ast.literal_eval(node))


def _fits(word: str, pattern: str, written: str) -> bool | None:
    """Whether a word matches a pattern; None where that is not known, or takes more than * and ?."""
    is_literal = not set(pattern) & set("*?[(")
    if unknown(word + pattern) or (not is_literal and (set(pattern) & set("[(") or set(written) & set("'\"\\$"))):
        return None
    return word == pattern if is_literal else fnmatch.fnmatchcase(word, pattern)


def _holds(sign: str, values: Sequence[str], last: Node) -> bool | None:
    """Whether a comparison holds, whose last side is ``last``; None where that is not known."""
    is_number = all(re.fullmatch(r"-?\d{1,18}", value) for value in values)
    if any(map(unknown, values)) or len(values) != (1 if sign in {"-z", "-n", ""} else 2):
        return None
    if len(values) == 1:
        return (values[0] == "") == (sign == "-z")
    if sign in {"=", "==", "!="}:
        same = values[0] == values[1] if last.type == "string" else _fits(values[0], values[1], _text(last))
        return same if same is None else same == (sign != "!=")
    if re.fullmatch("-(eq|ne|lt|gt|le|ge)", sign) is None or not is_number:
        return None
    return bool(getattr(operator, sign[1:])(int(values[0]), int(values[1])))


def _matches(word: str, patterns: Sequence[tuple[str, str]]) -> Status:
    """Whether a word of ``case`` is one of the patterns, each with how it is written."""
    fits = {pattern == "*" or _fits(word, pattern, written) for pattern, written in patterns}
    return Status.YES if True in fits else Status.MAYBE if None in fits else Status.NO
