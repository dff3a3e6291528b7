"""Playbooks on top of one another: what wins, what adds up, and where a problem is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.errors import UsageError
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
        load.load_playbook(path)
    told = [(str(one), one.hint) for one in getattr(caught.value, "problems", ())]
    return "\n".join(f"{said} | {hint}" for said, hint in told or [(caught.value.message, caught.value.hint)])


def test_the_upper_playbook_wins_key_by_key(folder):
    """A value in args is replaced and not merged; null removes a key; lists are joined without duplicates."""
    mine = load.load_playbook(
        folder(
            "name: mine\nextends: base\nargs: {max-model-len: 8192, speculative-config: {method: eagle}, kv-cache-dtype: null}\n"
            "env: {VLLM_A: null}\nverify: {expect: '7'}\nallow:\n- {code: NET-001, reason: one reason is enough}\n"
            "- {code: NET-002, reason: another good reason}\n"
        )
    )
    assert mine.args == {"max-model-len": 8192, "speculative-config": {"method": "eagle"}}
    assert (mine.verify.expect, mine.verify.max_tokens) == ("7", 1024)
    assert (mine.name, mine.image) == ("mine", "vllm/vllm-openai:v0.20.0")
    assert mine.env == {"VLLM_B": "2"}
    assert [one.code for one in mine.allow] == ["NET-001", "NET-002"]


def test_another_model_replaces_the_whole_model(folder):
    mine = load.load_playbook(folder("name: mine\nextends: base\nmodel: {path: /weights}\n"))
    assert (mine.model.id, mine.model.path, mine.model.revision) == (None, "/weights", "main")
    chosen = folder("name: mine\nextends: other\nmodel: {id: owner/another}\n")
    (chosen.parent / "other.yaml").write_text("name: other\nextends: base\nmodel: {files: ['*.json'], exclude: [x/]}\n")
    assert (load.load_playbook(chosen).model.files, load.load_playbook(chosen).model.exclude) == ([], [])
    later = load.load_playbook(folder("name: mine\nextends: base\nmodel: {revision: def}\n"))
    assert (later.model.id, later.model.revision) == ("owner/model", "def")


def test_an_overlay_is_applied_by_name(folder):
    inventory = folder("cluster: x\nplaybook: base+drafts\nnodes: [{host: a}]\n", "inventory")
    spec = load.load(inventory)
    assert spec.playbook.name == "base-drafts"
    assert spec.playbook.args["speculative-config"] == {"method": "ngram", "prompt_lookup_max": 4}
    assert spec.playbook.args["max-model-len"] == 4096
    assert load.load(inventory, "base").playbook.args["speculative-config"]["method"] == "mtp"
    mine = load.load_playbook(folder("name: mine\nextends: base+drafts\nargs: {max-num-seqs: 2}\n"))
    assert (mine.args["speculative-config"]["method"], mine.args["max-num-seqs"]) == ("ngram", 2)


def test_every_key_keeps_its_file(folder, tmp_path):
    folder("name: mine\nextends: base\nargs: {max-num-seqs: 2}\noverlays: [drafts]\n")
    spec = load.load(folder("cluster: x\nplaybook: mine+drafts\nnodes: [{host: a}]\n", "inventory"))
    assert spec.places["args", "max-num-seqs"] == (str(tmp_path / "mine.yaml"), 3)
    assert spec.places["args", "kv-cache-dtype"] == (str(tmp_path / "base.yaml"), 7)
    assert spec.places["args", "speculative-config"] == (str(tmp_path / "overlays/drafts.yaml"), 3)
    assert spec.places["allow", 0, "code"] == (str(tmp_path / "base.yaml"), 10)


def test_a_problem_is_reported_in_the_file_that_has_it(folder, tmp_path):
    folder(BASE.replace("max_tokens: 1024", "max_tokens: none"), "base")
    assert refused(folder("name: mine\nextends: base\n")).startswith(f"{tmp_path}/base.yaml:11:")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: mine\nextends: bass\n", ["mine.yaml:2:", "no playbook named", "did you mean base?"]),
        ("name: mine\nextends: mine\n", ["no playbook named"]),
        ("name: mine\nextends: ./mine.yaml\n", ["mine.yaml:2:", "mine.yaml extends mine.yaml"]),
        ("extends: base\n", ["mine.yaml:1:", "name: is required"]),
        ("name: mine\nextends: base+ngram\n", ["mine.yaml:2:", "base does not allow", "allowed: drafts"]),
        ("name: mine\nextends: base+../x\n", ["mine.yaml:2:"]),
        ("name: mine\nextends: ./overlays/drafts.yaml\n", ["is an overlay, not a playbook"]),
        ("name: mine\nextends: [base]\n", ["mine.yaml:2:"]),
    ],
)
def test_what_cannot_be_merged_is_an_error(folder, text, words):
    said = refused(folder(text))
    for word in words:
        assert word in said


def test_too_many_levels_are_an_error(folder):
    for level in range(12):
        folder(f"name: p{level}\nextends: p{level + 1}\n", f"p{level}")
    folder(BASE, "p12")
    assert "levels of extends" in refused(folder("name: mine\nextends: p0\n"))
    assert load.load_playbook(folder("name: mine\nextends: p8\n")).args["max-model-len"] == 4096


SECRET = "a line that belongs to the user: [unfinished\n"


@pytest.mark.parametrize(
    "reference", ["/{outside}/x.yaml", "../outside/x.yaml", "sub/../../outside/x", "link.yaml", "x"]
)
def test_extends_stays_inside_of_the_playbooks_directory(folder, tmp_path, reference):
    """By an absolute path, by .., by a link to a file or a directory; nothing of the file is shown."""
    outside, inside = tmp_path / "outside", tmp_path / "recipe"
    outside.mkdir()
    (outside / "x.yaml").write_text(SECRET)
    (inside / "sub").mkdir(parents=True)
    (inside / "link.yaml").symlink_to(outside / "x.yaml")
    (inside / "playbooks").symlink_to(outside)
    path = inside / "mine.yaml"
    path.write_text(f"name: mine\nextends: {reference.format(outside=outside).replace('//', '/')}\n")
    said = refused(path)
    assert f"{path}:2:10: extends: " in said
    assert "is outside of the playbook's directory | copy it to" in said or "no playbook at" in said
    assert "belongs" not in said


def test_an_overlay_that_is_a_link_to_elsewhere_is_not_read(folder, tmp_path):
    (tmp_path / "user.yaml").write_text(SECRET)
    (tmp_path / "recipe" / "overlays").mkdir(parents=True)
    (tmp_path / "recipe" / "overlays" / "drafts.yaml").symlink_to(tmp_path / "user.yaml")
    (tmp_path / "recipe" / "base.yaml").write_text(BASE)
    (tmp_path / "recipe" / "mine.yaml").write_text("name: mine\nextends: base+drafts\n")
    said = refused(tmp_path / "recipe" / "mine.yaml")
    assert "is outside of the playbook's directory" in said
    assert "belongs" not in said


def test_a_home_directory_in_extends_is_an_error(folder, monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "x.yaml").write_text(SECRET)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "recipe").mkdir()
    for reference, words in (("~/x.yaml", "is outside of"), ("~nobody-at-all/x.yaml", "no playbook at")):
        (tmp_path / "recipe" / "mine.yaml").write_text(f"name: mine\nextends: {reference}\n")
        assert words in refused(tmp_path / "recipe" / "mine.yaml")


def test_a_playbook_below_may_extend_one_above_it_in_the_same_tree(tmp_path):
    """The first playbook's directory counts, not that of each file on the way."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "middle.yaml").write_text("name: middle\nextends: ../base.yaml\nargs: {max-num-seqs: 2}\n")
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "mine.yaml").write_text("name: mine\nextends: parts/middle.yaml\n")
    assert load.load_playbook(tmp_path / "mine.yaml").args["max-model-len"] == 4096
    with pytest.raises(UsageError):
        load.load_playbook(tmp_path / "parts" / "middle.yaml")
