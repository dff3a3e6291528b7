"""Words of an engine's command line: its program, arguments of a playbook as flags, and numbers among them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any


def program(name: str, python: str | None) -> str:
    """The program ``name``; with runtime ``process`` the one next to its Python, which need not be on PATH."""
    directory = PurePosixPath(python or "").parent
    return str(directory / name) if directory.is_absolute() else name


def number(args: Mapping[str, Any], name: str, default: int) -> int:
    """An integer argument; ``default`` if it is not set, or not a positive integer."""
    found = args.get(name)
    return found if type(found) is int and found > 0 else default


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
