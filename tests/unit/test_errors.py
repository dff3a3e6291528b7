"""Every user-visible error is in one module, with a documented exit code."""

from __future__ import annotations

import re
from pathlib import Path

from sparkcluster import errors, exit_codes
from sparkcluster.errors import SparkclusterError

ROOT = Path(__file__).parents[2]
CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SparkclusterError)]


def test_every_error_is_drawn_in_the_tree_and_has_a_documented_exit_code():
    drawn = set(re.findall(r"^ *[│├└─ ]*(\w+)", errors.__doc__, re.MULTILINE))
    assert {one.__name__ for one in CLASSES} <= drawn
    assert {one.exit_code for one in CLASSES} <= set(exit_codes.MEANINGS)


def test_exit_codes_are_listed_in_the_docs():
    page = (ROOT / "docs/commands.md").read_text()
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"| {code} | {meaning} |" in page
