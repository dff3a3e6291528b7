"""The steps of setup, where checks and docs name them."""

from __future__ import annotations

import re
from pathlib import Path

from sparkcluster.checks import pages
from sparkcluster.setup.steps import BY_NAME, STEPS, selected

DOCS = Path(__file__).parents[3] / "docs"


def test_every_step_that_a_check_names_exists() -> None:
    named = {page.step for page in pages.pages().values() if page.step}
    assert named <= set(BY_NAME)
    assert {"netplan", "perftest", "nvidia-runtime", "hf-cache", "clock"} <= named


def test_the_page_lists_the_steps_in_words_of_their_own() -> None:
    table = re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "setup.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(BY_NAME)


def test_options_are_left_out_unless_they_are_asked_for() -> None:
    options = {step.name for step in STEPS if step.option}
    assert options == {"headless", "hold"}
    assert {step.name for step in selected(None)} == set(BY_NAME) - options
    assert {step.name for step in selected(None, ["hold"])} == set(BY_NAME) - {"headless"}
    assert [step.name for step in selected(["headless"])] == ["headless"]
