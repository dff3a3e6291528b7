"""The generated pages of docs/ agree with the code."""

from __future__ import annotations

from pathlib import Path

import docgen
import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "text"), docgen.files().items(), ids=list(docgen.files()))
def test_page_is_up_to_date(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (DOCS / name).read_text() == text, "run scripts/make-docs"
