"""Valid input, and files derived from the models."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from docgen import spec_pages

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.plan import environment
from sparkcluster.spec import base, library, load, variables
from sparkcluster.spec.document import parse
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook

ROOT = Path(__file__).resolve().parents[3]
INVENTORIES = sorted((ROOT / "inventory").glob("*.yaml"))
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yaml"))


@pytest.mark.parametrize("path", [*INVENTORIES, *PLAYBOOKS], ids=lambda path: path.stem)
def test_examples_load_and_name_their_schema_and_its_keys(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", text.splitlines()[0])
    assert named
    assert (path.parent / named[1]).is_file()
    properties = spec_pages.schema("playbook" if path in PLAYBOOKS else "inventory")["properties"]
    assert set(parse(text, path.name).data) <= set(properties)
    if path in PLAYBOOKS:
        playbook = load.read_playbook(path)[0]
        assert playbook.name == path.stem
        assert playbook.description
    else:
        for spec in load.load_all(path):
            assert spec.playbook_path.stem == spec.inventory.playbook


# A correct file has another value for these, or they name a file that must exist.
IN_A_COMMENT = {"ssh.identity", "nodes[].ssh.identity", "runtime.python", "api.key.env"}


def paths(data: Any, prefix: str = "") -> Iterator[str]:
    """Every key below ``data``; keys in a list as ``nodes[].host``."""
    for key, value in data.items():
        yield f"{prefix}{key}"
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from paths(each, f"{prefix}{key}{'[]' if isinstance(value, list) else ''}.")


def test_the_example_has_every_key_of_an_inventory() -> None:
    text = spec_pages.ALL_KEYS.read_text(encoding="utf-8")
    every = [("", Inventory), *((f"{path}.", section) for path, section in spec_pages.sections(Inventory))]
    wanted = {f"{path}{name}" for path, section in every for name in section.model_fields}
    wanted = {path for path in wanted if not path.startswith(("models", "gateway"))}  # they replace others here
    assert wanted - set(paths(parse(text, "all-keys.yaml").data)) == IN_A_COMMENT
    commented = set(re.findall(r"^ +# (\w+): \S", text, re.MULTILINE))
    assert commented == {path.rpartition(".")[2] for path in IN_A_COMMENT}


def test_every_key_has_a_description_and_every_pattern_an_explanation() -> None:
    for kind in ("inventory", "playbook"):
        generated = spec_pages.schema(kind)
        assert generated["additionalProperties"] is False
        for section in [generated, *generated["$defs"].values()]:
            for name, field in section["properties"].items():
                assert field.get("description") or "$ref" in field, f"{section['title']}.{name}"
        for pattern in re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps(generated)):
            assert base.FORMS[json.loads(pattern)]


def test_keys_set_by_the_plan_are_refused_in_playbooks() -> None:
    """Except values that are equal on every node: a playbook may set another value."""
    constants = [node.value for node in ast.walk(ast.parse(inspect.getsource(environment))) if hasattr(node, "value")]
    named = {each for each in constants if isinstance(each, str) and re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", each)}
    assert {name for name in named if variables.refused(name, "vllm") is None} <= {
        "AF_INET", "HF_HUB_OFFLINE", "NCCL_IB_MERGE_NICS", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_SUBNET_AWARE_ROUTING",
        "NCCL_IB_SUBNET_PREFIX_LEN", "NCCL_IB_TIMEOUT", "NCCL_NET_PLUGIN", "TIKTOKEN_ENCODINGS_BASE",
    }  # fmt: skip
    assert len(named) > 15


def write(directory: Path, text: str, name: str = "inventory.yaml") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


INVENTORY = "cluster: x\nplaybook: mine\nnodes: [{host: 10.0.0.1}]\n"
MINE = "name: mine\nmodel: {id: a/b}\nimage: i\n"


def test_playbooks_are_found_in_the_directory_of_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its directory, in playbooks there and next to it; by a path from there; bundled ones last."""
    path = write(tmp_path / "inventory", INVENTORY.replace("mine", "tiny-llama-cpu") + "runtime: {kind: process}\n")
    assert load.load(path).playbook_path == ROOT / "playbooks" / "tiny-llama-cpu.yaml"
    write(tmp_path / "inventory", INVENTORY)
    for where in ("playbooks", "inventory/playbooks", "inventory"):
        found = write(tmp_path / where, MINE, "mine.yml")
        assert load.load(path).playbook_path == found
    monkeypatch.chdir(tmp_path / "playbooks")
    assert load.load(Path("../inventory/inventory.yaml")).playbook_path == Path("../inventory/mine.yml")
    # An inventory with this name is not a playbook.
    same = write(tmp_path / "inventory", INVENTORY, "mine.yaml")
    assert load.load(same).playbook_path == found
    write(tmp_path / "inventory", INVENTORY.replace("mine", "../other/mine.yaml"))
    write(tmp_path / "other", MINE, "mine.yaml")
    assert load.load(path).playbook_path == tmp_path / "inventory" / "../other/mine.yaml"


