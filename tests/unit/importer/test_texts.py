"""Compose files, units of systemd and Markdown pages: what they start, read off by hand, against what is imported."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sparkcluster.errors import SparkclusterError
from sparkcluster.importer import convert
from sparkcluster.spec.document import parse

DATA = Path(__file__).parents[2] / "data/recipes"
KINDS = ("compose", "markdown", "systemd")
CASES = [
    pytest.param(path, case, id=f"{path.parent.name}/{path.name}-{number}")
    for path in sorted([each for kind in KINDS for each in DATA.glob(f"{kind}/*.expected.yaml")])
    for number, case in enumerate(yaml.safe_load(path.read_text()))
]


def text_of(expected):
    """The text beside a file of expectations."""
    stem = expected.name.removesuffix(".expected.yaml")
    (text,) = [path for path in expected.parent.glob(f"{stem}.*") if path != expected]
    return text


@pytest.mark.parametrize(("expected", "case"), CASES)
def test_what_a_text_starts(expected, case):
    """The playbook is the one written by hand, nothing is lost untold, and nothing is told that is not lost."""
    path = text_of(expected)
    choices = {"defines": case.get("define", {}), "block": case.get("block")}

    if "error" in case:
        with pytest.raises(SparkclusterError) as caught:
            convert(path.read_text(), path.name, **choices)
        assert case["error"] in str(caught.value)
        assert case.get("hint", "") in (caught.value.hint or "")
        assert caught.value.exit_code == 2
        return
    made = convert(path.read_text(), path.name, **choices)
    assert made.document == case["playbook"]
    assert parse(made.text, "x").data == case["playbook"]
    untold = [part for part in case["notes"] if not any(part in note for note in made.notes)]
    unexpected = [note for note in made.notes if not any(part in note for part in case["notes"])]
    assert (untold, unexpected) == ([], [])
    assert convert(path.read_text(), path.name, **choices).text == made.text
    assert convert(path.read_text().replace("\n", "\r\n"), path.name, **choices).text == made.text
