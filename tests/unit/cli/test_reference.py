"""The pages of docs that are derived from the code say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.cli import reference

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", ["commands", "checks"])
def test_page_is_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert (DOCS / f"{name}.md").read_text() == getattr(reference, name)(), (
        "run: python -m sparkcluster.cli.reference --write docs/"
    )
