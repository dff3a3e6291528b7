"""``[ … ]``, ``[[ … ]]``, ``test`` and ``((…))``: true, false, or not decided by the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.recipes.shell import arithmetic, expand, patterns
from sparkcluster.recipes.shell.marks import is_known
from sparkcluster.recipes.shell.syntax import statements, text_of

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_FILES = frozenset({"-f", "-e", "-r", "-s", "-x"})
_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-gt": ">", "-le": "<=", "-ge": ">="}


def of_node(run: Evaluator, node: Node) -> bool | None:
    """What a ``test_command`` or an expression in it gives; None if the text does not decide it."""
    kind = node.type
    if kind in {"test_command", "parenthesized_expression"}:
        inner = list(statements(node))
        return of_node(run, inner[0]) if len(inner) == 1 else None
    if kind == "unary_expression":
        return _unary(run, node)
    if kind == "binary_expression":
        return _binary(run, node)
    value = expand.text(run, node)
    return bool(value) if is_known(value) else None


def _unary(run: Evaluator, node: Node) -> bool | None:
    sign, operand = text_of(node.children[0]), node.children[-1]
    if sign == "!":
        inner = of_node(run, operand)
        return None if inner is None else not inner
    if operand.type == "binary_expression":
        return None  # `[ -z a -o b ]`, which the grammar reads otherwise than a shell
    value = _operand(run, node, operand)
    return None if value is None else of_words(run, [sign, value])


def _operand(run: Evaluator, node: Node, operand: Node) -> str | None:
    """A side of a test; None where ``[`` would see another number of words than one."""
    if _in_double(node):
        return expand.text(run, operand)
    run.unsure = False
    words = expand.fields(run, operand)
    return words[0] if len(words) == 1 and not run.unsure else None


def _binary(run: Evaluator, node: Node) -> bool | None:
    sides = list(statements(node))
    left, right = node.child_by_field_name("left") or sides[0], node.child_by_field_name("right") or sides[-1]
    found = node.child_by_field_name("operator")
    sign = text_of(found) if found is not None else ""
    if sign in {"&&", "||"}:
        first, second = of_node(run, left), of_node(run, right)
        decides = sign == "||"
        if decides in (first, second):
            return decides
        return None if None in (first, second) else not decides
    if left.type in {"unary_expression", "binary_expression"} or sign in {"-a", "-o", "=~"}:
        return None
    before, after = _operand(run, node, left), _operand(run, node, right)
    if before is None or after is None:
        return None
    literal = right.type in {"string", "raw_string"} or not set(after) & set("*?[\\(")
    if sign in {"==", "=", "!="} and not literal:
        pattern = patterns.of_node(run, right) if _in_double(node) and is_known(before) else None
        return None if pattern is None else (pattern.fullmatch(before) is not None) == (sign != "!=")
    if "nocasematch" in run.state.options and _in_double(node):
        before, after = before.lower(), after.lower()
    return of_words(run, [before, sign, after])


def _in_double(node: Node) -> bool:
    while node.parent is not None and node.type != "test_command":
        node = node.parent
    return text_of(node).startswith("[[")


def of_words(run: Evaluator, words: Sequence[str]) -> bool | None:
    """What ``test`` gives with these words."""
    if words[:1] == ["!"]:
        inner = of_words(run, words[1:])
        return None if inner is None else not inner
    if len(words) == 2:
        return _about(run, *words)
    if not all(map(is_known, words)) or len(words) > 3:
        return None
    return _compared(run, *words) if len(words) == 3 else any(words)


def _about(run: Evaluator, sign: str, value: str) -> bool | None:
    if sign in {"-z", "-n"} and is_known(value):
        return (value == "") == (sign == "-z")
    return True if sign in _FILES and run.state.files.get(run.state.path(value)) is not None else None


def _compared(run: Evaluator, left: str, sign: str, right: str) -> bool | None:
    if sign in {"=", "==", "!="}:
        return (left == right) == (sign != "!=")
    if sign not in _NUMBERS or not all(re.fullmatch(r"\s*-?\d{1,18}\s*", side) for side in (left, right)):
        return None
    number = arithmetic.integer(run, f"{left} {_NUMBERS[sign]} {right}")
    return None if number is None else bool(number)
