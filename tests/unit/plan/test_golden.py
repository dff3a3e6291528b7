"""Whole plans as files: ``tests/golden/plan/<case>/{inventory.yaml,playbook.yaml,facts.json} → plan.json``.

``UPDATE_GOLDEN=1`` writes ``plan.json`` anew; read what it changed before committing it. ``options.json`` holds
arguments of ``plan.build`` that differ from a first ``up``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from sparkcluster import plan, topology
from sparkcluster.facts import Facts
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook

GOLDEN = Path(__file__).parents[2] / "golden" / "plan"


def planned(case: Path) -> dict:
    spec = Spec(
        inventory=Inventory.model_validate(yaml.safe_load((case / "inventory.yaml").read_text())),
        playbook=Playbook.model_validate(yaml.safe_load((case / "playbook.yaml").read_text())),
        inventory_path=case / "inventory.yaml",
        playbook_path=case / "playbook.yaml",
    )
    facts = {name: Facts.model_validate(own) for name, own in json.loads((case / "facts.json").read_text()).items()}
    options = case / "options.json"
    arguments = json.loads(options.read_text()) if options.exists() else {}
    return plan.build(spec, facts, topology.build(spec, facts), **{"release": 1, **arguments}).as_json()


@pytest.mark.parametrize("case", sorted(GOLDEN.iterdir()), ids=lambda case: case.name)
def test_the_plan_is_the_one_that_was_read_by_eye(case):
    made = planned(case)
    golden = case / "plan.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")

    assert made == json.loads(golden.read_text())
