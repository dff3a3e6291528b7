"""Saves the current selection in the inventory, so that the next ``up`` starts the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkcluster.setup import existing
from sparkcluster.setup.inventory_file import GONE, with_values
from sparkcluster.spec import models
from sparkcluster.spec.document import KeyPath

_OWN = {"playbook", "image"}
"""Keys of a selection that are not under ``set`` in the inventory."""


def select(path: Path, selection: Mapping[str, Any], *, model: str = "", dry_run: bool = False) -> str:
    """Write ``selection`` (``spec.assignments``) into the inventory or its entry ``model``; returns the model's name.

    A model that is named by its playbook gets an explicit name if its records have that name.

    Raises:
        UsageError, SpecError: it cannot be read or written, or other lines would have to be rewritten.
    """
    before = existing.read(path)
    spec, whole = existing.check(path, before, model or None), existing.check(path, before)
    wanted = {**dict.fromkeys(spec.inventory.selected, GONE), **selection}
    values: dict[KeyPath, Any] = {
        (key,) if key in _OWN else ("set", key): value
        for key, value in wanted.items()
        if key in _OWN or selection.keys() - _OWN
    }
    if not selection.keys() - _OWN:
        values["set",] = GONE
    if model:
        at = models.named(whole.inventory, model)
        if whole.inventory.models[at].name is None and spec.inventory.cluster != whole.inventory.cluster:
            values["name",] = model
        values = {("models", at, *key): value for key, value in values.items()}
    after = with_values(before, str(path), values)
    written = existing.check(path, after).inventory
    if not dry_run:
        existing.replace(path, after)
    return models.of(written)[at].name if model else ""
