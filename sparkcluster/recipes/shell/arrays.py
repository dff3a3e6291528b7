"""Arrays: by index, or with ``declare -A`` by key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.recipes.shell import arithmetic, expand
from sparkcluster.recipes.shell.marks import is_known
from sparkcluster.recipes.shell.script import Array

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator


def of(run: Evaluator, name: str, *, whole: bool = False) -> Array | None:
    """The array ``name``, or a variable read as such; None for one that is unknown.

    ``whole`` is for one of which it does not matter which element has which index.
    """
    if name in run.state.uncounted and not whole:
        return None
    if name in run.state.arrays:
        return run.state.arrays[name]
    value = run.value(name)
    if value is None:
        run.script.asked[name] = None
        return None
    return {"0": value} if is_known(value) else None


def key(run: Evaluator, name: str, array: Array, written: str, node: Node) -> str | None:
    """The key that ``NAME[written]`` is about; None where the text does not tell it."""
    if name in run.state.associative:
        value = expand.word(run, written, node)
        return value if is_known(value) else None
    value = expand.word(run, written, node) if "$" in written else written
    number = arithmetic.integer(run, value) if is_known(value) else None
    if number is None:
        return None
    return str(number if number >= 0 else after(array) + number)


def after(array: Array) -> int:
    """The index behind the last element."""
    return max((int(each) for each in array if re.fullmatch(r"\d{1,9}", each)), default=-1) + 1


def ordered(array: Array) -> Array:
    """The elements in the order of their indices; keys stay as they were set."""
    if not all(re.fullmatch(r"\d{1,9}", each) for each in array):
        return array
    return dict(sorted(array.items(), key=lambda item: int(item[0])))
