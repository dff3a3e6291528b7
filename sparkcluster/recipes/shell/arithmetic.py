"""``$((…))`` and ``((…))`` over whole numbers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tree_sitter import Node

from sparkcluster.recipes.shell import expand
from sparkcluster.recipes.shell.marks import is_known, mark

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_LIMIT = 10**18
_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?|\$(?:\{([0-9]+|#)\}|([0-9#]))")


_EXPANSION = re.compile(r"\$\{(?![A-Za-z_]\w*\}|\d+\}|#\})[^{}]*\}")


def _quotient(left: int, right: int) -> int:
    """Whole numbers are divided towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: int, right: int) -> int:
    return left - right * _quotient(left, right)


def _power(left: int, right: int) -> int:
    if not 0 <= right < 64 or abs(left) > _LIMIT:
        raise ValueError("too large")
    return int(left**right)


_BINARY: dict[type[ast.AST], Callable[[int, int], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: _quotient,
    ast.Mod: _remainder, ast.Pow: _power, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*+)\s*+(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*+([A-Za-z_]\w*+)")


def lose_assigned(run: Evaluator, text: str, node: Node) -> bool:
    """Variables that ``text`` sets get values that are not followed; whether there are such."""
    names = dict.fromkeys(found[1] or found[2] for found in _ASSIGNED.finditer(re.sub(r"[=!<>]=", " ", text)))
    for name in names:
        run.lose(name, node)
    return bool(names)


def value(run: Evaluator, text: str, node: Node) -> str:
    """The number that ``text`` gives, or a mark."""
    if lose_assigned(run, text, node):
        return mark(f"(({text.strip()}))")
    number = integer(run, text, node)
    return mark(f"(({text.strip()}))") if number is None else str(number)


def integer(run: Evaluator, text: str, node: Node | None = None) -> int | None:
    """The number that ``text`` gives, which is of ``node``; None if it is not known. A condition gives 1 or 0."""

    def put(found: re.Match[str]) -> str:
        name = found[1] or found[2] or found[3]
        if name == "#":
            run.script.asked |= {} if run.state.arguments else {"1": None}
            return "unknown" if run.state.arguments is None else str(len(run.state.arguments))
        known = run.value(name)
        if known is None:
            run.script.asked[name] = None
        return known if known is not None and is_known(known) and re.fullmatch(r"-?\d{1,18}", known) else "unknown"

    def expanded(found: re.Match[str]) -> str:
        known = "" if node is None else expand.word(run, found[0], node)
        return known if re.fullmatch(r"-?\d{1,18}", known) else "unknown"

    text = re.sub(r"\b0[xX]([0-9a-fA-F]{1,15})\b", lambda found: str(int(found[1], 16)), text)
    filled = _NAME.sub(put, _EXPANSION.sub(expanded, text))
    if "unknown" in filled or len(filled) > 200 or not re.fullmatch(r"[\d\s()<>=!&|+*/%-]*", filled):
        return None
    # a leading 0 means octal, `!` and a sign in front of `**` bind closer than in Python
    if "**" in filled and re.search(r"(^|[^\d)\s])\s*[-+]", filled):
        return None
    if re.search(r"\b0\d", filled) or (re.search(r"!(?!=)", filled) and not re.fullmatch(r"\s*!\s*\d+\s*", filled)):
        return None
    python = re.sub(r"!(?!=)", " not ", filled.replace("&&", " and ").replace("||", " or ").replace("/", "//"))
    try:
        return _of(ast.parse(python.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _of(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
        number = _of(node.operand)
        return -number if isinstance(node.op, ast.USub) else int(not number) if isinstance(node.op, ast.Not) else number
    if isinstance(node, ast.BoolOp):
        numbers = [_of(part) for part in node.values]
        return int(all(numbers) if isinstance(node.op, ast.And) else any(numbers))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _bounded(_BINARY[type(node.op)](_of(node.left), _of(node.right)))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BINARY:
        return int(_BINARY[type(node.ops[0])](_of(node.left), _of(node.comparators[0])))
    raise ValueError("not followed")


def _bounded(number: int) -> int:
    if abs(number) > _LIMIT:
        raise ValueError("too large")
    return number
