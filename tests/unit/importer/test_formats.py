"""Recipes of other tools in YAML and JSON, each with what its own runner would start; and what is none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.importer import convert
from sparkcluster.spec import Playbook
from sparkcluster.spec.document import parse

DATA = Path(__file__).parents[2] / "data/recipes"
KINDS = ("eugr", "sparkring", "sparkrun", "vllm-project")
EXPECTED = sorted([each for kind in KINDS for each in DATA.glob(f"{kind}/*.expected.yaml")])


def recipe(expected):
    """The file that ``expected`` is about."""
    stem = expected.name.removesuffix(".expected.yaml")
    (found,) = (
        expected.parent / f"{stem}{suffix}"
        for suffix in (".yaml", ".json")
        if (expected.parent / f"{stem}{suffix}").exists()
    )
    return found


def case(path):
    return f"{path.parent.name}-{path.name.removesuffix('.expected.yaml')}"


def test_every_text_has_an_expectation():
    texts = {
        path for path in (each for kind in KINDS for each in DATA.glob(f"{kind}/*")) if ".expected." not in path.name
    }
    assert {recipe(path) for path in EXPECTED} == texts
    assert len(texts) >= 34


@pytest.mark.parametrize("path", EXPECTED, ids=case)
def test_a_recipe_means_what_its_runner_starts(path):
    expected, file = yaml.safe_load(path.read_text()), recipe(path)
    choices = expected.get("choices", {})
    if "refused" in expected:
        with pytest.raises(SpecError) as caught:
            convert(file.read_text(), file.name, defines=choices)
        (problem,) = caught.value.problems
        assert expected["refused"] in problem.summary
        assert (problem.file, problem.line) == (file.name, expected["line"])
        assert expected.get("hint", "") in (problem.hint or "")
        return
    made = convert(file.read_text(), file.name, defines=choices)
    assert made.document == expected["playbook"]
    assert parse(made.text, "x").data == made.document
    Playbook.model_validate(made.document)
    missing = [part for part in expected["notes"] if sum(part in note for note in made.notes) != 1]
    assert (missing, len(made.notes)) == ([], len(expected["notes"])), made.notes
    assert convert(file.read_text(), file.name, defines=choices).text == made.text


SPARKRUN = 'recipe_version: "2"\nmodel: a/b\nruntime: vllm\ncontainer: a/b:1\n'
VLLM = "model: {model_id: a/b}\nvariants: {default: {precision: bf16}}\ncompatible_strategies: [single_node_tp]\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.yaml", "some: thing\nother: 1\n", "a YAML document of unknown format"),
        ("x", "some: thing\nother: 1\n", "a YAML document of unknown format"),
        ("x", "some:\n  vllm: serve a/b\n", "a YAML document of unknown format"),
        ("x", '{"some": "vllm serve a/b"}', "a JSON document of unknown format"),
        ("x.json", "{}", "a JSON document of unknown format"),
        ("x.sh", "some: thing\nvllm: serve a/b\n", "a YAML document of unknown format"),
        ("x.yaml", "- vllm serve a/b\n", "found a list"),
        ("x.yaml", "vllm serve a/b", "found a single value"),
        ("x.json", "[1, 2", "unclosed"),
        ("x.yaml", "a: 1\n---\nb: 2\n", "second document"),
        ("x.yaml", "# nothing\n", "the file is empty"),
        ("x.yaml", SPARKRUN + "command: [vllm]\n", "command must be text"),
        ("x.yaml", SPARKRUN + "command: vllm serve 'a/b\n", "quote"),
        ("x.yaml", SPARKRUN + "command: trtllm-serve a/b\n", "does not start `vllm serve`"),
        ("x.yaml", SPARKRUN + "command: vllm serve {a}\ndefaults: {a: '{b}', b: '{a}'}\n", "without end"),
        ("x.yaml", SPARKRUN + "command: vllm serve {a}\ndefaults: {a: '{a}{a}'}\n", "without end"),
        ("x.yaml", SPARKRUN + "command: vllm serve {a}\ndefaults: {a: {b: 1}}\n", "a is a mapping where text is filled in"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\ndefaults: [1]\n", "defaults must be a mapping"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\nmin_nodes: two\n", "min_nodes must be a number from 1"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\nmin_nodes: 3\nmax_nodes: 2\n", "at most 2 nodes, but at least 3"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\nmode: many\n", "mode must be auto, solo or cluster"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\npre_exec: [[1]]\n", "pre_exec[0] must be text"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\nmods: {a: 1}\n", "mods must be a list"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\nexecutor_config: {devices: /dev/sda}\n", "control of the node"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\nenv: {1A: x}\n", "1A"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b\nenv: {A: 0777}\n", "is ambiguous"),
        ("x.yaml", SPARKRUN + "<<: {a: 1}\ncommand: vllm serve a/b\n", "merge keys"),
        ("x.yaml", SPARKRUN + "command: !!str vllm serve a/b\n", "tags ('!…') are not supported"),
        ("x.yaml", SPARKRUN + f"metadata: {'[' * 40}{']' * 40}\ncommand: vllm serve a/b\n", "nested deeper than 32"),
        ("x.yaml", SPARKRUN + "command: vllm serve a/b \x07\n", "U+0007"),
        ("x.yaml", SPARKRUN + "".join(f"k{number}: {number}\n" for number in range(60_000)), "more than 20000 values"),
        ("x.yaml", SPARKRUN + f"command: vllm serve {'x' * (1 << 20)}\n", "more than 256 KiB"),
        ("x.yaml", VLLM.replace("model_id: a/b", "model_id: gpt2"), "neither a repository nor a full path"),
        ("x.yaml", VLLM.replace("{default", "{default: {a: 1}, default"), "duplicate key"),
        ("x.yaml", VLLM + "opt_in_features: {a: 1}\n", "opt_in_features must be a list"),
        ("x.yaml", VLLM + "features: {a: {args: [[1]]}}\n", "args must be a list of text"),
        ("x.json", '{"schema": "sparkring-recipe/v9"}', "sparkring-recipe/v9 is not supported"),
        ("x.json", '{"schema": "sparkring-recipe/v1", "runtime": {"final_image": "a/b:1"}}', "repository must be text"),
    ],
)  # fmt: skip
def test_broken_documents_are_refused(name, text, message):
    with pytest.raises(UsageError) as caught:
        convert(text, name)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{name}")


@pytest.mark.parametrize("choice", ["variant=none", "strategy=pd_cluster", "nodes=many", "features=none,flying"])
def test_a_choice_that_there_is_not_is_refused(choice):
    key, _, value = choice.partition("=")
    with pytest.raises(SpecError) as caught:
        convert(VLLM, "x.yaml", defines={key: value})
    assert choice.replace("none,", "") in str(caught.value)


def test_a_page_with_front_matter_is_no_yaml():
    assert convert("---\ntitle: x\nlayout: y\n---\nvllm serve a/b\n", "the text").document["model"] == {"id": "a/b"}
    page = "# x\n\nBefore:\n\n- nothing\n\n```\nvllm serve a/b\n```\n"
    with pytest.raises(UsageError) as caught:
        convert(page.replace("vllm", "trtllm"), "the text")
    assert "unknown format" not in str(caught.value)


def test_an_alias_counts_as_what_it_names():
    text = SPARKRUN + "defaults: {a: &gpu 0.8, b: *gpu}\ncommand: vllm serve a/b --gpu-memory-utilization {b}\n"
    assert convert(text, "x.yaml").document["args"] == {"gpu-memory-utilization": 0.8}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | st.sampled_from(["a/b", "vllm serve a/b", "{model}", "1", "/x", "x=y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    path
    for path in (each for kind in KINDS for each in DATA.glob(f"{kind}/*"))
    if ".expected." not in path.name and "refused" not in path.name
]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_value_of_any_other_type_is_one_error_or_a_playbook(data):
    """One value somewhere in a recipe that is read is replaced by any other."""
    path = data.draw(st.sampled_from(PATHS))
    document = yaml.safe_load(path.read_text().replace("\t", " ").replace("1_000", "1000"))
    choices = yaml.safe_load((path.parent / f"{path.stem}.expected.yaml").read_text()).get("choices", {})
    at = document
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(VALUES)
    try:
        made = convert(json.dumps(document, default=str), "x.json", defines=choices)
    except UsageError:
        return
    Playbook.model_validate(made.document)
