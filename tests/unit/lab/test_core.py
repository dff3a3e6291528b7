"""What ``lab up`` refuses before it touches anything, and the Docker engine that builds images."""

import pytest

from sparkcluster.errors import LabError
from sparkcluster.lab import machine, template
from sparkcluster.lab.core import Lab


def test_an_unknown_engine_is_refused_before_an_earlier_lab_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(machine, "require", lambda _: None)
    (tmp_path / "lab").mkdir()
    with pytest.raises(LabError, match="unknown engine 'sglang'"):
        Lab.up(engine="sglang")
    assert (tmp_path / "lab").is_dir()


def test_a_machine_without_docker_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="is not installed") as refusal, template.Docker(tmp_path / "data"):
        pass
    assert refusal.value.hint == "sudo apt-get install -y docker.io"


def test_a_failed_start_leaves_no_directory(tmp_path, monkeypatch):
    made = []
    run = tmp_path / "run"
    monkeypatch.setattr(template.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(template.tempfile, "mkdtemp", lambda **_: run.mkdir() or made.append(run) or str(run))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError), template.Docker(tmp_path / "file" / "data"):
        pass
    assert made == [run]
    assert not run.exists()


def test_a_lab_that_is_not_up_is_looked_for_among_those_that_are(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "require", lambda: None)
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    (tmp_path / "eyes").mkdir()
    (tmp_path / "eyes/state.json").write_text("{}")
    for name, hint in (("eyse", "did you mean --name eyes?"), ("desk", "add --name eyes")):
        with pytest.raises(LabError, match=f"no lab {name} is up") as caught:
            Lab.open(name)
        assert caught.value.hint == hint
    (tmp_path / "eyes/state.json").unlink()
    with pytest.raises(LabError, match="no lab desk is up") as caught:
        Lab.open("desk")
    assert caught.value.hint == "sparkcluster lab up --name desk"
