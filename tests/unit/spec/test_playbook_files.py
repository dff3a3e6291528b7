"""``mounts`` of what is beside the playbook: what is read, shown and asked about."""

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
    """A playbook with a plugin beside it, in a directory, and a parser in a file."""
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


def test_what_is_beside_a_playbook_is_known_by_its_content(here):
    spec = load(here / "inventory.yaml")
    found = spec.beside["./plugin"]
    assert [member.path for member in found.members] == ["plugin/a.py", "plugin/sub/b.py"]
    (here / "plugin/a.py").write_text("other")
    other = load(here / "inventory.yaml")
    assert other.beside["./plugin"].mark != found.mark
    assert other.beside["./parser.py"] == spec.beside["./parser.py"]
    (here / "parser.py").unlink()
    assert set(load(here / "inventory.yaml", starts=False).beside) == {"./plugin"}  # what stops ranks needs no file


def test_it_is_shown_and_asked_about_and_again_when_it_changed(here):
    spec = load(here / "inventory.yaml")
    shown = powers.lines(spec.playbook, spec.inventory)
    assert "  file       ./plugin -> /opt/plugin" in shown
    assert not [line for line in shown if "needs this in the inventory" in line]
    (here / "parser.py").write_text("other")
    assert powers.digest(load(here / "inventory.yaml")) != powers.digest(spec)
    assert powers.digest(dataclasses.replace(spec, beside={})) != powers.digest(spec)


def test_what_is_not_given_to_nodes(here):
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


def test_a_mistake_is_told_with_its_line(here):
    """A file that is not there, and one that the container may write."""
    name = "playbook.yaml"
    text = (here / name).read_text()
    (here / name).write_text(text.replace("/opt/plugin}", "/opt/plugin, read_only: false}"))
    (here / "parser.py").unlink()
    with pytest.raises(SpecError) as caught:
        load(here / "inventory.yaml")
    assert [(Path(each.file).name, each.line) for each in caught.value.problems] == [(name, 5), (name, 6)]


@pytest.fixture
def mod(here):
    """The same with an image that is built of ``mod``; ``write`` changes what it has, and returns what is read then."""
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


def test_an_image_that_is_built_has_a_name_of_what_it_is_made_of(here, mod):
    spec = mod()
    assert re.fullmatch(r"sparkcluster-build:[0-9a-f]{32}", spec.image)
    assert mod().image == spec.image
    (here / "mod/install.sh").write_text("pip install x")
    names = {mod().image, mod("context: ./mod, script: install.sh").image, mod(image="vllm/vllm-openai:v0.19.0").image}
    assert len({spec.image, *names}) == 4
    assert powers.digest(mod()) != powers.digest(spec)
    # Of a kept release its kept image runs; files are of what can be read, for who stops or looks.
    assert dataclasses.replace(spec, kept_image="sparkcluster/atlas:000003").image == "sparkcluster/atlas:000003"
    (here / "mod/Dockerfile").unlink()
    assert load(here / "inventory.yaml", starts=False).build is None


def test_what_can_be_built_is_inside_of_the_playbooks_directory_and_there(here, mod):
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


def test_a_release_and_a_switch_that_was_cut_off_know_the_image_that_was_built(mod):
    spec = mod()
    known = spec_of(spec, json.loads(json.dumps(origin_of(spec))), "the switch")
    assert known.image == spec.image
    assert known.beside == {}
    assert known.build.members == ()
