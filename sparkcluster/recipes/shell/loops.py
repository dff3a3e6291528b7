"""``while``, ``until`` and ``for``: unrolled where the text decides how often, else taken once or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import expand
from sparkcluster.recipes.shell.marks import is_known, mark
from sparkcluster.recipes.shell.script import Status
from sparkcluster.recipes.shell.syntax import statements, text_of

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_MAX_ROUNDS = 500


def until(run: Evaluator, node: Node) -> Status:
    """``while`` and ``until``."""
    body = node.child_by_field_name("body")
    condition = [child for child in statements(node) if child != body]
    for _ in range(_MAX_ROUNDS):
        status = run.sequence(condition)
        status = status.inverted() if node.children[0].type == "until" else status
        if status is Status.NO or body is None:
            return Status.YES
        if status is not Status.YES:
            return run.either(condition[-1], lambda: run.sequence(statements(body)), lambda: Status.YES)
        before = run.state.copy()
        run.sequence(statements(body))
        if _leaves(run):
            return Status.YES
        if run.state == before:  # it would go on like this for ever
            run.state.flow = "exit"
        if run.state.flow is not None:
            return Status.MAYBE
    raise UsageError(f"{run.where}:{run.line(node)}: a loop without end", hint="copy the command out of it")


def _leaves(run: Evaluator) -> bool:
    """Whether ``break`` ended the loop; ``continue`` is over with the round."""
    flow = run.state.flow
    if flow in {"break", "continue"}:
        run.state.flow = None
    return flow == "break"


def over(run: Evaluator, node: Node) -> Status:
    """``for NAME in WORD …``: once for each word, if they are known; ``for ((…))`` and ``select`` once or never."""
    body, variable = node.child_by_field_name("body"), node.child_by_field_name("variable")
    statements_ = [] if body is None else list(statements(body))
    if variable is None or node.type != "for_statement" or node.children[0].type == "select":
        return run.either(node, lambda: run.sequence(statements_), lambda: Status.YES)
    values = [word for part in node.children_by_field_name("value") for word in expand.fields(run, part)]
    if not any(child.type == "in" for child in node.children):
        values = list(run.state.arguments)
    name = text_of(variable)
    if len(values) > _MAX_ROUNDS or not all(is_known(word) and not set(word) & set("*?[") for word in values):
        run.assign(name, mark(name))
        return run.either(node, lambda: run.sequence(statements_), lambda: Status.YES)
    for word in values:
        run.assign(name, word)
        run.sequence(statements_)
        if _leaves(run) or run.state.flow is not None:
            break
    return Status.YES
