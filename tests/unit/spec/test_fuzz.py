"""Whatever a file holds, a user gets problems or a spec: never another exception, and never one without a place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.spec import load

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [
    path.read_text("utf-8") for path in sorted([*ROOT.glob("inventory/*.yaml"), *ROOT.glob("playbooks/**/*.yaml")])
]
DATA = [yaml.safe_load(text) for text in TEXTS]
UNTIMED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=UNTIMED)


def either(path: Path, content: bytes) -> None:
    """Load as inventory and as playbook."""
    path.write_bytes(content)
    for read in (load.load, load.load_playbook):
        try:
            read(path)
        except SpecError as error:
            for problem in error.problems:
                assert min(problem.line, problem.column) >= 1
                one_line(f"{problem} {problem.hint}")
        except UsageError as error:
            one_line(error.message)


def one_line(text: str) -> None:
    assert text.isprintable(), text
    assert len(text) < 1500, text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inventory.yaml"


@FUZZ
@given(content=st.text(st.sampled_from(list("ab: -[]{}\"'\n\t#&*!|>%@`,?0~<.\\é\x85\u2028")), max_size=120))
def test_characters_that_mean_something(path: Path, content: str) -> None:
    either(path, content.encode())


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.dates(),
    st.binary(max_size=5),
    st.sampled_from(["auto", "127.0.0.1", "a; rm -rf /", "~/x", "/", "hf_x", "1.10", "22:22", "::", "a/b"]),
)
names = st.one_of(
    st.sampled_from(
        sorted({key for one in DATA for key in one} | {"host", "name", "id", "path", "port", "key", "rails"})
    ),
    st.text(max_size=8),
    st.integers(),
    st.booleans(),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=12,
)


@FUZZ
@given(data=st.dictionaries(names, values, max_size=8))
def test_structures(path: Path, data: object) -> None:
    either(path, yaml.dump(data, allow_unicode=True).encode("utf-8", "surrogatepass"))


@FUZZ
@given(data=st.data())
def test_one_value_of_an_example_replaced(path: Path, data: st.DataObject) -> None:
    document = yaml.safe_load(data.draw(st.sampled_from(TEXTS)))
    at = document
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        inner = at[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        at = inner
    at[key] = data.draw(values)
    either(path, yaml.dump(document, allow_unicode=True).encode("utf-8", "surrogatepass"))
