"""Each directory of tests/golden/facts is one Spark and the facts that the probe makes of it.

``SPARKCLUSTER_UPDATE_GOLDEN=1`` writes ``facts.json`` anew; what a case is about stands in its ``expect``,
which no update touches.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkcluster.facts.parse import parse
from sparkcluster.node import probe

GOLDEN = Path(__file__).parents[2] / "golden" / "facts"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/machine.yaml"))


def at(document: Any, path: str) -> Any:
    """The value at a dotted path; a part that is a name picks the element of a list that has it."""
    for part in path.split("/"):
        if isinstance(document, list):
            document = (
                document[int(part)]
                if part.lstrip("-").isdigit()
                else next(each for each in document if each.get("name", each.get("purpose")) == part)
            )
        else:
            document = document[part]
    return document


@pytest.mark.parametrize("case", CASES)
def test_a_spark_gives_these_facts(case: str, make_machine: Any) -> None:
    machine = make_machine(case)
    document = probe.gather(machine.case["request"], machine)
    document["probe_s"] = 0.0
    document = json.loads(json.dumps(document))
    facts = parse("spark", document)
    assert facts.hostname == document["hostname"]

    # anything else is one more process for every round trip, and one more output that varies
    started = {Path(argv[0]).name for argv in machine.ran}
    assert started <= {"nvidia-smi", "modinfo", "dmesg", "journalctl", "python"}

    own = yaml.safe_load((GOLDEN / case / "machine.yaml").read_text())
    for path, value in own["expect"].items():
        assert at(document, path) == value, f"{path}: {own['about']}"

    kept = GOLDEN / case / "facts.json"
    if os.environ.get("SPARKCLUSTER_UPDATE_GOLDEN"):
        kept.write_text(json.dumps(document, indent=1) + "\n")
    assert document == json.loads(kept.read_text())


def test_there_is_a_case_for_each_known_state() -> None:
    assert len(CASES) >= 43
