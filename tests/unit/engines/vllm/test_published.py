"""No rule reports an error for published recipes that run on Sparks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sparkcluster import checks
from sparkcluster.spec.powers import SECURITY

RECIPES = yaml.safe_load((Path(__file__).parents[3] / "data/published_recipes.yaml").read_text(encoding="utf-8"))


def name(recipe):
    """The end of its URL and its model, to find it in a report."""
    return f"{recipe['url'].rpartition('/')[2]}-{recipe['model'].get('id', 'path').rpartition('/')[2]}"


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_published_recipe_has_no_errors(cluster, recipe):
    playbook = {key: value for key, value in recipe.items() if key != "url"}
    nodes = playbook.setdefault("tensor_parallel", 1) * playbook.get("pipeline_parallel", 1)
    spec = cluster({f"n{number}": f"192.168.86.1{number}" for number in range(nodes)}, playbook=playbook)
    findings = [each for each in checks.check_written(spec) if each.code not in SECURITY]
    assert [(each.code, each.summary) for each in findings if each.severity == "error"] == []
