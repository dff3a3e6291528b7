"""Each directory of tests/golden/facts is a Spark and the facts that the probe reads from it.

``UPDATE_GOLDEN=1`` updates ``facts.yaml``. The ``expect`` of ``machine.yaml`` states the point of a case, and is never
updated automatically.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkcluster.facts.parse import parse
from sparkcluster.node import probe
from tests.unit import golden

CASES = golden.cases("facts", "facts.yaml")


def at(document: Any, path: str) -> Any:
    """The value at a dotted path; a name selects the list element with that name."""
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
def test_the_facts_of_a_spark_match_the_golden_file(case: str, make_machine: Any) -> None:
    machine = make_machine(case)
    document = probe.main(machine.case["request"], machine=machine)
    document["probe_s"] = 0.0
    document = json.loads(json.dumps(document))
    facts = parse("spark", document)
    assert facts.hostname == document["hostname"]

    # any other command costs a process per round trip, and has output that varies
    started = {Path(argv[0]).name for argv in machine.ran}
    assert started <= {"nvidia-smi", "modinfo", "journalctl", "systemd-analyze", "python"}

    definition = yaml.safe_load((golden.ROOT / "facts" / case / "machine.yaml").read_text())
    for path, value in definition["expect"].items():
        assert at(document, path) == value, f"{path}: {definition['about']}"

    golden.check(golden.ROOT / "facts" / case / "facts.yaml", document, base="founders-p1")
