"""Two scripts of a fresh clone at once: ``scripts/lib/setup.sh`` installs once, and the other waits for that.

Python and uv are stubs that leave marks, so that nothing is downloaded; locks and processes are real.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LIB = Path(__file__).resolve().parents[2] / "scripts" / "lib"

# A Python that has what .venv/has lists; making .venv lasts until somebody writes the file go.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv .venv")
    echo venv >>log
    while [ ! -e go ]; do sleep 0.02; done
    mkdir -p .venv/bin && cp python .venv/bin/python && touch .venv/has-pip ;;
  "-c import pip") [ -e .venv/has-pip ] ;;
  "-c import pip, uv") [ -e .venv/has-pip ] && [ -e .venv/has-uv ] ;;
  "-m pip install"*) echo uv >>log; printf '#!/bin/sh\\necho "project $*" >>log\\n' >.venv/bin/uv; chmod +x .venv/bin/uv; touch .venv/has-uv ;;
  *) echo "unexpected: $*" >>log; exit 1 ;;
esac
"""
SCRIPT = (
    "set -euo pipefail; . scripts/lib/setup.sh; base_python=$PWD/python; make_venv; install_project; echo installed"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "scripts" / "lib").mkdir(parents=True)
    for name in ("setup.sh", "uv.txt", "constraints.txt"):
        shutil.copy(LIB / name, tmp_path / "scripts" / "lib" / name)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


class Script:
    """A script in a process group of its own, whose messages go to a file."""

    def __init__(self, clone: Path, name: str) -> None:
        self.messages = clone / f"{name}.txt"
        with self.messages.open("w") as file:
            self.process = subprocess.Popen(
                ["bash", "-c", SCRIPT], cwd=clone, stdout=file, stderr=file, start_new_session=True
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def first(clone: Path) -> Iterator[Script]:
    """A script that is in the middle of making .venv."""
    script = Script(clone, "first")
    appears(clone / "log", "venv")
    yield script
    if script.process.poll() is None:
        script.kill()


def appears(path: Path, text: str) -> None:
    """Wait until the file has the text."""
    end = time.monotonic() + 30
    while not path.is_file() or text not in path.read_text():
        assert time.monotonic() < end, path.read_text() if path.is_file() else f"no {path}"
        time.sleep(0.01)


def test_the_second_waits_and_finds_it_done(clone: Path, first: Script) -> None:
    second = Script(clone, "second")
    appears(second.messages, f"waiting for another installation in {clone}")
    (clone / "go").touch()
    assert (first.process.wait(30), second.process.wait(30)) == (0, 0)
    done = [line.split()[0] for line in (clone / "log").read_text().splitlines()]
    assert done == ["venv", "uv", "project"]
    assert second.messages.read_text().splitlines()[-1] == "installed"


def test_where_the_first_is_killed_the_second_installs(clone: Path, first: Script) -> None:
    second = Script(clone, "second")
    appears(second.messages, "waiting for another installation")
    first.kill()
    (clone / "go").touch()
    assert second.process.wait(30) == 0
    assert (clone / "log").read_text().split()[:3] == ["venv", "venv", "uv"]


def test_what_is_installed_needs_no_lock(clone: Path, first: Script) -> None:
    (clone / "go").touch()
    assert first.process.wait(30) == 0
    (clone / ".venv.lock").unlink()
    assert Script(clone, "later").process.wait(30) == 0
    assert not (clone / ".venv.lock").exists()


def test_an_installation_that_fails_ends_the_script_with_one_line_and_lets_the_next_try(clone: Path) -> None:
    (clone / "go").touch()
    (clone / "python").write_text("#!/bin/sh\necho no space left; exit 1\n")
    failed = Script(clone, "failed")
    assert failed.process.wait(30) == 2
    assert "error: making .venv failed: no space left" in failed.messages.read_text()
    (clone / "python").write_text(PYTHON)
    assert Script(clone, "next").process.wait(30) == 0
