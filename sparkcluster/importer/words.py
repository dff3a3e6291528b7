"""Expand words of shell text as bash does, from the variables that the text sets; unknown values are marked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from sparkcluster.importer.unknown import in_quotes, lost, mark, unknown

Value = str | list[str]

# Variables that bash sets.
_BY_BASH = {"HOME": "~", **{name: mark(name) for name in ("EUID", "HOSTNAME", "PWD", "UID")}}
# Markers in a word: split here, quoted (possibly empty) text, and an empty ``"$@"``.
_SPLIT, _EMPTY, _NONE = "\ue0f0", "\ue0f1", "\ue0f2"
_SIGNS = dict.fromkeys(map(ord, (_EMPTY, _NONE)))

_PIECE = re.compile(
    r"\\(?P<escaped>.)|(?P<ansi>\$'(?:\\.|[^'\\])*')|(?P<quote>\$?\")|(?P<single>')|(?P<open>\$\{|\$\(|`)"
    r"|\$(?P<name>[A-Za-z_]\w*|[0-9@*#?$!-])|(?P<plain>[^\\'\"$`]+|\$|\\$)",
    re.DOTALL,
)
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(\[[@*]\])?(?:(:?)([-=+?])([\s\S]*))?")
_BRACKET = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\{|[()}`]", re.DOTALL)
_BRACES = re.compile(r"\{(?:[^{},.]|\.(?!\.))*(?:,|\.\.)[^{}]*\}")


@dataclasses.dataclass(slots=True)
class Variables:
    """The variables of a shell.

    Attributes:
        defines: values from ``--define``.
        asked: names of variables that the text uses but does not set.
        reasons: line and reason by name, for unknown variables.
        values: values by name, including arguments; arrays, ``@`` and ``*`` are lists.
        exported: names of exported variables, in order.
    """

    defines: Mapping[str, str]
    asked: dict[str, None]
    reasons: dict[str, tuple[int, str]]
    values: dict[str, Value]
    exported: dict[str, None]

    def copy(self) -> Variables:
        """An independent copy."""
        return dataclasses.replace(self, values=dict(self.values), exported=dict(self.exported))

    def environment(self) -> dict[str, str]:
        """Exported variables with their values."""
        return {name: joined(value) for name in self.exported if (value := self.value(name)) is not None}

    def lose(self, name: str, line: int, reason: str) -> None:
        """Make a variable unknown, unless the user defined it."""
        self.asked[name] = None
        self.reasons[name] = (line, reason)
        self.values[name] = self.defines.get(name, mark(name))

    def join(self, other: Variables, line: int, reason: str) -> None:
        """Make variables unknown that differ in ``other``, the result of another branch."""
        for name in sorted(self.values.keys() | other.values.keys()):
            if self.values.get(name) != other.values.get(name) or (name in self.exported) != (name in other.exported):
                self.lose(name, line, reason)
        self.exported |= other.exported

    def set(self, name: str, value: Value, line: int, reason: str) -> None:
        """Set a variable; it is unknown if the value contains unsupported expressions."""
        names = unknown(value) if isinstance(value, str) else []
        self.asked |= dict.fromkeys([name] if names else [])
        self.values[name] = self.defines.get(name, value) if names else value
        if any(each.startswith(("$", "{")) for each in names):
            self.lose(name, line, reason)

    def value(self, name: str) -> Value | None:
        """The value of a variable or argument; None if it is not set."""
        if name in self.values:
            return self.values[name]
        self.asked[name] = None
        return self.defines.get(name, _BY_BASH.get(name))

    def words(self, written: Iterable[str]) -> list[str]:
        """The words of a command."""
        found = [word for text in written for word in self._expanded(text).split(_SPLIT)]
        return [word.translate(_SIGNS) for word in found if {*word} - {_EMPTY, _NONE} or {*word} == {_EMPTY}]

    def text(self, written: str) -> str:
        """The value of a word without splitting, as after ``NAME=``."""
        return self._expanded(written, whole=True).translate(_SIGNS)

    def _expanded(self, text: str, outer: bool | None = None, whole: bool = False) -> str:
        """Expand a word, with markers where it is split, unless ``whole``.

        In the default of a variable, ``outer`` is whether the variable is in double quotes.
        """
        out, at, inside = "", 0, bool(outer)
        while found := _PIECE.match(text, at):
            kind, at = found.lastgroup or "", found.end()
            piece = found[kind]
            quoted = inside or bool(outer)
            if kind == "escaped":
                kept = inside and piece not in '\\$`"\n' + "}" * (outer is not None)
                out += ("\\" if kept else "") + piece.strip("\n")
            elif kind == "quote":
                inside = not inside
                out += _EMPTY if inside else piece[:-1]
            elif kind == "single" and not quoted:
                end = text.find("'", at)
                out += _EMPTY + in_quotes(text[at:end])
                at = end + 1
            elif kind == "open":
                end = _closing(text, at, {"${": "}", "$(": ")"}.get(piece, piece))
                inner, at = text[at:end], end + 1
                program = "".join(inner.split()[:1])
                out += self._parameter(inner, quoted, whole) if piece == "${" else lost(f"$({program} …)")
            elif kind == "name":
                out += self._parameter(piece, quoted, whole)
            elif (kind == "ansi" and not inside) or (outer is None and not inside and _BRACES.search(piece)):
                out += lost(piece)
            else:
                out += in_quotes(piece) if inside else _placed(piece, outer is not False, whole)
        return out

    def _parameter(self, inside: str, quoted: bool, whole: bool) -> str:
        """The expansion of ``${inside}`` in a word."""
        found = _PARAMETER.fullmatch(inside)
        if found is None:
            return lost(f"${{{inside}}}")
        name, index, colon, sign, default = found.groups()
        value = self.value(name)
        if isinstance(value, list) and not index and name not in {"@", "*"}:
            value = value[0] if value else ""
        elif index:
            value = [value] if isinstance(value, str) else value or []
        if quoted and "*" in f"{name}{index}":
            value = joined(value or "")
        is_set = bool(value) if colon or isinstance(value, list) else value is not None
        if sign in {"-", "+"} and is_set == (sign == "+"):
            return self._expanded(default, quoted, whole)
        if sign == "=" and not is_set:
            self.values[name] = value = self.text(default)
        return "" if sign == "+" else _placed(mark(name) if value is None else value, quoted, whole)


def _placed(value: Value, quoted: bool, whole: bool) -> str:
    """The expansion of a value in a word."""
    if quoted and not whole and isinstance(value, list):
        return _SPLIT.join(_EMPTY + each for each in value) or _NONE
    return joined(value) if quoted or whole else re.sub(r"[ \t\n]+", _SPLIT, joined(value))


def numbered(arguments: Iterable[str]) -> dict[str, Value]:
    """Variables for arguments: ``@``, ``*``, ``#`` and numbers."""
    words = list(arguments)
    return {"@": words, "*": words, "#": str(len(words)), **{str(at): word for at, word in enumerate(words, 1)}}


def joined(value: Value) -> str:
    """A value as one string."""
    return value if isinstance(value, str) else " ".join(value)


def _closing(text: str, at: int, close: str) -> int:
    """Index of the bracket or backtick that closes the one before ``at``."""
    depth, opens = 0, {"}": "${", ")": "("}.get(close, "")
    for found in _BRACKET.finditer(text, at):
        if found[0] == close and depth == 0:
            return found.start()
        depth += (found[0] == opens) - (found[0] == close)
    return len(text)
