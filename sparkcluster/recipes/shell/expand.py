"""Words of a command out of the syntax tree: quotes, variables, defaults, arrays."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import arithmetic, arrays, operators, substitutions
from sparkcluster.recipes.shell.marks import filled, is_known, mark, with_brackets
from sparkcluster.recipes.shell.script import Status
from sparkcluster.recipes.shell.syntax import statements, text_of, tree

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

MAX_WORD = 1 << 16
MAX_WORDS = 20_000

_INSIDE = re.compile(r"([!#]?)([A-Za-z_]\w*+|[0-9]++|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_BRACES = re.compile(r"\{[^{},\s]*,[^{}]*\}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v", "0": "\0"}

_PARAMETER = re.compile(r"(?:^|[^\\])(?:\\\\)*\$[0-9@*#?!$-]")
_LITERAL = {'"': '\\"', '\\"': '\\\\\\"'}
"""What a here-document takes as it is, as it would be in double quotes."""


class _Fields:
    """The words that one word of the text becomes."""

    def __init__(self, run: Evaluator) -> None:
        self.run = run
        self.done: list[str] = []
        self.current: str | None = None

    def add(self, piece: str) -> None:
        """A piece that is not split."""
        self.run.spend(len(piece))
        self.current = (self.current or "") + piece
        if len(self.current) > MAX_WORD:
            where = self.run.where
            raise UsageError(f"{where}: a word of more than {MAX_WORD} characters", hint="is this the right file?")

    def split(self, value: str) -> None:
        """An unquoted value: each of its words is one of the command's."""
        self.run.unsure = self.run.unsure or not is_known(value)
        signs = self.run.state.variables.get("IFS", " \t\n")
        if not is_known(signs):
            self.run.unsure = True
            signs = ""
        blanks = "".join(sign for sign in signs if sign in " \t\n")
        ended = False
        for piece in re.findall(r"\ue000[^\ue001]*\ue001|.", value, re.DOTALL):
            if piece in blanks:
                ended = ended or self.current is not None
                self.end()
            elif piece in signs:  # two of these have an empty word between them
                self.current = self.current if ended else self.current or ""
                self.end()
                ended = False
            else:
                self.add(piece)
                ended = False

    def many(self, values: list[str], *, split: bool) -> None:
        """The elements of an array, each a word."""
        for at, value in enumerate(values):
            if at:
                self.end()
            self.split(value) if split else self.add(value)

    def end(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
            self.current = None


def fields(run: Evaluator, *nodes: Node) -> list[str]:
    """The words that ``nodes`` become in a command, each none, one or several.

    Nodes without a blank between them are one word, as ``--x=`` and a command in backticks are.
    """
    out = _Fields(run)
    for at, node in enumerate(nodes):
        written = text_of(node)
        if at and not adjacent(nodes[at - 1], node):
            out.end()
        if is_braced(node):
            out.add(run.undecided(written, node))
        else:
            _put(run, node, out, quoted=False)
    out.end()
    return out.done


def adjacent(before: Node, node: Node) -> bool:
    """Whether there is no blank between two words of the grammar, which are one for a shell."""
    return before.end_byte == node.start_byte and not text_of(node)[:1].isspace()


def text(run: Evaluator, node: Node) -> str:
    """The value of ``node`` where no words are split, as behind ``NAME=``."""
    out = _Fields(run)
    _put(run, node, out, quoted=True)
    out.end()
    return " ".join(out.done)


def is_braced(node: Node) -> bool:
    """Whether a shell would make several words of ``{a,b}`` in it, which is not followed."""
    if node.type not in {"word", "concatenation", "brace_expression"}:
        return False
    quoted = {"string", "raw_string", "ansi_c_string", "expansion", "command_substitution"}
    parts = node.children if node.type == "concatenation" else [node]
    bare = "".join('"' if part.type in quoted else re.sub(r"\\.", "_", text_of(part)) for part in parts)
    return node.type == "brace_expression" or bool(_BRACES.search(bare))


def _put(run: Evaluator, node: Node, out: _Fields, *, quoted: bool) -> None:
    kind = node.type
    if kind in {"concatenation", "translated_string"}:
        for child in node.children:
            _put(run, child, out, quoted=quoted)
    elif kind == "string":
        _string(run, node, out)
    elif kind in {"simple_expansion", "expansion"}:
        with run.deeper(node):
            _expansion(run, node, out, quoted=quoted)
    elif kind == "command_substitution":
        value = substitutions.printed(run, node)
        out.add(value) if quoted else out.split(value)
    else:
        out.add(_constant(run, node))


def _constant(run: Evaluator, node: Node) -> str:
    """What is not split into words."""
    kind, written = node.type, text_of(node)
    if kind in {"raw_string", "ansi_c_string"}:
        value = written[1:-1] if kind == "raw_string" else _ansi(written[2:-1])
        return run.filled(filled(value, quoted=True))
    if kind == "arithmetic_expansion":
        return arithmetic.value(run, re.sub(r"^\$\(\(|\)\)$|^\$\[|\]$", "", written.strip()), node)
    if kind in {"process_substitution", "brace_expression"}:
        return run.undecided(written, node)
    return _literal(run, written)


def _literal(run: Evaluator, written: str) -> str:
    value = re.sub(r"\\(.?)", lambda found: "" if found[1] == "\n" else found[1], written, flags=re.DOTALL)
    return run.filled(filled(value, quoted=False))


def _string(run: Evaluator, node: Node, out: _Fields) -> None:
    """A text in double quotes; what is between its expansions is literal."""
    parts = [part for part in pieces(node, start=1, end=1) if part != ""]
    if not parts:
        out.add("")  # but `"$@"` without arguments is no word
    for part in parts:
        if isinstance(part, str):
            out.add(run.filled(filled(_unescaped(part), quoted=True)))
        else:
            _put(run, part, out, quoted=True)


def pieces(node: Node, *, start: int = 0, end: int = 0) -> list[str | Node]:
    """The literal texts and the expansions in a quoted text or here-document, in order."""
    whole, base = node.text or b"", node.start_byte
    at, out = start, list[str | Node]()
    for child in node.children:
        if child.type in {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}:
            # the grammar takes a blank before an expansion for a part of it
            blanks = len(child.text or b"") - len((child.text or b"").lstrip())
            out += [whole[at : child.start_byte - base + blanks].decode(errors="replace"), child]
            at = child.end_byte - base
    return [*out, whole[at : len(whole) - end].decode(errors="replace")]


def _unescaped(written: str, signs: str = '$`"\\') -> str:
    def one(found: re.Match[str]) -> str:
        return "" if found[1] == "\n" else found[1] if found[1] in signs else found[0]

    return re.sub(r"\\(.)", one, written, flags=re.DOTALL)


def _ansi(written: str) -> str:
    """The escapes of ``$'…'``."""

    def one(found: re.Match[str]) -> str:
        digits = found[1] or found[2]
        if digits:
            return chr(int(digits, 16) % 0x110000)
        return chr(int(found[3], 8) % 256) if found[3] else _ESCAPES.get(found[4], found[4])

    return re.sub(r"\\(?:x([0-9a-fA-F]{1,2})|[uU]([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", one, written, flags=re.DOTALL)


def here_document(run: Evaluator, node: Node, *, literal: bool) -> str:
    """The content of a here-document."""
    if literal:
        return with_brackets(text_of(node))
    out = _Fields(run)
    for part in pieces(node):
        if isinstance(part, str) and _PARAMETER.search(part):  # which the grammar takes for text
            quoted = re.sub(r'\\.|"', lambda found: _LITERAL.get(found[0], found[0]), part, flags=re.DOTALL)
            out.add(_in_quotes(run, quoted, node))
        elif isinstance(part, str):
            out.add(with_brackets(_unescaped(part, "$`\\")))
        elif text_of(part).lstrip().startswith("$(("):
            out.add(_in_quotes(run, text_of(part).lstrip(), node))
        else:
            _put(run, part, out, quoted=True)
    out.end()
    return " ".join(out.done)  # elements of an array are joined here


@dataclasses.dataclass(slots=True)
class _Parameter:
    """The parts of ``${…}``: ``!`` or ``#``, the name, what is in brackets, and what follows."""

    inside: str
    sign: str
    name: str
    key: str | None
    operator: str
    node: Node


def _expansion(run: Evaluator, node: Node, out: _Fields, *, quoted: bool) -> None:
    """``$NAME`` and ``${…}``."""
    written = text_of(node).strip()
    inside = written[2:-1] if node.type == "expansion" else written[1:].strip()
    rest = ""
    if node.type == "simple_expansion" and inside.isdigit():
        inside, rest = inside[0], inside[1:]  # `$10` is `$1` and 0
    found = _INSIDE.fullmatch(inside)
    if found is None:
        out.add(run.undecided(f"${{{inside}}}", node))
        return
    sign, name, key, operator = found.groups()
    part = _Parameter(inside, sign, name, key, operator, node)
    values = _several(run, part)
    if values is not None:
        starred = "*" in {part.name, part.key}
        quoted = quoted or (part.operator.lstrip(":")[:1] == "+" and part.operator.endswith('"'))
        out.add(" ".join(values)) if starred and quoted else out.many(values, split=not quoted)
        return
    value, splits = _scalar(run, part, quoted=quoted)
    out.split(value + rest) if splits and not quoted else out.add(value + rest)


def _several(run: Evaluator, part: _Parameter) -> list[str] | None:
    """The words of ``$@`` and of an array; None for what is one word."""
    name = part.name
    if name in {"@", "*"} and not part.sign:
        values = run.state.arguments
        name = "@"
    elif part.key in {"@", "*"} and part.sign != "#":
        whole = part.sign != "!" and not re.match(r"[:/%#^,@]+[^-+]", part.operator)
        array = arrays.of(run, name, whole=whole)
        run.unsure = run.unsure or name in run.state.uncounted
        values = None if array is None else list(array) if part.sign == "!" else list(array.values())
        cut = re.fullmatch(r":\s*(\d{1,6})(?::(\d{1,6}))?", part.operator)
        if array is not None and cut is not None and part.name not in run.state.associative:
            # by index, not by place
            values = [text for key, text in array.items() if int(key) >= int(cut[1])]
            return values[: int(cut[2])] if cut[2] else values
    else:
        return None
    run.spend(len(values or ()))
    if values is None:
        run.unsure = True
        return [mark(name)]
    if "IFS" in run.state.variables and "*" in {part.name, part.key}:
        return [run.undecided(text_of(part.node), part.node)]
    return _cut(run, part, values)


def _cut(run: Evaluator, part: _Parameter, values: list[str]) -> list[str]:
    """The words that an operator leaves."""
    operator = part.operator
    if operator.startswith((":-", "-")):
        return values or [word(run, operator.lstrip(":")[1:], part.node)]
    if operator.startswith((":+", "+")) and (
        not values or operator.lstrip(":")[1:].strip('"') == f"${{{part.name}[{part.key}]}}"
    ):
        return values  # `${A[@]+"${A[@]}"}`
    cut = re.fullmatch(r":\s*(\d{1,6})(?::(\d{1,6}))?", operator)
    if operator and cut is None:
        run.unsure = True
        return [run.undecided(f"${{{part.inside}}}", part.node)]
    if cut is None:
        return values
    first = max(int(cut[1]) - 1, 0)  # `${@:1}` begins with the first argument
    return values[first : first + int(cut[2]) if cut[2] else None]


def _scalar(run: Evaluator, part: _Parameter, *, quoted: bool) -> tuple[str, bool]:
    """The value, and whether it is split into words where it stands unquoted."""
    name, node = part.name, part.node
    if part.inside in {"?", "#"}:
        return _special(run, part), True
    if part.sign == "!":
        name = run.value(name) or ""
        if not re.fullmatch(r"\w+", name):
            return run.undecided(text_of(node), node), True
    value = run.value(name)
    if part.key is not None:
        array = arrays.of(run, name)
        if part.sign == "#" and part.key in {"@", "*"}:
            return mark(name) if array is None else str(len(array)), True
        key = None if array is None else arrays.key(run, name, array, part.key, node)
        if array is None or key is None:
            return mark(name) if array is None else run.undecided(text_of(node), node), True
        value = array.get(key)
        value = "" if value is None and not part.operator else value
    if part.sign == "#":
        return str(len(value)) if value is not None and is_known(value) else mark(name), True
    return _operated(run, name, value, part, quoted=quoted)


def _special(run: Evaluator, part: _Parameter) -> str:
    """``$?`` and ``$#``."""
    if part.inside == "?":
        return "0" if run.last is Status.YES else run.undecided("$?", part.node)
    run.script.asked |= {} if run.state.arguments else {"1": None}
    return mark("@") if run.state.arguments is None else str(len(run.state.arguments))


def _operated(run: Evaluator, name: str, value: str | None, part: _Parameter, *, quoted: bool) -> tuple[str, bool]:
    """The value with a default, cut, or replaced."""
    operator = part.operator
    if operator[:2] in {":-", ":=", ":+", ":?"} or operator[:1] in {"-", "=", "+", "?"}:
        return _default(run, name, value, part, quoted=quoted)
    if value is None:
        run.script.asked[name] = None
        return mark(name), True
    if not operator:
        return value, True
    changed = operators.changed(run, value, operator, part.node) if is_known(value) else mark(name)
    return run.undecided(text_of(part.node), part.node) if changed is None else changed, True


def _default(run: Evaluator, name: str, value: str | None, part: _Parameter, *, quoted: bool) -> tuple[str, bool]:
    operator, node = part.operator, part.node
    colon = operator[:1] == ":"
    kind, written = operator[int(colon)], operator[1 + int(colon) :]
    whole = written[:1] in {"'", '"'} and written[:1] == written[-1:]
    if value is None:
        run.script.asked[name] = None
    if value is not None and not is_known(value):
        return (mark(name) if kind == "+" else value), True
    is_set = bool(value) if colon else value is not None
    if kind == "+":
        return (word(run, written, node, quoted=quoted), not whole) if is_set else ("", True)
    if is_set or kind == "?":
        return value or mark(name), True
    default = word(run, written, node, quoted=quoted)
    if kind == "=":
        run.assign(name, default)
    return default, not whole


def word(run: Evaluator, written: str, node: Node, *, quoted: bool = False) -> str:
    """A word within ``${…}``; in a quoted one single quotes are kept."""
    if len(written) > 1 and written[0] == written[-1] == "'" and not quoted:
        return written[1:-1]
    if len(written) > 1 and written[0] == written[-1] == '"':
        written = written[1:-1]
    if not re.search(r"[$`\\\"']", written):
        return run.filled(filled(written, quoted=False))
    return _in_quotes(run, re.sub(r'(?<!\\)"', "", written), node)


def _in_quotes(run: Evaluator, written: str, node: Node) -> str:
    """The value of a text as it would be in double quotes."""
    root = tree(f'"{written}"', run.where, run.line(node))
    strings = [child for command in statements(root) for child in _strings(command)]
    with run.deeper(node):
        return text(run, strings[0]) if len(strings) == 1 else run.undecided(written, node)


def _strings(node: Node) -> list[Node]:
    if node.type == "string":
        return [node]
    return [found for child in node.children for found in _strings(child)] if node.type.startswith("command") else []
