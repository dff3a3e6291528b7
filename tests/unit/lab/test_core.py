"""What ``lab`` commands refuse before they touch anything."""

import pytest

from sparkcluster.errors import LabError
from sparkcluster.lab import machine
from sparkcluster.lab.core import Lab


def test_an_unknown_engine_is_refused_before_an_earlier_lab_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(machine, "require", lambda _: None)
    (tmp_path / "lab").mkdir()
    with pytest.raises(LabError, match="unknown engine 'sglang'"):
        Lab.up(engine="sglang")
    assert (tmp_path / "lab").is_dir()


def test_a_lab_that_is_not_up_is_looked_for_among_those_that_are(tmp_path, monkeypatch):
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
