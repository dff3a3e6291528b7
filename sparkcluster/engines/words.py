"""Arguments of a playbook as words of a command line, for engines whose parser is Python's argparse."""

from __future__ import annotations

import json
from typing import Any


def flag(name: str, value: Any, *, negation: bool = True) -> list[str]:
    """One argument: true is the bare flag, false its negation if any, null nothing, a mapping compact JSON."""
    if value is None or (value is False and not negation):
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if value else []
    text = str(value)
    # argparse would take a value that starts with a dash for the next flag.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
