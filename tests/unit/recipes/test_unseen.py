"""Recipes that nobody has seen: any flags of the table with any values render to the same words."""

from __future__ import annotations

import json
import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.engines.vllm import flags
from sparkcluster.recipes import convert
from sparkcluster.spec import Playbook
from sparkcluster.spec.document import parse
from tests.unit.recipes.words import flags_of

WORD = st.text("abcxyzABC019._/:@ '\"$`\\{}[]=,~#;&|<>*?!äß-", min_size=1, max_size=12).filter(
    lambda text: not text.startswith("-") and text.strip() == text
)
NUMBER = st.integers(0, 10**6).map(str)
FRACTION = st.floats(0.01, 1, allow_nan=False).map(lambda number: f"{number:.4g}" if number >= 0.0001 else "0.5")
MAPPING = st.dictionaries(
    st.text("abc_", min_size=1, max_size=5), st.integers(0, 99) | st.booleans() | WORD, max_size=3
)
RESERVED = {"config", "model", "revision", "api-key", "served-model-name", "uds", "hf-token", "headless"}


def values(flag):
    if flag.kind in {"bool", "flag"}:
        return st.just([])
    by_type = {"int": NUMBER, "size": NUMBER, "float": FRACTION, "json": MAPPING.map(json.dumps)}
    value = by_type.get(flag.type, WORD)
    return st.lists(value, min_size=1, max_size=3) if flag.kind == "list" else value.map(lambda text: [text])


@st.composite
def recipes(draw):
    from sparkcluster.engines.vllm import ENGINE
    from sparkcluster.spec.secret_patterns import names_secret

    allowed = [
        flag
        for flag in flags.table().values()
        if flag.name not in RESERVED and flag.name not in ENGINE.arguments and not names_secret(flag.name)
    ]
    chosen = draw(st.lists(st.sampled_from(allowed), max_size=8, unique_by=lambda flag: flag.name))
    out = []
    for flag in chosen:
        given_ = draw(values(flag))
        negated = flag.kind == "bool" and draw(st.booleans())
        name = f"--no-{flag.name}" if negated else f"--{flag.name}"
        single = len(given_) == 1 and draw(st.booleans())
        out.append([f"{name}={given_[0]}"] if single else [name, *given_])
    unseen = draw(st.lists(st.from_regex(r"--zz[a-z]{1,6}-[a-z]{1,6}", fullmatch=True), max_size=2, unique=True))
    return out, unseen


@settings(max_examples=60, deadline=None)
@given(recipes(), st.booleans())
def test_a_recipe_that_nobody_has_seen(made, continued):
    """Any flags with any values: the playbook's arguments render to the same words, and unknown ones are told."""
    from sparkcluster.engines.vllm import command_line

    known, unseen = made
    groups = [*known, *([unknown, "1"] for unknown in unseen)]
    separator = " \\\n    " if continued else " "
    words = [shlex.join(group) for group in groups]
    text = separator.join(["docker run --gpus all vllm/vllm-openai:nightly Qwen/Qwen3-8B", *words])

    imported = convert(text, "x.sh")

    playbook = Playbook.model_validate(parse(imported.text, "x").data)
    expected = flags_of([word for group in groups for word in group])
    got = flags_of(command_line.arguments(playbook))
    assert got == expected
    for unknown in unseen:
        assert any(unknown in note for note in imported.notes)
