"""Preparations by the launcher: the assembler, the carry-over file, the paths."""

import stat
from pathlib import Path

import pytest

from sparkcluster.node import prepare

GOOD = "#!/bin/sh\nexit 0\n"
# The message of CUDA 12.8's ptxas on a GB10.
OLD = "#!/bin/sh\necho \"ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'\" >&2\nexit 1\n"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only CUDA installation of this machine."""
    monkeypatch.setattr(prepare, "CUDA_PTXAS", str(tmp_path / "no-cuda-here" / "ptxas"))
    return program(tmp_path / "cuda" / "bin" / "ptxas", GOOD)


def triton(root: Path, version: str) -> Path:
    folder = root / "triton"
    (folder / "backends" / "nvidia" / "bin").mkdir(parents=True)
    (folder / "__init__.py").write_text(f'"""doc"""\n__version__ = {version!r}\n')
    return folder


@pytest.mark.parametrize(
    ("version", "name"),
    [("3.5.1", "ptxas"), ("3.10.0+git1", "ptxas-blackwell")],
)
def test_the_link_has_the_name_that_triton_uses(tmp_path: Path, cuda: Path, version: str, name: str) -> None:
    folder = triton(tmp_path, version)
    env = {"PATH": str(cuda.parent)}
    prepare.place_ptxas(str(folder), env, in_place=True)
    link = folder / "backends" / "nvidia" / "bin" / name
    assert link.resolve() == cuda
    assert list(link.parent.iterdir()) == [link]
    assert env == {"PATH": str(cuda.parent)}


def test_an_assembler_with_gb10_support_is_unchanged(tmp_path: Path, cuda: Path) -> None:
    folder = triton(tmp_path, "3.6.0")
    own = program(folder / "backends" / "nvidia" / "bin" / "ptxas-blackwell", GOOD)
    said = prepare.place_ptxas(str(folder), {"PATH": str(cuda.parent)}, in_place=True)
    assert "already" in said
    assert not own.is_symlink()


def test_an_assembler_without_gb10_support_is_replaced(tmp_path: Path, cuda: Path) -> None:
    folder = triton(tmp_path, "3.5.0")
    own = program(folder / "backends" / "nvidia" / "bin" / "ptxas", OLD)
    prepare.place_ptxas(str(folder), {"PATH": str(cuda.parent)}, in_place=True)
    assert own.resolve() == cuda


def test_a_missing_assembler_is_reported(tmp_path: Path, cuda: Path) -> None:
    folder = str(triton(tmp_path, "3.6.0"))
    assert prepare.place_ptxas(folder, {"PATH": str(tmp_path)}, in_place=True).startswith("missing: ")
    old = program(tmp_path / "old" / "ptxas", OLD)
    said = prepare.place_ptxas(folder, {"PATH": str(old.parent)}, in_place=True)
    assert "does not support sm_121a either" in said


def test_a_module_is_located_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """triton takes seconds to import and may fail without a driver."""
    package = tmp_path / "sparkfake"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert prepare.module_directory("sparkfake") == str(package)
    assert prepare.module_directory("no_such_module_at_all") is None
    assert prepare.module_directory("sparkfake", "/no/such/python") is None


# ------------------------------------------------------------------------------------------- the model's files


def test_the_link_points_to_the_snapshot_of_a_branch(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--owner--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123abc\n")
    (folder / "snapshots" / "0123abc").mkdir(parents=True)
    (folder / "snapshots" / "0123abc" / "parser.py").write_text("here")
    link = tmp_path / "model"
    said = prepare.link_model({"id": "owner/model", "revision": "main"}, {"HF_HOME": str(tmp_path)}, str(link))
    assert said == f"{link} -> {folder}/snapshots/0123abc"
    assert (link / "parser.py").read_text() == "here"