def test_a_playbook_of_a_flag_is_found_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "inventory", INVENTORY)
    write(tmp_path / "here", MINE.replace("mine", "here"), "mine.yaml")
    monkeypatch.chdir(tmp_path / "here")
    assert load.load(path, "mine").playbook.name == "here"
    assert load.load(path, "./mine.yaml").playbook.name == "here"
    for name in ("mien", "./mien.yaml"):
        with pytest.raises(UsageError, match=r"no (playbook named|file) .*mien") as caught:
            load.load(path, name)
        assert caught.value.hint == "did you mean mine?"


def test_a_playbook_is_found_by_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Playbooks that extend it serve the same model, without naming it."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "inventory", INVENTORY.replace("mine", "Own/Model"))
    found = write(tmp_path / "playbooks", MINE.replace("{id: a/b}", "{id: own/model, revision: main}"), "mine.yaml")
    write(tmp_path / "playbooks", MINE.replace("a/b", "own/model-2") + "# model: {id: own/model}\n", "other.yaml")
    write(tmp_path / "playbooks", "name: more\nextends: mine\n", "more.yaml")
    assert load.load(path).playbook_path == found
    for size in ("20b", "120b"):  # which other engines serve too
        assert load.load(path, f"openai/gpt-oss-{size}").playbook.name == f"gpt-oss-{size}"
    write(tmp_path / "playbooks", MINE.replace("a/b", "own/model"), "twice.yaml")
    for name, words in {
        "own/model": "own/model is the model of mine, twice",
        "Qwen/Qwen3-14B": "Qwen/Qwen3-14B is neither the path nor the model of a playbook",
    }.items():
        with pytest.raises(UsageError, match=words):
            load.load(path, name)


def test_problems_of_both_files_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, INVENTORY + "colour: red\n")
    write(tmp_path, MINE + "colour: red\n", "mine.yaml")
    with pytest.raises(SpecError) as caught:
        load.load(path)
    assert [Path(problem.file).name for problem in caught.value.problems] == ["inventory.yaml", "mine.yaml"]


def test_empty_keys_count_as_absent(tmp_path: Path) -> None:
    path = write(tmp_path, INVENTORY + "api:\nssh:\n  user:\ngroups:\nstate_dir:\n")
    write(tmp_path, MINE + "env:\nargs:\n  max-model-len:\n", "mine.yaml")
    spec = load.load(path)
    assert spec.inventory.api.port == 8000
    assert spec.inventory.state_dir == "~/.local/state/sparkcluster"
    assert spec.playbook.args == {"max-model-len": None}


def test_values_keep_their_yaml_types() -> None:
    text = 'a: [1, -2, 1.5, 1e-5, .5, true, no, ~, "1", x, 2024-01-01, 1.2.3, "on", +7]\nno: 1\n8000: 2\n'
    data = parse(text, "f").data
    assert data["a"] == [1, -2, 1.5, 1e-5, 0.5, True, False, None, "1", "x", "2024-01-01", "1.2.3", "on", 7]
    assert data["no"] == 1, "a key is always text"
    assert data["8000"] == 2


def test_aliases_refer_to_the_last_anchor_of_the_name() -> None:
    assert parse("a: &a {x: 1}\nb: *a\n", "f").data == {"a": {"x": 1}, "b": {"x": 1}}
    assert parse("a: &x [&y 1]\nb: &y 2\nc: *x\nd: *y\n", "f").data["d"] == 2


def test_ssh_of_a_node_overrides_the_inventorys_key_by_key() -> None:
    keys = {"cluster": "x", "playbook": "p", "ssh": {"user": "a", "port": 22}}
    inventory = Inventory.model_validate({**keys, "nodes": [{"host": "h", "ssh": {"port": 2222}}]})
    ssh = inventory.node_ssh(inventory.nodes[0])
    assert (ssh.user, ssh.port) == ("a", 2222)


def test_an_installed_package_contains_its_playbooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "sparkcluster"
    write(package / "bundled" / "playbooks", MINE, "mine.yaml")
    write(tmp_path / "site-packages" / "playbooks", MINE, "somebody-elses.yaml")
    monkeypatch.setattr(library.sparkcluster, "__file__", str(package / "__init__.py"))
    assert library.names() == ["mine"]
    shutil.rmtree(package / "bundled")
    assert library.names() == []


@pytest.mark.parametrize("reference", ["gpt-oss-20b", "gpt-oss-120b+ngram", "somewhere/gpt-oss-20b.yaml"])
def test_a_playbook_is_bundled_if_all_its_parts_are(tmp_path, reference):
    shipped = library.bundled()[0]
    path, overlays = load.named(reference.removeprefix("somewhere/"), [shipped])
    written = load.read_playbook(path, overlays, nodes=1)[0].model_dump(mode="json", exclude_defaults=True)
    assert load.is_shipped(Playbook.model_validate(written), reference, [1])
    for change in ({"setup": ["pip install x"]}, {"env": {"LD_PRELOAD": "/x.so"}}, {"args": {"max-model-len": 7}}):
        assert not load.is_shipped(Playbook.model_validate(written | change), reference, [1])
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump(written))
    assert not load.is_shipped(Playbook.model_validate(written), str(mine), [1])
