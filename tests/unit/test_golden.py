"""The helper for golden files: differences restore the document, and a change fails until it is updated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit import golden

KEYS = st.sampled_from(["name", "argv", "a", "words"])
VALUES = st.none() | st.booleans() | st.integers() | st.text("a1.- \n=+", max_size=6)
DOCUMENTS = st.dictionaries(
    KEYS,
    st.recursive(VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)),
    max_size=4,
)


@given(DOCUMENTS, DOCUMENTS)
def test_base_plus_difference_restores_any_document(base: dict[str, Any], new: dict[str, Any]) -> None:
    stored = yaml.safe_load(yaml.safe_dump(golden.difference(base, new), sort_keys=False))
    assert golden.apply(base, stored) == new


def test_a_changed_value_and_a_changed_base_fail_until_they_are_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(name: str, document: dict[str, Any], update: str = "") -> None:
        monkeypatch.setenv("UPDATE_GOLDEN", update)
        golden.check(tmp_path / name / "plan.yaml", document, base=None if name == "base" else "base")

    with pytest.raises(FileNotFoundError):
        check("base", {})
    check("base", {"a": "x", "argv": ["docker", "run", "--env", "A=1"]}, "1")
    case = {"a": "x", "argv": ["docker", "run", "--env", "A=2"]}
    check("case", case, "1")
    with pytest.raises(AssertionError, match=r"\+a: z"):
        check("case", case | {"a": "z"})
    check("base", {"a": "y", "argv": []}, "1")
    with pytest.raises((AssertionError, ValueError)):
        check("case", case)
    check("case", case, "1")
    assert golden.read(tmp_path / "case" / "plan.yaml") == case
