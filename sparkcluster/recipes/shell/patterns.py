"""Patterns of ``case``, ``[[ … ]]`` and ``${NAME%…}`` as regular expressions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.recipes.shell import expand
from sparkcluster.recipes.shell.marks import is_known
from sparkcluster.recipes.shell.syntax import text_of

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_CLASSES = {
    "alnum": "A-Za-z0-9", "alpha": "A-Za-z", "blank": " \\t", "digit": "0-9", "lower": "a-z", "space": "\\s",
    "upper": "A-Z", "xdigit": "A-Fa-f0-9", "word": "A-Za-z0-9_",
}  # fmt: skip
_TOKEN = re.compile(
    r"""\\(?P<escaped>.)|'(?P<raw>[^']*)'|"(?P<quoted>(?:\\.|[^"\\])*)"|\[(?P<set>[!^]?\]?(?:\[:\w+:\]|[^\]])*)\]
    |(?P<extended>[@!+?*]\()|(?P<star>\*)|(?P<one>\?)|(?P<open>[$`].*)|(?P<plain>[^\\'"])""",
    re.DOTALL | re.VERBOSE,
)


def of_node(run: Evaluator, node: Node) -> re.Pattern[str] | None:
    """The pattern that ``node`` is; None where the text does not tell it."""
    return compiled(run, text_of(node), node, re.IGNORECASE if "nocasematch" in run.state.options else 0)


def compiled(run: Evaluator, written: str, node: Node, flags: int = 0) -> re.Pattern[str] | None:
    """The pattern ``written``; None where the text does not tell it."""
    if re.fullmatch(r"\$\{?\w+\}?", written):
        value = expand.word(run, written, node)
        return compiled(run, value, node, flags) if is_known(value) and "$" not in value else None
    out, at = "", 0
    while at < len(written):
        found = _TOKEN.match(written, at)
        piece = None if found is None else _piece(run, found, node)
        if found is None or piece is None:
            return None
        out, at = out + piece, found.end()
    try:
        return re.compile(out, re.DOTALL | flags)
    except (re.error, OverflowError, RecursionError):
        return None


def _piece(run: Evaluator, found: re.Match[str], node: Node) -> str | None:
    kind, text = found.lastgroup, found[found.lastgroup or 0]
    if kind == "quoted":
        value = expand.word(run, f'"{text}"', node)
        return re.escape(value) if is_known(value) else None
    if kind == "set":
        inside = re.sub(r"\[:(\w+):\]", lambda each: _CLASSES.get(each[1], ""), text)
        negated = inside[:1] in {"!", "^"}
        inside = inside[1:] if negated else inside
        escaped = inside.replace("[", r"\[")
        return f"[{'^' if negated else ''}{escaped}]" if inside.strip("]") else None
    if kind in {"extended", "open"}:
        return None
    return {"star": ".*", "one": "."}.get(kind or "", re.escape(text))
