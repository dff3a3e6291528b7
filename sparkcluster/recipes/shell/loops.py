"""``while``, ``until`` and ``for``: unrolled where the text decides how often, else taken once or not at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import expand, joins
from sparkcluster.recipes.shell.marks import is_known
from sparkcluster.recipes.shell.script import Status
from sparkcluster.recipes.shell.syntax import statements, text_of

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_MAX_ROUNDS = 500


def until(run: Evaluator, node: Node) -> Status:
    """``while`` and ``until``."""
    with run.bounded():
        return _until(run, node)


def _until(run: Evaluator, node: Node) -> Status:
    body = node.child_by_field_name("body")
    condition = [child for child in statements(node) if child != body]
    inside = [] if body is None else list(statements(body))
    ended = Status.YES
    for _ in range(_MAX_ROUNDS):
        with run.asking():
            status = run.sequence(condition)
        status = status.inverted() if node.children[0].type == "until" else status
        if run.state.flow is not None:
            return status
        if status is Status.NO:
            return _over(run, ended)
        if status is not Status.YES:
            joins.either(run, condition[-1], lambda: run.sequence(inside), lambda: Status.YES)
            joins.come_in(run, "continue")
            return _over(run, Status.MAYBE)
        run.spend(run.state.size)
        before = run.state.copy()
        ended = run.sequence(inside)
        joins.come_in(run, "continue")
        if run.state.flow == "continue":
            run.state.flow = None
        if run.state == before:  # it goes on like this until a branch ends it
            run.state.flow = "exit"
        if run.state.flow is not None:
            return _over(run, ended)
    raise UsageError(f"{run.where}:{run.line(node)}: a loop without end", hint="copy the command out of it")


def _over(run: Evaluator, status: Status) -> Status:
    """Behind the loop, whose body last gave ``status``, where what broke out of it comes in again."""
    if run.state.flow == "break":
        run.state.flow, status = None, Status.YES
    return Status.MAYBE if joins.come_in(run, "break") and status is not Status.YES else status


def over(run: Evaluator, node: Node) -> Status:
    """``for NAME in WORD …``: once for each word, if they are known; ``for ((…))`` and ``select`` once or never."""
    with run.bounded():
        return _over_words(run, node)


def _over_words(run: Evaluator, node: Node) -> Status:
    body, variable = node.child_by_field_name("body"), node.child_by_field_name("variable")
    inside = [] if body is None else list(statements(body))
    name = "" if variable is None else text_of(variable)
    if node.type != "for_statement" or node.children[0].type == "select":
        head = text_of(node).partition("do")[0]
        for each in dict.fromkeys([name, *re.findall(r"\b([A-Za-z_]\w*+)\s*+(?:=|\+\+|--|[-+*/]=)", head)]):
            if each:
                run.lose(each, node)
        return _perhaps(run, node, inside)
    run.unsure = False
    values = expand.fields(run, *node.children_by_field_name("value"))
    unsure = run.unsure
    if not any(child.type == "in" for child in node.children):
        values, unsure = list(run.state.arguments or ()), run.state.arguments is None
    if unsure or len(values) > _MAX_ROUNDS or not all(is_known(word) and not set(word) & set("*?[") for word in values):
        run.lose(name, node)
        return _perhaps(run, node, inside)
    status = Status.YES
    for word in values:
        run.assign(name, word)
        status = run.sequence(inside)
        joins.come_in(run, "continue")
        if run.state.flow == "continue":
            run.state.flow = None
        if run.state.flow is not None:
            break
    return _over(run, status)


def _perhaps(run: Evaluator, node: Node, inside: list[Node]) -> Status:
    joins.either(run, node, lambda: run.sequence(inside), lambda: Status.YES)
    joins.come_in(run, "continue")
    return _over(run, Status.MAYBE)
