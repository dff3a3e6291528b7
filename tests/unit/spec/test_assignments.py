"""``--set KEY=VALUE``: its changes of a playbook, and errors for invalid keys and values."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.inspect.selection import flags
from sparkcluster.spec import library, load
from sparkcluster.spec.assignments import Assignments, read

PLAYBOOK = """\
name: base
model: {id: owner/model, revision: abc, files: ["*.json"]}
image: vllm/vllm-openai:v0.20.0
args:
  max-model-len: 4096
  kv-cache-dtype: fp8
  speculative-config: {method: mtp, num_speculative_tokens: 3}
  hf-overrides.rope_theta: 5
env: {VLLM_A: "1"}
setup: [first]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(PLAYBOOK)
    return tmp_path / "base.yaml"


def with_(path, *texts):
    return load.read_playbook(path, set_=Assignments([read(text) for text in texts]))[0]


def test_setting_a_key_of_a_section_keeps_the_others_and_null_removes_one(path):
    found = with_(
        path, "args.max-model-len=1", "args.max-model-len=65536", "args.speculative-config.num_speculative_tokens=2",
        "args.hf-overrides.rope_theta=7", "args.kv-cache-dtype=null", "env.VLLM_B=x=y", "env.NOT_THERE=null",
        "verify.max_tokens=1024", "request.chat_template_kwargs.a=no",
    )  # fmt: skip
    assert found.args == {
        "max-model-len": 65536,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
        "hf-overrides.rope_theta": 7,
    }
    assert found.env == {"VLLM_A": "1", "VLLM_B": "x=y"}
    assert (found.verify.max_tokens, found.request.chat_template_kwargs) == (1024, {"a": False})


def test_lists_and_mappings_are_replaced_and_a_multi_line_text_is_taken_completely(path):
    found = with_(
        path, "setup=[second, 'third: #']", "args.speculative-config={method: ngram}", "description=a: b # c",
        'env.VLLM_C="1"', 'goal="memory"',
    )  # fmt: skip
    assert found.setup == ["second", "third: #"]
    assert found.args["speculative-config"] == {"method": "ngram"}
    assert (found.description, found.env["VLLM_C"], found.goal) == ("a: b # c", "1", "memory")


def test_another_model_keeps_nothing_of_the_previous_one(path):
    model = with_(path, "model.path=/weights").model
    assert (model.id, model.path, model.revision, model.files) == (None, "/weights", "main", [])


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("args.max-model-len", "--set args.max-model-len has no value", "to remove the key"),
        ("args..x=1", "--set args..x is not a playbook key", "args.max-model-len"),
        (
            "args.max-model-len.x=1",
            "args.max-model-len is not a mapping",
            "set the complete value of args.max-model-len",
        ),
        ("args.x=010", "is ambiguous: YAML parsers disagree about numbers with a leading 0", "quote it"),
        ("args.x=[1", "--set args.x: args.x: not valid YAML", "and close quotes"),
        ("env.API KEY=hunter2", "is not a playbook key", ""),
        ("\0=1", "--set \\x00 is not a playbook key", ""),
        ("description=\x1b[2J", "contains U+001B control character", ""),
        ("name=x", "--set name cannot be set", "extends"),
        ("ready_timeout_s=soon", '--set ready_timeout_s: ready_timeout_s: "soon" is not a number', ""),
        (
            "max-model-len=1",
            "--set max-model-len: unknown playbook key max-model-len",
            "did you mean --set args.max-model-len=1?",
        ),
    ],
)
def test_an_unsupported_key_is_an_error_with_the_command_to_type(path, text, said, hint):
    with pytest.raises(UsageError) as caught:
        with_(path, text)
    assert said in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert ":0" not in str(caught.value), "a flag has no line"
    assert "hunter2" not in str(caught.value), "it may be a secret"


def test_a_bundled_playbook_with_a_changed_value_is_not_bundled(tmp_path):
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("cluster: c\nnodes: [{name: a, host: 192.0.2.1}]\nplaybook: gpt-oss-20b\n")
    plain = load.load(inventory)
    assert library.all_bundled(plain)
    assert library.all_bundled(load.load(inventory, set_=Assignments([read(f"image={plain.playbook.image}")])))
    other = load.load(inventory, set_=Assignments([read("args.max-model-len=4096")]))
    assert not library.all_bundled(other)
    assert other.places["args", "max-model-len"] == ("--set args.max-model-len", None)


INVENTORY = """\
cluster: c
nodes: [{host: 192.168.1.11}]
playbook: base
image: own/image:1
set:
  args.max-model-len: 8192
  env.VLLM_B: "2"
"""


def test_the_inventory_overrides_the_playbook_and_the_command_line_overrides_both(path):
    file = path.with_name("mine.yaml")
    file.write_text(INVENTORY)
    spec = load.load(file, set_=Assignments([read("args.max-model-len=1")]))
    assert (spec.playbook.image, spec.playbook.env) == ("own/image:1", {"VLLM_A": "1", "VLLM_B": "2"})
    assert (spec.playbook.args["max-model-len"], spec.playbook.args["kv-cache-dtype"]) == (1, "fp8")
    assert spec.places["env", "VLLM_B"] == (str(file), 7)
    assert flags(spec.selected, spec) == ("--set", "args.max-model-len=1")
    other = load.load(file, "base")
    assert (other.playbook.image, flags(other.selected, other)) == ("vllm/vllm-openai:v0.20.0", ("--playbook", "base"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("  name: x", "mine.yaml:8:3: set.name: cannot be set"),
        ("  args.max-model-len.y: 1", "mine.yaml:8:3: args.max-model-len is not a mapping"),
        ("  ready_timeout_s: soon", 'mine.yaml:8:3: ready_timeout_s: "soon" is not a number'),
    ],
)
def test_a_key_that_the_inventory_cannot_set_is_reported_with_its_position(path, line, said, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.with_name("mine.yaml").write_text(f"{INVENTORY}{line}\n")
    with pytest.raises(UsageError) as caught:
        load.load(Path("mine.yaml"))
    assert said in str(caught.value)
