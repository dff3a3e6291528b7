"""A playbook as YAML text that every reader of YAML reads alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

_ORDER = (
    "name", "description", "source", "model", "image", "served_name", "aliases", "nodes", "tensor_parallel",
    "pipeline_parallel", "executor", "overlays", "args", "env", "secrets", "setup", "mounts", "container",
    "request", "verify",
)  # fmt: skip
# What no reader takes for anything but text.
_PLAIN = re.compile(r"[A-Za-z/~][A-Za-z0-9_./@+~-]*")
_WORDS = frozenset({"yes", "no", "true", "false", "on", "off", "null", "y", "n", "~", "nan", "inf"})


class _Dumper(yaml.SafeDumper):
    """Texts in quotes wherever they could be read as something else."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as SafeDumper has it
        return True


def _represent(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _represent)


def text(document: dict[str, Any], source: str, notes: Sequence[str], command: str = "import") -> str:
    """``document`` as a playbook, with where it comes from and what it lacks above it."""
    lines = [f"# Made from {_line(source)} by `sparkcluster {command}`."]
    unique = list(dict.fromkeys(notes))
    if unique:
        lines += ["#", "# Left out, or to be reviewed:"]
        lines += [f"# - {_line(line)}" for line in unique]
    parts = ["\n".join(lines) + "\n"]
    keys = [key for key in (*_ORDER, *(key for key in document if key not in _ORDER)) if key in document]
    parts += [_section(key, document[key]) for key in keys]
    return parts[0] + "\n" + "".join(parts[1:])


def _section(key: str, value: Any) -> str:
    # A line that is broken for its length would be read back with a space in it.
    return yaml.dump({key: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)


def _line(words: str) -> str:
    """One line of a comment, whatever is in it."""
    flat = "".join(char if char.isprintable() else " " for char in words)
    return flat if len(flat) <= 200 else f"{flat[:199]}…"
