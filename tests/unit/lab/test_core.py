"""Refusals of ``lab`` commands before any change."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkcluster.errors import LabError
from sparkcluster.lab import machine
from sparkcluster.lab.core import Lab, down
from sparkcluster.lab.spec import plain
from sparkcluster.lab.state import State


def test_an_unknown_engine_is_refused_before_an_earlier_lab_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(machine, "require", lambda _: None)
    (tmp_path / "lab").mkdir()
    with pytest.raises(LabError, match="unknown engine 'sglang'"):
        Lab.up(engine="sglang")
    assert (tmp_path / "lab").is_dir()


def photos(directory: Path) -> None:
    directory.mkdir()
    (directory / "photo.jpg").write_text("precious")


def with_state(text: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        directory.mkdir()
        (directory / "state.json").write_text(text)

    return make


def lab(directory: Path, name: str = "lab", owner: int = 0) -> None:
    directory.mkdir()
    State("0" * 32, name, directory, 3, "stub", plain(2)).write()
    os.chown(directory / "state.json", owner, owner)


def link(directory: Path) -> None:
    lab(directory.with_name("elsewhere"))
    directory.symlink_to("elsewhere")


@pytest.mark.skipif(os.getuid() != 0, reason="a lab's directory is root's")
@pytest.mark.parametrize(
    "make",
    [
        photos, link, with_state("{}"), with_state("[]"), with_state("[" * 100_000), with_state("\x00"),
        lambda directory: lab(directory, "other"), lambda directory: lab(directory, owner=65534),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [down, lambda: Lab.up(engine="none"), Lab.open])
def test_a_directory_that_is_not_a_lab_is_not_removed(tmp_path, monkeypatch, make, command):
    """Another directory, a link, a copy of another lab's directory, or a user's files."""
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(machine, "require", lambda *_: None)
    make(tmp_path / "lab")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LabError, match=r"lab was not created by `sparkcluster lab up`; not changed"):
        command()
    assert [each for each in sorted(tmp_path.rglob("*")) if not each.name.endswith(".lock")] == before


@pytest.mark.skipif(os.getuid() != 0, reason="a lab's directory is root's")
def test_a_lab_is_removed_with_its_state_last(tmp_path, monkeypatch):
    """After a kill before that, the next `lab down` continues; an empty directory from before the state is no loss."""
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(machine, "require", lambda: None)
    lab(tmp_path / "lab")
    photos(tmp_path / "lab/nodes")
    monkeypatch.setattr(shutil, "rmtree", lambda place, **_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        down()
    monkeypatch.undo()
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(machine, "require", lambda: None)
    assert (tmp_path / "lab/state.json").exists()
    for _ in range(2):
        assert down()
        assert not (tmp_path / "lab").exists()
        (tmp_path / "lab").mkdir()
        (tmp_path / "lab/.state.json.123").write_text("{")


def test_a_lab_that_is_down_is_not_found_among_running_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "require", lambda: None)
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    (tmp_path / "eyes").mkdir()
    (tmp_path / "eyes/state.json").write_text("{}")
    for name, hint in (("eyse", "did you mean --name eyes?"), ("desk", "add --name eyes")):
        with pytest.raises(LabError, match=f"lab {name} is not up") as caught:
            Lab.open(name)
        assert caught.value.hint == hint
    (tmp_path / "eyes/state.json").unlink()
    with pytest.raises(LabError, match="lab desk is not up") as caught:
        Lab.open("desk")
    assert caught.value.hint == "sparkcluster lab up --name desk"
