"""Complete plans as files: ``tests/golden/plan/<case>/{inventory.yaml,playbook.yaml,facts.yaml} → plan.yaml``.

``options.json`` holds arguments of ``plan.build`` that differ from a first ``up``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sparkcluster import plan, topology
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook
from tests.unit import golden

GOLDEN = golden.ROOT / "plan"


def planned(case: Path) -> dict:
    spec = Spec(
        inventory=Inventory.model_validate(yaml.safe_load((case / "inventory.yaml").read_text())),
        playbook=Playbook.model_validate(yaml.safe_load((case / "playbook.yaml").read_text())),
        inventory_path=case / "inventory.yaml",
        playbook_path=case / "playbook.yaml",
    )
    facts = {name: Facts.model_validate(own) for name, own in golden.read(case / "facts.yaml").items()}
    options = case / "options.json"
    arguments = json.loads(options.read_text()) if options.exists() else {}
    return plan.build(spec, facts, topology.build(spec, facts), **{"release": 1, **arguments}).as_json()


@pytest.mark.parametrize("case", golden.cases("plan", "plan.yaml"))
def test_the_plan_matches_its_golden_file(case):
    golden.check(GOLDEN / case / "plan.yaml", planned(GOLDEN / case), base="two-sparks")
