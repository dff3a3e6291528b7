"""Fetching Ray for an image's Python, and packing it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from sparkcluster.errors import StageError
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.plan.image import BROUGHT_RAY
from sparkcluster.staging import ray_archive

SPARK = EngineFacts(python="/usr/bin/python3", python_version="3.12.3", platform="manylinux_2_39_aarch64")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ray_archive.shutil, "which", lambda *_, **__: None)
    return tmp_path / "cache"


def distribution(place: Path, name: str, files: dict[str, str]) -> None:
    info = f"{name}-1.0.dist-info"
    for path, text in {**files, f"{info}/METADATA": f"Name: {name}\n"}.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    record = [*files, f"{info}/METADATA", f"{info}/RECORD", "../../bin/tool"]
    (place / info / "RECORD").write_text("".join(f"{path},sha256=x,1\n" for path in record))


def ignored(_text: str) -> None: ...


def fetch(argv, **_options) -> subprocess.CompletedProcess:
    """The files that pip would leave in its target directory."""
    place = Path(argv[argv.index("--target") + 1])
    distribution(place, "ray", {"ray/__init__.py": "", "ray/core/raylet": "binary"})
    (place / "ray/core/raylet").chmod(0o755)
    distribution(place, "msgpack", {"msgpack/__init__.py": ""})
    distribution(place, "typing_extensions", {"typing_extensions.py": ""})
    (place / "bin").mkdir()
    (place / "bin" / "ray").write_text("#!/no/such/python\n")
    return subprocess.CompletedProcess(argv, 0, b"", b"")


def names(archive: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive) as packed:
        return {member.name.removeprefix("./"): member for member in packed}


def test_ray_is_separate_from_its_dependencies_and_its_programs_are_executable(monkeypatch):
    monkeypatch.setattr(subprocess, "run", fetch)
    parcel = ray_archive.get_archive(SPARK, ignored)
    found = names(parcel.path)
    tops = {name.split("/")[0] for name in found} - {"."}
    assert tops == {"bin", "needs", "needs.json", "ray", "ray-1.0.dist-info"}
    assert "needs/msgpack/__init__.py" in found
    assert "needs/typing_extensions.py" in found
    assert found["ray/core/raylet"].mode == 0o755
    assert found["ray/__init__.py"].mode == 0o644
    with tarfile.open(parcel.path) as packed:
        needs = json.load(packed.extractfile("./needs.json"))
        script = packed.extractfile("./bin/ray").read()
    assert needs == {
        "msgpack": ["msgpack", "msgpack-1.0.dist-info"],
        "typing_extensions": ["typing_extensions-1.0.dist-info", "typing_extensions.py"],
    }
    assert script.startswith(b"#!/usr/bin/env python3\n")


@pytest.mark.parametrize("change", [None, "content", "pins"])
def test_an_archive_that_differs_from_the_packed_one_is_refetched(cache, monkeypatch, tmp_path, change):
    monkeypatch.setattr(subprocess, "run", fetch)
    first = ray_archive.get_archive(SPARK, ignored)
    if change == "content":
        with first.path.open("r+b") as file:
            file.seek(100)
            file.write(b"other code")
    elif change == "pins":
        (tmp_path / "pins.txt").write_text("ray==1.0 --hash=sha256:00\n")
        monkeypatch.setattr(ray_archive, "PINS", tmp_path / "pins.txt")
    fetched = []

    def again(argv, **_options):
        fetched.append(argv)
        return fetch(argv)

    monkeypatch.setattr(subprocess, "run", again)
    found = ray_archive.get_archive(SPARK, ignored)
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == found.sha256
    assert ray_archive.get_archive(SPARK, ignored) == found
    assert len(fetched) == (1 if change else 0)
    assert list((cache / "ray").iterdir()) == [found.path]


def test_all_downloads_are_pinned_by_hash():
    lines = ray_archive.PINS.read_text().splitlines()
    assert f"ray=={BROUGHT_RAY} \\" in lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+ \\| {4}--hash=sha256:[0-9a-f]{64}( \\)?", line), line


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_package_that_differs_from_the_pinned_hash_is_refused(tool, monkeypatch, tmp_path, cache):
    """The index, a mirror or a proxy serves a wheel of the same name and version with other code.

    An unpinned dependency of a package is not fetched either.
    """
    if tool == "uv":
        monkeypatch.setattr(ray_archive.shutil, "which", lambda *_, **__: find_uv_bin())
    served = tmp_path / "served"
    served.mkdir()
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(served)), ("NO_CACHE", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.setenv(f"UV_{name}", value)
    wheel(served, "needed", "3", "SAFE = 1\n")
    ray = wheel(served, "ray", BROUGHT_RAY, "SAFE = 1\n", needs="needed")
    monkeypatch.setattr(ray_archive, "PINS", tmp_path / "pins.txt")
    ray_archive.PINS.write_text(f"{ray}needed==3 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(StageError, match=r"(?i)hash"):
        ray_archive.get_archive(SPARK, ignored)
    assert list(cache.glob("ray/*")) == []
    ray_archive.PINS.write_text(ray)
    found = names(ray_archive.get_archive(SPARK, ignored).path)
    assert "ray/__init__.py" in found
    assert "needs/needed/__init__.py" not in found


def wheel(folder: Path, name: str, version: str, code: str, needs: str = "") -> str:
    """Put a wheel into ``folder``; returns the line that pins it."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for member, text in files.items():
            packed.writestr(member, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def test_a_failed_fetch_leaves_nothing_and_reports_the_cause(cache, monkeypatch):
    said = b"WARNING: Retrying\nERROR: Could not find a version of ray\nERROR: No matching distribution\n"

    def fails(argv, **_options):
        Path(argv[argv.index("--target") + 1]).mkdir()
        return subprocess.CompletedProcess(argv, 1, b"", said)

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(
        StageError, match=r"Python 3\.12 on .*aarch64 cannot be fetched: Could not find a ver"
    ) as caught:
        ray_archive.get_archive(SPARK, ignored)
    assert caught.value.node is None
    assert "executor: native" in caught.value.hint
    assert list(cache.glob("ray/*")) == []


def test_pip_gets_the_python_and_platforms_of_the_image():
    argv = ray_archive.fetch_command(SPARK, Path("/t"))
    assert argv[:4] == [sys.executable, "-m", "pip", "install"]
    assert {"--require-hashes", "--no-deps", str(ray_archive.PINS), "--python-version=3.12", "--abi=cp312"} < {*argv}
    platforms = [word for word in argv if word.startswith("--platform=")]
    assert platforms[0] == "--platform=manylinux_2_28_aarch64"
    assert platforms[-2:] == ["--platform=manylinux_2_17_aarch64", "--platform=manylinux2014_aarch64"]


def test_the_launcher_adds_only_dependencies_that_the_image_lacks(tmp_path):
    """pytest is installed and the engine's version stays; msgpack-of-ours is not, and is shown."""
    from sparkcluster.node.prepare import missing_needs, show_needs

    for name in ("pytest", "msgpackofours"):
        (tmp_path / "needs" / name).mkdir(parents=True)
        (tmp_path / "needs" / name / "__init__.py").write_text(f"WHERE = {name!r}\n")
    (tmp_path / "needs.json").write_text(json.dumps({"pytest": ["pytest"], "msgpack-of-ours": ["msgpackofours"]}))
    lacking = missing_needs(str(tmp_path), sys.executable)
    assert lacking == {"msgpack-of-ours": ["msgpackofours"]}
    shown = show_needs(str(tmp_path), lacking, str(tmp_path))
    code = "import msgpackofours, pytest; print(msgpackofours.WHERE, hasattr(pytest, 'WHERE'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": shown}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["msgpackofours", "False"]
