"""The wheel has every file of the package, and works without a checkout or development tools.

Needs the package index that scripts/test installs from. Further Python versions run only with --full.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.spec import library

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv"]
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = [THIS, *(pytest.param(other, marks=pytest.mark.full) for other in ("3.11", "3.12", "3.13") if other != THIS)]

# Every module and the help of every command, except modules of the CPU engine and the gateway, which run in an image,
# and the server of telemetry, which needs an extra.
IMPORT_ALL = """
import importlib, pkgutil, re, sys, sparkcluster
assert "site-packages" in sparkcluster.__file__, sparkcluster.__file__
for _, name, _ in pkgutil.walk_packages(sparkcluster.__path__, "sparkcluster."):
    apart = r"(lab\\.engine|gateway\\.|telemetry\\.(exposition|serve)|__main__|.*\\.__main__)"
    if not re.match(r"sparkcluster\\." + apart, name):
        importlib.import_module(name)
from sparkcluster.cli.commands import COMMANDS
from sparkcluster.cli.parser import parser_of
for name in COMMANDS:
    parser, _ = parser_of(name)
    assert parser.format_help()
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pinned = ["--build-constraint", str(ROOT / "scripts/lib/constraints.txt")]
    run([*UV, "build", "--quiet", "--wheel", *pinned, "--out-dir", str(folder), str(ROOT)], folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(params=VERSIONS, scope="session")
def home(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory, next to which the wheel is installed in ``venv``."""
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    python = interpreter(request.param)
    pinned = ["--constraint", str(ROOT / "scripts/lib/constraints.txt")]
    run([*UV, "venv", "--quiet", "--python", python, str(folder / "venv")], folder)
    installed = str(folder / "venv" / "bin" / "python")
    run([*UV, "pip", "install", "--quiet", "--python", installed, *pinned, str(wheel)], folder)
    (folder / "home").mkdir()
    return folder / "home"


def interpreter(version: str) -> str:
    """A Python of this version: on PATH, from pyenv or uv; skips if there is none."""
    if version == THIS:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = [shutil.which(f"python{version}") or "", *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    managed = subprocess.run(
        [*UV, "python", "find", "--managed-python", "--no-python-downloads", version],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for path in filter(None, [*found, managed.stdout.strip()]):
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return pytest.skip(
        f"there is no Python {version}: apt-get install python{version}-venv, or uv python install {version}"
    )


def run(argv: list[str], folder: Path, code: int = 0, **variables: str) -> str:
    """Output of a command that must exit with ``code``, in an environment without the tests' own variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        argv, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def program(home: Path) -> str:
    return str(home.parent / "venv/bin/sparkcluster")


def sparkcluster(home: Path, *words: str, code: int = 0) -> str:
    return run([program(home), *words], home, code, HOME=str(home), HF_HUB_OFFLINE="1")


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    files = [path for folder in ("sparkcluster", "playbooks") for path in (ROOT / folder).rglob("*") if path.is_file()]
    names_here = (path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts)
    expected = {re.sub("^playbooks/", "sparkcluster/bundled/playbooks/", name) for name in names_here}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not re.match(r"[^/]+\.(dist-info|data)/", name)}
        pages = [name for name in archive.namelist() if name.endswith(".data/data/share/man/man1/sparkcluster.1")]
    assert names == expected
    assert len(pages) == 1


def test_every_module_can_be_imported_and_every_command_has_help(home: Path) -> None:
    run([str(home.parent / "venv/bin/python"), "-c", IMPORT_ALL], home)


def test_commands_that_need_package_files(home: Path) -> None:
    def document(*words: str, code: int = 0) -> Any:
        return json.loads(sparkcluster(home, *words, "--json", code=code))

    assert re.fullmatch(r"sparkcluster \d[\w.]*\n", sparkcluster(home, "--version"))
    shutil.copytree(ROOT / "inventory", home / "inventory", dirs_exist_ok=True)
    assert [each["name"] for each in document("playbooks")["playbooks"]] == library.names()
    assert document("lint", "inventory/two-spark.yaml")["ok"] is True
    assert document("fit", "gpt-oss-120b", "--nodes", "1")["recorded"]
    assert len(document("checks")["checks"]) > 100
    assert "complete -o nospace" in document("completion", "bash")["script"]
    line = "sparkcluster fit gpt-oss"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    offered = run([program(home)], home, **asked, _ARGCOMPLETE_STDOUT_FILENAME="/dev/stdout")
    assert offered.split() == [name for name in library.names() if name.startswith("gpt-oss")]
    # probes this machine with the programs for nodes; a missing engine is an error
    assert "localhost" in document("plan", "inventory/localhost.yaml", code=1)["nodes"]
