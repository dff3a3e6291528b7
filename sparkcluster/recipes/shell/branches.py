"""``if``, ``case``, ``&&`` and ``||``: followed where the text decides, else both ways."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import builtin, expand, joins, patterns
from sparkcluster.recipes.shell.script import Status
from sparkcluster.recipes.shell.syntax import statements, text_of

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

# Commands that do something before what follows behind `&&`. The failure of others tells something, so that what
# follows them depends on the machine.
_DOES = re.compile(
    r"\s*(sudo\s+)?(cd|pushd|mkdir|cp|mv|rm|ln|chmod|chown|export|source|\.|sleep|git|pip3?|uv|apt(-get)?|wget|hf"
    r"|huggingface-cli|docker\s+(pull|rm|stop|build|network|volume|kill|login|run|compose)|ray|python3?|bash|sh|set|vllm"
    r"|make|conda|touch|cat|tee|sed\s+-i)\b"
)


def _clauses(node: Node) -> list[tuple[list[Node], list[Node]]]:
    """Conditions and statements of each branch; no conditions before the last ``else``."""
    out: list[tuple[list[Node], list[Node]]] = []
    clauses = [node, *(child for child in node.children if child.type == "elif_clause")]
    for clause in clauses:
        conditions_, body, within = list[Node](), list[Node](), False
        for child in clause.children:
            if child.type == "then":
                within = True
            elif child.is_named and child.type not in {"comment", "elif_clause", "else_clause"}:
                (body if within else conditions_).append(child)
        out.append((conditions_, body))
    out += [([], list(statements(child))) for child in node.children if child.type == "else_clause"]
    return out


def if_(run: Evaluator, node: Node) -> Status:
    """``if … elif … else … fi``."""
    return _if(run, _clauses(node))


def _if(run: Evaluator, clauses: list[tuple[list[Node], list[Node]]]) -> Status:
    if not clauses:
        return Status.YES
    (condition, body), rest = clauses[0], clauses[1:]
    with run.asking():
        status = run.sequence(condition) if condition else Status.YES
    if run.state.flow is not None:
        return status
    if status is Status.YES:
        return run.sequence(body)
    if status is Status.NO:
        return _if(run, rest)
    return joins.either(run, condition[-1], lambda: run.sequence(body), lambda: _if(run, rest))


def case(run: Evaluator, node: Node) -> Status:
    """``case WORD in PATTERN) … esac``."""
    value = node.child_by_field_name("value")
    word = "" if value is None else expand.text(run, value)
    items = [child for child in node.children if child.type == "case_item"]
    return _case(run, node, word, items)


def _case(run: Evaluator, node: Node, word: str, items: list[Node]) -> Status:
    if not items:
        return Status.YES
    item, rest = items[0], items[1:]
    if any(child.type in {";&", ";;&"} for child in item.children):
        raise UsageError(f"{run.where}:{run.line(item)}: `;&` is not followed", hint="copy the command out of it")
    parts = item.children_by_field_name("value")
    decided = builtin.matches(word, [patterns.of_node(run, part) for part in parts])
    body = [child for child in statements(item) if child not in parts]
    if decided is None:
        return joins.either(
            run,
            node.child_by_field_name("value") or node,
            lambda: run.sequence(body),
            lambda: _case(run, node, word, rest),
        )
    return run.sequence(body) if decided else _case(run, node, word, rest)


def chain(run: Evaluator, node: Node) -> Status:
    """``A && B`` and ``A || B``."""
    parts = [child for child in node.children if child.type != "comment"]
    if len(parts) != 3:
        return run.unread(node)
    left, sign, right = parts
    with run.asking():
        status = run.run(left)
    return then(run, status, left, sign.type, lambda: run.run(right))


def _last(node: Node) -> Node:
    """The command whose status is that of ``node``, if those before it succeed."""
    if node.type in {"list", "pipeline"}:
        return _last([child for child in node.named_children if child.type != "comment"][-1])
    body = node.child_by_field_name("body") if node.type == "redirected_statement" else None
    return node if body is None else _last(body)


def then(run: Evaluator, status: Status, left: Node, sign: str, right: Callable[[], Status]) -> Status:
    """What follows ``left``, which ended as ``status``, behind ``&&`` or ``||``."""
    if run.state.flow is not None:
        return status
    asks = status is Status.MAYBE or (status is Status.LIKELY and not _DOES.match(text_of(_last(left))))
    if sign == "&&" and status is not Status.NO:
        run.script.asking += [left] if asks else []
        return joins.either(run, left, right, lambda: Status.NO) if asks else right()
    if sign == "||" and status is Status.NO:
        return right()
    if sign == "||" and status is not Status.YES:
        return joins.either(run, left, lambda: Status.YES, right)
    return status
