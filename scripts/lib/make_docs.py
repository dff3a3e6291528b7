"""Writes the generated pages below docs/."""

from __future__ import annotations

from pathlib import Path

from docgen import files

DOCS = Path(__file__).parents[2] / "docs"

for name, text in files().items():
    path = DOCS / name
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.resolve().relative_to(DOCS.parent)}")
