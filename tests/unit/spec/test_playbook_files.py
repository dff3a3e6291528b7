"""``mounts`` of playbook files: which files are read, shown and asked about."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from sparkcluster.errors import SpecError
from sparkcluster.release.rollback_target import origin_of, spec_of
from sparkcluster.spec import powers
from sparkcluster.spec.load import load
from sparkcluster.spec.playbook_files import NotUsable, read


@pytest.fixture
def here(tmp_path):
    """A playbook with a plugin next to it, in a directory, and a parser in a file."""
    (tmp_path / "plugin/sub").mkdir(parents=True)
    (tmp_path / "plugin/a.py").write_text("a")
    (tmp_path / "plugin/sub/b.py").write_text("b")
    (tmp_path / "plugin/.git").write_text("hidden")
    (tmp_path / "parser.py").write_text("p")
    (tmp_path / "playbook.yaml").write_text(
        "name: mine\nmodel: {id: Qwen/Qwen3-8B}\nimage: vllm/vllm-openai:v0.18.0\nmounts:\n"
        "  - {source: ./plugin, target: /opt/plugin}\n  - {source: ./parser.py, target: /opt/parser.py}\n"
    )
    (tmp_path / "inventory.yaml").write_text(
        "cluster: atlas\nnodes: [{name: a, host: spark-a}]\nplaybook: ./playbook.yaml\n"
    )
    return tmp_path


def test_files_next_to_a_playbook_are_identified_by_content(here):
    spec = load(here / "inventory.yaml")
    found = spec.files["./plugin"]
    assert [member.path for member in found.members] == ["plugin/a.py", "plugin/sub/b.py"]
    (here / "plugin/a.py").write_text("other")
    other = load(here / "inventory.yaml")
    assert other.files["./plugin"].mark != found.mark
    assert other.files["./parser.py"] == spec.files["./parser.py"]
    (here / "parser.py").unlink()
    assert set(load(here / "inventory.yaml", starts=False).files) == {"./plugin"}  # stopping ranks needs no file


def test_playbook_files_need_consent_and_also_after_a_change(here):
    spec = load(here / "inventory.yaml")
    shown = powers.lines(spec.playbook, spec.inventory)
    assert "  file       ./plugin -> /opt/plugin" in shown
    assert not [line for line in shown if "needs this in the inventory" in line]
    (here / "parser.py").write_text("other")
    assert powers.digest(load(here / "inventory.yaml")) != powers.digest(spec)
    assert powers.digest(dataclasses.replace(spec, files={})) != powers.digest(spec)


def test_files_that_are_not_copied_to_nodes(here):
    (here.parent / "secret").write_text("key")
    (here / "out").symlink_to(here.parent / "secret")
    (here / "inner").mkdir()
    (here / "inner/x").symlink_to(here / "parser.py")
    (here / ".key").write_text("key")
    (here / "innocent").symlink_to(here / ".key")
    (here / "large").touch()
    os.truncate(here / "large", 1 << 30)
    for source, why in {
        "./../secret": "is outside",
        "./out": "is outside",
        "./inner": "inner/x is a link to outside",
        "./innocent": "is a hidden file",
        "./nothing": "does not exist",
        "./large": "weights are copied as a model",
    }.items():
        with pytest.raises(NotUsable, match=why):
            read(source, here / "playbook.yaml")


def test_a_mistake_is_reported_with_its_line(here):
    """A missing file, and a file that the container may write."""
    name = "playbook.yaml"
    text = (here / name).read_text()
    (here / name).write_text(text.replace("/opt/plugin}", "/opt/plugin, read_only: false}"))
    (here / "parser.py").unlink()
    with pytest.raises(SpecError) as caught:
        load(here / "inventory.yaml")
    assert [(Path(each.file).name, each.line) for each in caught.value.problems] == [(name, 5), (name, 6)]


@pytest.fixture
def mod(here):
    """The same with an image built from ``mod``; ``write`` changes its files, and returns the loaded spec."""
    (here / "mod").mkdir()
    (here / "mod/Dockerfile").write_text("ARG BASE\nFROM $BASE\n")
    with (here / "inventory.yaml").open("a") as inventory:
        inventory.write("permit: {builds: [./mod]}\n")

    def write(keys="context: ./mod", image="vllm/vllm-openai:v0.18.0"):
        (here / "playbook.yaml").write_text(
            f"name: mine\nmodel: {{id: Qwen/Qwen3-8B}}\nimage: {image}\nbuild: {{{keys}}}\n"
        )
        return load(here / "inventory.yaml")

    return write


def test_a_built_image_is_named_after_its_sources(here, mod):
    spec = mod()
    assert re.fullmatch(r"sparkcluster-build:[0-9a-f]{32}", spec.image)
    assert mod().image == spec.image
    (here / "mod/install.sh").write_text("pip install x")
    names = {mod().image, mod("context: ./mod, script: install.sh").image, mod(image="vllm/vllm-openai:v0.19.0").image}
    assert len({spec.image, *names}) == 4
    assert powers.digest(mod()) != powers.digest(spec)
    # A kept release runs its kept image; commands that stop or observe use the files that can be read.
    assert dataclasses.replace(spec, kept_image_name="sparkcluster/atlas:000003").image == "sparkcluster/atlas:000003"
    (here / "mod/Dockerfile").unlink()
    assert load(here / "inventory.yaml", starts=False).build is None


def test_a_build_context_must_exist_inside_the_playbooks_directory(here, mod):
    (here.parent / "elsewhere").mkdir(exist_ok=True)
    (here.parent / "elsewhere/Dockerfile").write_text("FROM scratch")
    (here / "link").symlink_to(here.parent / "elsewhere")
    for keys, said in (
        ("context: ./no", "does not exist"),
        ("context: ./link", "is outside the playbook's directory"),
        ("context: ./mod/Dockerfile", "has no Dockerfile"),
        ("context: ./mod, dockerfile: Other", "has no Other"),
    ):
        with pytest.raises(SpecError) as caught:
            mod(keys)
        assert [problem for problem in caught.value.problems if said in str(problem)], keys


def test_a_release_and_an_interrupted_switch_record_the_built_image(mod):
    spec = mod()
    known = spec_of(spec, json.loads(json.dumps(origin_of(spec))), "the switch")
    assert known.image == spec.image
    assert known.files == {}
    assert known.build.members == ()
