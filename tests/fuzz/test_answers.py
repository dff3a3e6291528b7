"""A malformed answer of a node, of any shape, is an error of that node: no bug, no hang, and the others are served.

Every other case has ``--json``; then stdout is one document.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import fleet, spoil
from .conftest import cases

CRASHED = re.compile(
    r"internal error|this check crashed|Traceback"
    r"|\b(Type|Key|Attribute|Index|Recursion|Overflow|Assertion|Unicode\w+|Validation|Value)Error\b"
)
# Command, state of the cluster, and the programs whose answer is corrupted.
SUBJECTS = [
    ("preflight INVENTORY", "empty", "probe reach"),
    ("preflight INVENTORY --hash", "empty", "listing"),
    ("preflight INVENTORY --deep", "empty", "measure lease"),
    ("plan INVENTORY", "serving", "probe"),
    ("status INVENTORY", "serving", "probe ask"),
    ("ask INVENTORY Hello", "serving", "ask"),
    ("releases INVENTORY", "serving", "releases"),
    ("down INVENTORY", "serving", "probe lease agent memory"),
    ("stage INVENTORY", "bare", "image lease listing worker"),
    ("stage INVENTORY image", "half", "image_files"),
    ("logs INVENTORY", "serving", "watch"),
    ("models INVENTORY", "serving", "models"),
    ("connect INVENTORY", "serving", "probe"),
    ("connect INVENTORY --client curl", "serving", "probe"),
    ("models INVENTORY --prune --yes", "serving", "models lease agent"),
    ("up INVENTORY", "serving", "probe"),
    ("up INVENTORY", "started", "probe watch observe"),
    ("up INVENTORY", "empty", "agent"),
    ("up INVENTORY", "stopped", "releases"),
    ("upgrade INVENTORY --playbook other --min-speed 0 --yes", "serving", "probe image agent"),
    ("upgrade INVENTORY --resume", "stopped", "releases"),
    ("doctor INVENTORY --json", "serving", "ask observe"),
]
ATTACKS = [(words, state, program) for words, state, programs in SUBJECTS for program in programs.split()]


@pytest.mark.parametrize(("words", "state", "program"), ATTACKS)
@cases(8, 150)
@given(seed=st.integers(0, 2**48))
def test_a_command_survives_any_answer(attacked: Any, words: str, state: str, program: str, seed: int) -> None:
    as_json = bool(seed % 2)
    code, output = attacked.attack([*words.split(), *["--json"] * as_json], state, program, seed)
    if attacked.internal:
        raise AssertionError(f"internal error, seed {seed}") from attacked.internal[0]
    assert code in {0, 1, 2, 3, 4, 130}, output
    assert not CRASHED.search(output), output
    if as_json:
        assert isinstance(json.loads(attacked.stdout, parse_constant=pytest.fail), dict), attacked.stdout
    if words.startswith("down") and code != 3:
        honest = [request for name, _, request in attacked.requests if name != attacked.hostile]
        steps = [step["do"] for request in honest for step in request.get("steps", ())]
        assert steps == ["stay-down", "stop", "delete", "delete"], "the honest node was not cleaned"


ODD_RESULTS = [
    *[{"results": each} for each in spoil.ODD],
    *[{"results": [each]} for each in spoil.ODD],
    *[{"results": [{"freed": each}]} for each in spoil.ODD if each != {}],
    {"results": [{"freed": {"/models/old": 9}}] * 2},
]


def test_an_invalid_result_of_a_removal_is_an_error_of_that_node(attacked: Any) -> None:
    for odd in ODD_RESULTS:

        def answer(name: str, program: str, request: dict[str, Any], odd: Any = odd) -> list[bytes]:
            spoilt = (name, program) == ("beta", "agent")
            documents = [odd] if spoilt else attacked.honest("serving", name, program, request, False)
            return [json.dumps(each).encode() for each in documents]

        code, output = attacked.command(["models", "INVENTORY", "--prune", "--yes"], answer)
        assert (code, attacked.internal) == (1, []), odd
        assert "beta sent a malformed answer to prune" in output, output


@pytest.mark.parametrize(("words", "state"), [(words, state) for words, state, _ in SUBJECTS])
def test_honest_answers_reach_the_end(attacked: Any, monkeypatch: pytest.MonkeyPatch, words: str, state: str) -> None:
    """Otherwise the tests above would not reach the code they test. No time limit applies on a busy machine."""
    for name, seconds in fleet.LIMITS.items():
        monkeypatch.setattr(f"sparkcluster.{name}", 600 * seconds)
    monkeypatch.setattr(fleet, "WATCHED_S", 600)
    found, output = attacked.attack(words.split(), state, "nothing", 0)
    assert (found, attacked.internal) == (0, []), output
