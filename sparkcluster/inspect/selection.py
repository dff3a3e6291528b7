"""The current selection as flags, so that hints repeat it completely."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkcluster.hints import CommandLine
from sparkcluster.spec import Spec
from sparkcluster.spec.document import parse_scalar


def hints(spec: Spec) -> CommandLine:
    """Fills in hints: the inventory for INVENTORY, followed by the flags that select what ``spec`` has."""
    return CommandLine(str(spec.inventory_path), flags(spec.selected, spec), spec.model)


def flags(selection: Mapping[str, Any], spec: Spec) -> tuple[str, ...]:
    """The flags that select ``selection`` with the inventory of ``spec``; none for an empty one."""
    written = spec.inventory.selected
    over = selection.get("playbook") == written["playbook"] and written.keys() <= selection.keys()
    before = written if over else {}  # --playbook ignores the inventory's other keys
    keys = {key: value for key, value in selection.items() if key not in before or before[key] != value}
    words = ["--playbook", keys.pop("playbook")] if "playbook" in keys else []
    return (*words, *(word for key, value in keys.items() for word in ("--set", f"{key}={_text(value)}")))


def _text(value: Any) -> str:
    """``value`` in the syntax of ``--set``."""
    plain = isinstance(value, str) and parse_scalar(value.strip(), "", "value").data == {"value": value}
    return value if plain and value[:1] not in {'"', "'", "[", "{"} else json.dumps(value, ensure_ascii=False)
