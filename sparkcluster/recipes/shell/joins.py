"""Both ways of a condition that the text does not decide, and where they come together again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.recipes.shell.marks import is_known, shown
from sparkcluster.recipes.shell.script import Assumed, State, Status, differences, joined
from sparkcluster.recipes.shell.syntax import written

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator


def either(run: Evaluator, why: Node, yes: Callable[[], Status], no: Callable[[], Status]) -> Status:
    """Both ways of a condition that the text does not decide."""
    before, outside, guards = run.state, run.assumed, run.guards
    states, ends = [], []
    reason = _reason(run, why)
    for holds, way in ((True, yes), (False, no)):
        run.spend(before.size)
        run.state = before.copy()
        run.assumed = (*outside, Assumed(reason.line, reason.text, reason.names, holds))
        ends.append(way())
        states.append(run.state)
    run.assumed = outside
    first, second = states
    if first.flow == second.flow:
        _join(run, first, second, reason)
    else:
        # What ended the loop or the function comes in again behind it; what ended the text does not.
        run.state, left = (second, first) if first.flow is not None else (first, second)
        run.left.append((left, reason))
        goes_on = Assumed(reason.line, reason.text, reason.names, run.state is first)
        if left.flow == "exit":
            run.guards = (*guards, goes_on)
        else:
            run.assumed = (*outside, goes_on)
    return ends[0] if ends[0] is ends[1] else Status.MAYBE


def _join(run: Evaluator, first: State, second: State, reason: Assumed) -> None:
    flow = first.flow
    run.spend(first.size + second.size)
    run.script.rewritten |= dict.fromkeys(differences(first.files, second.files), reason)
    run.state, differing = joined(first, second)
    run.state.flow = flow
    for name in differing:
        given = run.defined(name)
        run.script.asked[name] = None
        run.script.undecided[name] = reason
        if given is not None:
            run.state.arrays.pop(name, None)
            run.state.variables[name] = given


def come_in(run: Evaluator, *flows: str) -> bool:
    """Join what left a loop or function by ``flows`` in a branch; whether there was such."""
    found = [(state, reason) for state, reason in run.left if state.flow in flows]
    run.left = [(state, reason) for state, reason in run.left if state.flow not in flows]
    for state, reason in found:
        state.flow = None
        if run.state.flow is not None:
            run.state = state
        else:
            _join(run, run.state, state, reason)
    return bool(found)


def _reason(run: Evaluator, node: Node) -> Assumed:
    """A condition with the variables in it that the text does not tell."""
    text = written(node).partition("\n")[0]
    names = dict.fromkeys(found[1] or found[2] for found in re.finditer(r"\$(?:\{(\w+)|([A-Za-z_]\w*|\d))", text))
    names_ = tuple(name for name in names if (value := run.value(name)) is None or not is_known(value))
    run.script.asked |= dict.fromkeys(names_)
    return Assumed(run.line(node), " ".join(shown(text).split()), names_)
