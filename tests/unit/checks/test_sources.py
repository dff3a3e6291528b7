"""``docs/sources.md`` names checks, playbooks and overlays: every one of them is there."""

from __future__ import annotations

import re
from pathlib import Path

from sparkcluster.checks.registry import CATALOGUE
from sparkcluster.spec import library

PAGE = (Path(__file__).parents[3] / "docs" / "sources.md").read_text(encoding="utf-8")


def test_every_code_exists():
    named = set(re.findall(r"\b(?:SM121|NET|HOST|IMG|MDL|RUN)-\d{3}\b", PAGE))
    assert named - set(CATALOGUE) == set()


def test_every_playbook_and_overlay_has_a_place_in_the_map():
    quoted = set(re.findall(r"`([^`]+)`", PAGE))
    assert set(library.names()) - quoted == {"tiny-llama-cpu"}
    assert set(library.overlays()) - quoted == set()
    for line in re.findall(r"playbooks? ((?:`[^`]+`(?:, )?)+)", PAGE):
        assert set(re.findall(r"`([^`]+)`", line)) <= set(library.names())


def test_every_rule_has_its_source_in_the_map():
    rules = {code for code in CATALOGUE if code.startswith("SM121-")}
    named = set(re.findall(r"SM121-\d{3}", PAGE))
    elsewhere = {
        code for code in rules - named if "vlaicu.io" in CATALOGUE[code].source or "conselara" in CATALOGUE[code].source
    }
    assert elsewhere == set(), "these cite one of the guides, and the map does not say where"
