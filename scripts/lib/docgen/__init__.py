"""Pages of docs/ that are generated from the code; ``scripts/make-docs`` writes them, and a test compares."""

from __future__ import annotations

from docgen import fit_text, json_schemas, man, reference, spec_pages
from sparkcluster.spec import library


def files() -> dict[str, str]:
    """Every generated file, by its name below ``docs/``."""
    return {
        "commands.md": reference.commands(),
        "checks.md": reference.checks(),
        "sparkcluster.1": man.page(),
        "internals/fit.md": fit_text.page(),
        **spec_pages.files(),
        **json_schemas.files(),
        # What counts as bundled.
        "../sparkcluster/spec/bundled.txt": _listing(),
        "../sparkcluster/cli/words.txt": reference.words(),
        "../sparkcluster/cli/help.txt": reference.help_texts(),
    }


def _listing() -> str:
    """SHA-256 and name of every file that is bundled, as ``sha256sum`` prints them."""
    files = (file for directory in library.bundled() for file in directory.rglob("*.yaml"))
    return "".join(sorted(f"{library.listed(file)}\n" for file in files))
