"""Whatever shape the answer of a node has, a command ends as its own outcome: no bug, no hang, the others served."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .conftest import cases, limited

CRASHED = re.compile(
    r"internal error|Traceback|\b(Type|Key|Attribute|Index|Recursion|Overflow|Assertion|Unicode\w+|Validation|Value)Error\b"
)
# Command, state of the cluster, and the program whose answer is spoilt.
SUBJECTS = {
    "preflight probe": ("preflight INVENTORY", "empty", "probe"),
    "preflight probe json": ("preflight INVENTORY --json", "serving", "probe"),
    "preflight image": ("preflight INVENTORY", "bare", "image"),
    "preflight reach": ("preflight INVENTORY", "empty", "reach"),
    "preflight hashes": ("preflight INVENTORY --hash", "empty", "relay"),
    "preflight measure": ("preflight INVENTORY --deep", "empty", "measure"),
    "preflight lease": ("preflight INVENTORY --deep", "empty", "lease"),
    "plan probe": ("plan INVENTORY", "serving", "probe"),
    "plan image": ("plan INVENTORY --json", "bare", "image"),
    "status probe": ("status INVENTORY", "serving", "probe"),
    "status ask": ("status INVENTORY", "serving", "ask"),
    "ask probe": ("ask INVENTORY Hello", "serving", "probe"),
    "ask ask": ("ask INVENTORY Hello --json", "serving", "ask"),
    "releases probe": ("releases INVENTORY", "serving", "probe"),
    "releases records": ("releases INVENTORY", "serving", "records"),
    "down probe": ("down INVENTORY", "serving", "probe"),
    "down lease": ("down INVENTORY", "serving", "lease"),
    "down agent": ("down INVENTORY", "serving", "agent"),
    "down memory": ("down INVENTORY", "serving", "memory"),
    "stage probe": ("stage INVENTORY", "bare", "probe"),
    "stage image": ("stage INVENTORY", "bare", "image"),
    "stage lease": ("stage INVENTORY", "bare", "lease"),
    "stage relay": ("stage INVENTORY", "bare", "relay"),
    "logs probe": ("logs INVENTORY", "serving", "probe"),
    "logs watch": ("logs INVENTORY", "serving", "watch"),
    "up probe": ("up INVENTORY", "serving", "probe"),
    "up probe empty": ("up INVENTORY --json", "empty", "probe"),
    "up probe started": ("up INVENTORY", "started", "probe"),
    "up ask": ("up INVENTORY", "serving", "ask"),
    "up watch": ("up INVENTORY", "started", "watch"),
    "up agent": ("up INVENTORY", "empty", "agent"),
    "up lease": ("up INVENTORY", "empty", "lease"),
    "up observe": ("up INVENTORY", "started", "observe"),
    "upgrade probe": ("upgrade INVENTORY --playbook other --min-speed 0", "serving", "probe"),
    "upgrade ask": ("upgrade INVENTORY --playbook other", "serving", "ask"),
    "upgrade records": ("upgrade INVENTORY --playbook other --min-speed 0", "serving", "records"),
    "upgrade container_gpu": ("upgrade INVENTORY --playbook other --min-speed 0", "serving", "container_gpu"),
    "upgrade agent": ("upgrade INVENTORY --playbook other --min-speed 0", "serving", "agent"),
    "resume probe": ("upgrade INVENTORY --resume", "stopped", "probe"),
    "resume records": ("upgrade INVENTORY --resume", "stopped", "records"),
    "rollback records": ("rollback INVENTORY 1", "empty", "records"),
    "up records": ("up INVENTORY", "stopped", "records"),
    "enable probe": ("enable INVENTORY", "serving", "probe"),
    "enable lease": ("enable INVENTORY", "serving", "lease"),
    "enable agent": ("enable INVENTORY", "serving", "agent"),
    "disable probe": ("disable INVENTORY", "serving", "probe"),
    "disable agent": ("disable INVENTORY --json", "serving", "agent"),
    "doctor probe": ("doctor INVENTORY", "serving", "probe"),
    "doctor observe": ("doctor INVENTORY", "started", "observe"),
    "doctor observe json": ("doctor INVENTORY --json", "serving", "observe"),
    "doctor ask": ("doctor INVENTORY", "serving", "ask"),
}


@pytest.mark.parametrize("subject", SUBJECTS)
@cases(12, 450)
@given(seed=st.integers(0, 2**48))
def test_a_command_survives_any_answer(attacked: Any, subject: str, seed: int) -> None:
    words, state, program = SUBJECTS[subject]
    with limited():
        code, output = attacked.attack(words.split(), state, program, seed)
    if attacked.internal:
        raise AssertionError(f"internal error, seed {seed}") from attacked.internal[0]
    assert code in {0, 1, 2, 3, 4, 130}, output
    assert not CRASHED.search(output), output
    if words.startswith("down") and code != 3:
        steps = [
            step
            for name, _, request in attacked.requests
            if name != attacked.hostile
            for step in request.get("steps", ())
        ]
        assert [step["do"] for step in steps] == ["stay-down", "stop-containers", "delete", "delete"], (
            "the honest node was not cleaned"
        )


def test_a_group_that_only_a_rank_names_is_gone_with_it(attacked: Any) -> None:
    """With this seed a rank says that it is of another group, which no longer exists once it is removed."""
    attacked.attack(["up", "INVENTORY"], "started", "probe", 129476)
    assert attacked.internal == []


@pytest.mark.parametrize(
    ("words", "state", "code"),
    [
        ("preflight INVENTORY", "empty", 0), ("preflight INVENTORY --deep --hash", "bare", 0), ("plan INVENTORY", "serving", 0),
        ("status INVENTORY", "serving", 0), ("ask INVENTORY Hello", "serving", 0), ("releases INVENTORY", "serving", 0),
        ("down INVENTORY", "serving", 0), ("stage INVENTORY", "bare", 0), ("logs INVENTORY", "serving", 0),
        ("up INVENTORY", "serving", 0), ("up INVENTORY", "started", 0), ("doctor INVENTORY", "serving", 0),
        ("upgrade INVENTORY", "serving", 0), ("upgrade INVENTORY --resume", "stopped", 0), ("rollback INVENTORY 1", "serving", 0),
        ("enable INVENTORY", "serving", 0), ("disable INVENTORY --json", "serving", 0),
    ],
)  # fmt: skip
def test_honest_answers_reach_the_end(attacked: Any, words: str, state: str, code: int) -> None:
    """Otherwise the tests above would not reach what they are about."""
    found, output = attacked.attack(words.split(), state, "nothing", 0)
    assert (found, attacked.internal) == (code, []), output
