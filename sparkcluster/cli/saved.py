"""What was chosen to serve, written into the inventory: the next ``up`` then finds what serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkcluster.setup import existing
from sparkcluster.setup.inventory_file import GONE, with_values

_OWN = {"playbook", "image"}
"""Keys of a selection that an inventory has outside of ``set``."""


def select(path: Path, selection: Mapping[str, Any], *, dry_run: bool = False) -> None:
    """Write ``selection`` (``spec.assignments``) into the inventory, and change nothing else.

    Raises:
        UsageError, SpecError: it cannot be read or written, or other lines would have to be written anew.
    """
    before = existing.read(path)
    wanted = {**dict.fromkeys(existing.check(path, before).inventory.selected, GONE), **selection}
    values: dict[tuple[str, ...], Any] = {
        (key,) if key in _OWN else ("set", key): value
        for key, value in wanted.items()
        if key in _OWN or selection.keys() - _OWN
    }
    if not selection.keys() - _OWN:
        values["set",] = GONE
    after = with_values(before, str(path), values)
    existing.check(path, after)
    if not dry_run:
        existing.replace(path, after)
