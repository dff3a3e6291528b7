"""``${NAME%…}``, ``${NAME/…/…}`` and others that make another text of a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.recipes.shell import expand, patterns
from sparkcluster.recipes.shell.marks import is_known

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_MAX_CUT = 512


_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper, ",,": str.lower, "^": lambda value: value[:1].upper() + value[1:],
    ",": lambda value: value[:1].lower() + value[1:],
}  # fmt: skip


def _piece(value: str, start: int, length: int | None) -> str | None:
    """``${NAME:start:length}``, each from the end if it is negative; None where bash refuses it."""
    start = start + len(value) if start < 0 else start
    if start < 0:
        return ""
    end = len(value) if length is None else start + length if length >= 0 else len(value) + length
    return value[start:end] if start <= end else None


def changed(run: Evaluator, value: str, operator: str, node: Node) -> str | None:
    """A value cut or replaced as ``operator`` says; None where that is not followed."""
    if operator in _CASES:
        return _CASES[operator](value)
    cut = re.fullmatch(r":\s*(\d{1,6}|(?<=\s)-\d{1,6})(?::\s*(-?\d{1,6}))?", operator)
    if cut:
        return _piece(value, int(cut[1]), None if cut[2] is None else int(cut[2]))
    if len(value) > _MAX_CUT:
        return None
    run.spend(len(value) * 8)
    found = re.fullmatch(r"(%%?|##?)(.*)", operator, re.DOTALL)
    if found is None:
        return _replaced(run, value, operator, node)
    pattern = patterns.compiled(run, found[2], node)
    return None if pattern is None else _without(value, found[1], pattern)


def _replaced(run: Evaluator, value: str, operator: str, node: Node) -> str | None:
    """``/PATTERN/TEXT`` and ``//PATTERN/TEXT``."""
    found = re.fullmatch(r"(//?)((?:\\.|[^/\\])*)(?:/(.*))?", operator, re.DOTALL)
    if found is None or "nocasematch" in run.state.options:
        return None
    anchor = found[2][:1] if found[1] == "/" and found[2][:1] in {"#", "%"} else ""
    pattern = patterns.compiled(run, found[2].removeprefix(anchor), node)
    new = expand.word(run, found[3] or "", node)
    # what matches as much as it can is left to the shell
    if pattern is None or not pattern.pattern or "*" in pattern.pattern or not is_known(new):
        return None
    expression = {"#": rf"\A(?:{pattern.pattern})", "%": rf"(?:{pattern.pattern})\Z"}.get(anchor, pattern.pattern)
    return re.sub(expression, lambda _: new, value, count=0 if found[1] == "//" else 1, flags=re.DOTALL)


def _without(value: str, kind: str, pattern: re.Pattern[str]) -> str:
    """``value`` without its shortest or longest end (``%``) or beginning (``#``) that matches."""
    ends = range(len(value) + 1)
    if kind[0] == "%":
        starts = [at for at in ends if pattern.fullmatch(value, at)]
        return value[: (max(starts) if kind == "%" else min(starts))] if starts else value
    stops = [at for at in ends if pattern.fullmatch(value, 0, at)]
    return value[(min(stops) if kind == "#" else max(stops)) :] if stops else value
