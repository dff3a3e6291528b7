"""The inventories with several models have the verdict stated in docs/models.md and in their comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.cli import budget_view
from sparkcluster.inspect.budget import budget
from sparkcluster.spec.load import load_all

ROOT = Path(__file__).parents[3]
INVENTORIES = ROOT / "inventory"
FITS = {"pair": True, "two-spark": True, "a": False, "b": True, "c": True, "d": False}


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """Use the recorded data of the models."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_every_inventory_with_several_models_has_a_verdict():
    assert {path.stem.removeprefix("models-") for path in INVENTORIES.glob("models-*.yaml")} == FITS.keys()


@pytest.mark.parametrize("name", FITS)
def test_combinations_fit_as_expected(name):
    assert budget(load_all(INVENTORIES / f"models-{name}.yaml")).fits is FITS[name]


def test_behind_a_gateway_models_on_demand_fit_one_at_a_time(capsys):
    found = budget(load_all(INVENTORIES / "gateway-two-spark.yaml"))
    budget_view.show(found)
    assert (found.fits, found.free_bytes("spark-1") > 0) == (True, True)
    assert "  dense                         55.9 GB  on demand, weights 26.4 GB" in capsys.readouterr().out


def test_without_glm_combination_d_fits():
    specs = load_all(INVENTORIES / "models-d.yaml")
    assert budget([spec for spec in specs if spec.model != "glm"]).problems == []


def test_the_page_on_models_shows_the_bars(capsys):
    budget_view.show(budget(load_all(INVENTORIES / "models-two-spark.yaml")))
    assert capsys.readouterr().out in (ROOT / "docs/models.md").read_text()
