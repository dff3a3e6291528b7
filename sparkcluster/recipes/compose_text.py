"""Values of Compose files: variables put in, scalars as the text that a container gets, commands as words.

After https://docs.docker.com/reference/compose-file/interpolation, and what Compose splits a command with,
https://github.com/mattn/go-shellwords.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sparkcluster.recipes.shell import CLOSE, OPEN

MAX_DEPTH = 8

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-?+]")
# Outside quotes, Compose drops the rest of a command from the first of these on, or refuses it for the second.
_CUTS, _REFUSED = frozenset(";&|<>"), frozenset("()`")
_SPACE = frozenset(" \t\r\n")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<escape>\\.?)|(?P<single>'[^']*')|(?P<double>"(?:\\.|[^"\\])*")|(?P<space>[ \t\r\n]+)"""
    r"""|(?P<open>['"])|(?P<plain>[^\\'" \t\r\n]+)""",
    re.DOTALL,
)


class TextError(ValueError):
    """A value that Compose refuses, or takes for something else than it looks like.

    Attributes:
        hint: what to type.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def interpolated(text: str, value: Callable[[str], str | None], depth: int = 0) -> str:
    """``text`` with the variables in it put in, of which ``value`` has the values; those without one are marked.

    Raises:
        TextError: a ``$`` that begins no variable.
    """
    out, at = "", 0
    while True:
        dollar = text.find("$", at)
        if dollar < 0:
            return out + text[at:]
        out += text[at:dollar]
        following = text[dollar + 1 : dollar + 2]
        name = _NAME.match(text, dollar + 1)
        if following == "$":
            out, at = f"{out}$", dollar + 2
        elif name:
            out, at = out + _marked(name[0], value), name.end()
        elif following == "{":
            end = _closing(text, dollar)
            out, at = out + _braced(text[dollar + 2 : end], value, depth), end + 1
        else:
            raise TextError("a $ that begins no variable, which Compose refuses", "write $$ for a dollar sign")


def _marked(name: str, value: Callable[[str], str | None]) -> str:
    found = value(name)
    return f"{OPEN}{name}{CLOSE}" if found is None else found


def _braced(inside: str, value: Callable[[str], str | None], depth: int) -> str:
    if depth >= MAX_DEPTH:
        raise TextError(f"variables nested deeper than {MAX_DEPTH} levels", "write the value")
    name = _NAME.match(inside)
    operator = _OPERATOR.match(inside, name.end()) if name else None
    if name is None or (operator is None and name.end() < len(inside)):
        raise TextError("a ${…} that Compose does not know", "write $$ for a dollar sign")
    if operator is None:
        return _marked(name[0], value)
    found = value(name[0])
    is_set = bool(found) if operator[0][0] == ":" else found is not None
    word = inside[operator.end() :]
    if operator[0][-1] == "+":
        return interpolated(word, value, depth + 1) if is_set else ""
    if is_set:
        return str(found)
    if operator[0][-1] == "-":
        return interpolated(word, value, depth + 1)
    return f"{OPEN}{name[0]}{CLOSE}"


def _closing(text: str, start: int) -> int:
    """Where the brace is closed of the ``${`` at ``start``."""
    depth, at = 0, start
    while at < len(text):
        if text.startswith("${", at):
            depth, at = depth + 1, at + 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise TextError("a ${ that is not closed", "close it with }, or write $$ for a dollar sign")


def number(value: float) -> str:
    """A number as Compose writes it into a container's environment: 1.0 is 1, 0.90 is 0.9."""
    return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)


def words(text: str) -> list[str]:
    """The words of a command in one text, as Compose splits it: quotes and backslashes, and nothing else of a shell.

    Raises:
        TextError: something outside quotes of which Compose makes no word, or a quote that is not closed.
    """
    out: list[str] = []
    word: str | None = None
    for found in _TOKEN.finditer(text):
        if found.lastgroup != "space":
            word = (word or "") + _piece(found)
        elif word is not None:
            out.append(word)
            word = None
    return out if word is None else [*out, word]


def _piece(found: re.Match[str]) -> str:
    """What a part of a word stands for."""
    kind, piece = str(found.lastgroup), found[0]
    if kind == "open":
        raise TextError(f"a quote ({piece}) is not closed", "close it")
    if kind == "single":
        return piece[1:-1]
    if kind == "double":
        return _ESCAPED.sub(_unescaped, piece[1:-1])
    if kind == "escape":
        if piece[1:] in {"", *_SPACE}:
            raise TextError(
                "a backslash at the end of a line, which Compose takes for part of the next word",
                "delete it: `command: >` joins lines by itself",
            )
        return _ESCAPED.sub(_unescaped, piece)
    cut = next((char for char in piece if char in _CUTS | _REFUSED), None)
    if cut is not None:
        does = "from which on Compose drops the command" if cut in _CUTS else "which Compose refuses"
        raise TextError(f"an unquoted {cut}, {does}", 'quote it, or write the command as a list: ["bash", "-c", "…"]')
    return piece


def _unescaped(found: re.Match[str]) -> str:
    return {"t": "\t", "n": "\n"}.get(found[1], found[1])
