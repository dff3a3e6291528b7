"""The inventories of several models have the verdict that docs/models.md and their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.spec.load import load_all

INVENTORIES = Path(__file__).parents[3] / "inventory"
FITS = {"pair": True, "two-spark": True, "a": False, "b": True, "c": True, "d": False}

inspect = pytest.importorskip("sparkcluster.inspect.budget")


def test_every_inventory_of_several_models_has_a_verdict():
    assert {path.stem.removeprefix("models-") for path in INVENTORIES.glob("models-*.yaml")} == FITS.keys()


@pytest.mark.parametrize("name", FITS)
def test_what_fits_is_what_the_inventory_says(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert inspect.budget(load_all(INVENTORIES / f"models-{name}.yaml")).fits is FITS[name]


def test_without_glm_combination_d_fits(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    specs = load_all(INVENTORIES / "models-d.yaml")
    assert inspect.budget([spec for spec in specs if spec.model != "glm"]).problems == []
