"""The generated pages of docs/ agree with the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import docgen
import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "text"), docgen.files().items(), ids=list(docgen.files()))
def test_page_is_up_to_date(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (DOCS / name).read_text() == text, "run scripts/make-docs"


def test_the_man_page_has_no_error_of_typesetting() -> None:
    """Of groff, which man uses on Linux; that the page says what the commands take is compared above."""
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    argv = ["groff", "-man", "-Tutf8", "-K", "utf8", "-ww", "-z", str(DOCS / "sparkcluster.1")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_file_and_test_that_the_threats_name_exists() -> None:
    project = DOCS.parent
    named = re.findall(r"`(\w+/[\w/.-]*\.py)(?:::(\w+))?`", (DOCS / "security.md").read_text())
    missing = []
    for file, function in named:
        path = next(
            (base / file for base in (project / "tests", project / "sparkcluster") if (base / file).exists()), None
        )
        if path is None or (function and f"def {function}(" not in path.read_text()):
            missing.append(f"{file}::{function}")
    assert len(named) > 100
    assert missing == []
