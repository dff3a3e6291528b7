"""Write a playbook as YAML that all parsers read equally."""

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
# Strings that are safe without quotes.
_PLAIN = re.compile(r"[A-Za-z/~][A-Za-z0-9_./@+~-]*")
_WORDS = frozenset({"yes", "no", "true", "false", "on", "off", "null", "y", "n", "~", "nan", "inf"})


class _Dumper(yaml.SafeDumper):
    """Quotes strings that YAML could read as other types."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as SafeDumper has it
        return True


def _represent(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _represent)


def text(document: dict[str, Any], source: str, notes: Sequence[str], command: str = "import") -> str:
    """``document`` as YAML, with its source and ``notes`` as comments at the top."""
    lines = [f"# Generated from {_line(source)} by `sparkcluster {command}`."]
    unique = list(dict.fromkeys(notes))
    if unique:
        lines += ["#", "# Skipped, or to be reviewed:"]
        lines += [f"# - {_line(line)}" for line in unique]
    parts = ["\n".join(lines) + "\n"]
    keys = [key for key in (*_ORDER, *(key for key in document if key not in _ORDER)) if key in document]
    parts += [_section(key, document[key]) for key in keys]
    return parts[0] + "\n" + "".join(parts[1:])


def _section(key: str, value: Any) -> str:
    # Wrapped lines would be read back with a space.
    return yaml.dump({key: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)


def _line(words: str) -> str:
    """``words`` as one line of a comment."""
    flat = "".join(char if char.isprintable() else " " for char in words)
    return flat if len(flat) <= 200 else f"{flat[:199]}…"
