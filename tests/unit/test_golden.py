"""The helper of golden files: differences give back the document, and a change is shown whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit import golden

KEYS = st.sampled_from(["name", "argv", "a", "b/c", "words"])
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text("a1.- \n=+", max_size=6)
)
DOCUMENTS = st.dictionaries(
    KEYS.filter(lambda key: "/" not in key),
    st.recursive(
        VALUES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=4,
)
BASE: dict[str, Any] = {
    "cluster": "atlas",
    "nodes": {
        "alpha": {"env": {"A": "1", "B": None}, "argv": ["docker", "run", "--name", "x-alpha", "--env", "A=1"]},
        "beta": {"env": {"A": "1", "B": None}, "argv": ["docker", "run", "--name", "x-beta", "--env", "A=1"]},
    },
    "links": [{"name": "p0", "mtu": 9000}, {"name": "p1", "mtu": 1500}],
}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kind of documents with ``base`` in it; the builder updates or compares a case on top of that."""

    def check(name: str, document: Any, *, update: bool = False) -> Path:
        path = tmp_path / name / "plan.yaml"
        monkeypatch.setenv("UPDATE_GOLDEN", "1" if update else "")
        golden.check(path, document, base=None if name == "base" else "base")
        return path

    check("base", BASE, update=True)
    return check


def changed(**changes: Any) -> dict[str, Any]:
    return {**BASE, **changes}


@pytest.mark.parametrize(
    "document",
    [
        changed(cluster=None),
        changed(links=[{"name": "p1", "mtu": 1500}]),
        changed(links={"unread": "no such file"}),
        changed(links=[]),
        changed(nodes={}),
        changed(nodes={**BASE["nodes"], "gamma": {"env": {"A": "1"}, "argv": ["docker", "run", "--name", "x-gamma"]}}),
        changed(nodes={"alpha": {"env": {}, "argv": ["docker", "run", "--env", "Z=a b", "--name", "x-alpha"]}}),
        {},
    ],
)
def test_a_case_is_read_back_whole_and_written_the_same_again(case: Any, document: Any) -> None:
    path = case("other", document, update=True)
    assert golden.read(path) == document
    text = path.read_text()
    assert text.startswith("base: base\n")
    assert case("other", document, update=True).read_text() == text
    case("other", document)


@settings(max_examples=25)
@given(DOCUMENTS, DOCUMENTS)
def test_differences_give_back_any_document(base: dict[str, Any], new: dict[str, Any]) -> None:
    stored = golden.yaml.safe_load(golden._text(golden.difference(base, new)))
    assert golden.apply(base, stored) == new


def test_a_member_that_is_like_another_is_stored_by_the_words_that_differ(case: Any) -> None:
    nodes = {
        name: {
            "argv": ["docker", "run", "--name", f"x-{name}", *(f"--env=A{each}" for each in range(30))],
            "node": name,
        }
        for name in ("alpha", "beta", "gamma")
    }
    case("base", {"nodes": {"alpha": nodes["alpha"]}}, update=True)
    nodes["gamma"]["argv"][-1] = "--env=B"
    text = case("other", {"nodes": nodes}, update=True).read_text()
    assert text == (
        "base: base\n"
        "like:\n"
        "  nodes/beta:\n"
        "    member: alpha\n"
        "    replace: {alpha: beta}\n"
        "  nodes/gamma:\n"
        "    member: beta\n"
        "    replace: {beta: gamma}\n"
        "    lines:\n"
        "      argv: |-\n"
        "        - --env=A29\n"
        "        + --env=B\n"
    )


def test_a_value_that_changed_fails_and_is_shown_in_the_whole_document(case: Any) -> None:
    case("other", changed(cluster="quad"), update=True)
    with pytest.raises(AssertionError) as failure:
        case("other", changed(cluster="wrong"))
    lines = str(failure.value).splitlines()
    assert "-cluster: quad" in lines
    assert "+cluster: wrong" in lines
    assert "    - --name x-beta" in lines
    assert lines[-1] == "hint: UPDATE_GOLDEN=1 writes what was made"


@pytest.mark.parametrize("document", [changed(cluster=""), changed(links=BASE["links"][::-1]), changed(more=None), {}])
def test_any_other_document_fails(case: Any, document: Any) -> None:
    case("other", BASE, update=True)
    with pytest.raises(AssertionError, match="differences:"):
        case("other", document)


def test_a_case_without_its_file_fails_until_it_is_updated(case: Any) -> None:
    with pytest.raises(FileNotFoundError):
        case("new", BASE)


def test_a_base_that_changed_changes_its_cases_until_they_are_updated(case: Any) -> None:
    document = changed(links=[])
    path = case("other", document, update=True)
    case("base", changed(cluster="quad"), update=True)
    with pytest.raises(AssertionError, match="-cluster: quad"):
        case("other", document)
    case("other", document, update=True)
    assert golden.read(path) == document


def test_a_text_is_compared_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "drawing.txt"
    monkeypatch.setenv("UPDATE_GOLDEN", "1")
    golden.check_text(path, "one\ntwo\n")
    monkeypatch.delenv("UPDATE_GOLDEN")
    golden.check_text(path, "one\ntwo\n")
    with pytest.raises(AssertionError, match="\\+three"):
        golden.check_text(path, "one\nthree\n")
