"""Files of other tools: imported playbooks compared with hand-written ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sparkcluster.errors import SparkclusterError
from sparkcluster.importer import convert
from sparkcluster.spec.document import parse

DATA = Path(__file__).parents[2] / "data/recipes"


def cases(path):
    """The expectations in a file: several for pages and Compose files, by the user's choice."""
    written = yaml.safe_load(path.read_text())
    return written if isinstance(written, list) else [written]


CASES = [
    pytest.param(path, case, id=f"{path.parent.name}/{path.name.removesuffix('.expected.yaml')}-{number}")
    for path in sorted(DATA.glob("*/*.expected.yaml"))
    for number, case in enumerate(cases(path))
]


def text_of(expected):
    """The text next to a file of expectations."""
    stem = expected.name.removesuffix(".expected.yaml")
    (text,) = [path for path in expected.parent.glob(f"{stem}.*") if path != expected]
    return text


def test_every_example_has_an_expected_result():
    files = {path for path in DATA.glob("*/*") if ".expected." not in path.name}
    assert {text_of(path) for path in DATA.glob("*/*.expected.yaml")} == files


@pytest.mark.parametrize(("expected", "case"), CASES)
def test_a_launch_script_becomes_its_playbook(expected, case):
    """The playbook equals the hand-written one, every loss is reported, and nothing else is."""
    path = text_of(expected)
    text, choices = (
        path.read_text(),
        {"defines": case.get("define", case.get("choices", {})), "block": case.get("block")},
    )
    message = case.get("error", case.get("refused"))
    if message is not None:
        with pytest.raises(SparkclusterError) as caught:
            convert(text, path.name, **choices)
        assert message in str(caught.value)
        assert case.get("hint", "") in (caught.value.hint or "")
        assert f"{path.name}:{case['line']}:" in str(caught.value) if "line" in case else caught.value.exit_code == 2
        return
    made = convert(text, path.name, **choices)
    assert made.document == case["playbook"]
    assert parse(made.text, "x").data == case["playbook"]
    untold = [part for part in case["notes"] if not any(part in note for note in made.notes)]
    expected_notes = [*case["notes"], *([] if "image" in case["playbook"] else ["no image: add image: NAME"])]
    unexpected = [note for note in made.notes if not any(part in note for part in expected_notes)]
    assert (untold, unexpected) == ([], [])
    assert convert(text.replace("\n", "\r\n"), path.name, **choices).text == made.text
