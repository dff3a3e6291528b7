"""Every error that a user sees is in one module, with an exit code that is documented."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import sparkcluster
from sparkcluster import errors, exit_codes
from sparkcluster.cli.main import usage
from sparkcluster.errors import (
    HostError,
    LaunchError,
    LeaseHeld,
    LeaseLost,
    NotServing,
    PlanError,
    SparkclusterError,
    StageError,
    StopError,
)

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text() for path in (ROOT / "sparkcluster").rglob("*.py")}
NAMED = (HostError, LaunchError, LeaseHeld, LeaseLost, NotServing, PlanError, StageError, StopError)
CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SparkclusterError)]


def test_errors_are_defined_in_one_module():
    modules = [name for _, name, _ in pkgutil.walk_packages(sparkcluster.__path__, "sparkcluster.")]
    for name in modules:
        if not re.match(r"sparkcluster\.(lab\.engine|__main__|.*\.__main__)", name):
            importlib.import_module(name)
    found, todo = set(), [SparkclusterError]
    while todo:
        found.add(one := todo.pop())
        todo += one.__subclasses__()
    assert {one.__module__ for one in found} == {"sparkcluster.errors"}


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_error_is_raised_somewhere_drawn_in_the_tree_and_has_a_documented_exit_code(error):
    name = error.__name__
    raised = [text for path, text in SOURCES.items() if path.name != "errors.py" and re.search(rf"\b{name}\b", text)]
    assert raised, f"nothing raises {name}"
    assert re.search(rf"^ *[│├└─ ]*{name}\b", errors.__doc__, re.MULTILINE)
    assert error.exit_code in exit_codes.MEANINGS


def test_exit_codes_are_listed_in_help_and_docs_from_one_place():
    constants = [value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)]
    assert sorted(constants) == sorted(exit_codes.MEANINGS)
    page = (ROOT / "docs/commands.md").read_text()
    for code, meaning in exit_codes.MEANINGS.items():
        assert re.search(rf"^  {code} +{re.escape(meaning)}$", usage(), re.MULTILINE)
        assert f"| {code} | {meaning} |" in page


def test_an_error_about_a_node_says_what_was_being_done():
    """Each names its step, so that no message has to be searched for in the code."""
    tree = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, NAMED)}
    silent = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, text in SOURCES.items()
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in tree
        if not {"step", None} & {keyword.arg for keyword in call.keywords}
    ]
    assert not silent
